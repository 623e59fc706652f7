"""Topics: the words that distinguish a cluster of texts from the others, by class-based TF-IDF.

A term t weighs tf(t, c) * log(1 + A / f(t)) in cluster c: tf(t, c) is its share among the words of the cluster, f(t) its number in all
clusters together, and A the mean number of words of a cluster (BERTopic, arXiv 2203.05794, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray


def class_tf_idf(counts: NDArray[np.integer]) -> Float[NDArray[np.float64], "cluster term"]:
    """Weights of terms from their counts, both of shape (cluster, term). They are 0 for terms and clusters without words."""
    words, frequency = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
    share = counts / np.maximum(words, 1)
    return np.asarray(share * np.log1p(words.mean() / np.maximum(frequency, 1)), np.float64)


def top_words(texts: Sequence[str], clusters: Sequence[int], number: int = 10) -> list[list[str]]:
    """The words with the largest weights of clusters 0..k-1, largest first, at most `number` of each.

    Words of one letter and English function words do not count, so a cluster may have none.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    joined = [
        " ".join(text for text, assigned in zip(texts, clusters, strict=True) if assigned == cluster)
        for cluster in range(max(clusters) + 1)
    ]
    vectorizer = CountVectorizer(stop_words="english")
    try:
        counts = vectorizer.fit_transform(joined).toarray()
    except ValueError:  # sklearn raises it if no word is left
        return [[] for _ in joined]
    weights, terms = class_tf_idf(counts), vectorizer.get_feature_names_out()
    # equal weights: in alphabetical order
    return [[str(terms[term]) for term in np.argsort(-row, kind="stable")[:number] if row[term] > 0] for row in weights]
