"""Topics: the words that tell a cluster of texts from the others, by class-based TF-IDF.

With tf(t, c) the share of term t among the words of cluster c, f(t) how often t stands in all clusters together, and A the mean
number of words of a cluster, a term weighs tf(t, c) * log(1 + A / f(t)) (BERTopic, arXiv 2203.05794, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray


def class_tf_idf(counts: NDArray[np.integer]) -> Float[NDArray[np.float64], "cluster term"]:
    """Weights of terms from their counts, both of shape (cluster, term); a term or a cluster without any word weighs nothing."""
    words, frequency = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
    share = counts / np.maximum(words, 1)
    return np.asarray(share * np.log1p(words.mean() / np.maximum(frequency, 1)), np.float64)


def top_words(texts: Sequence[str], clusters: Sequence[int], number: int = 10) -> list[list[str]]:
    """The heaviest words of clusters 0..k-1, heaviest first, at most so many.

    Words of one letter and English function words do not count; a cluster may have none.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    joined = [
        " ".join(text for text, own in zip(texts, clusters, strict=True) if own == one) for one in range(max(clusters) + 1)
    ]
    vectorizer = CountVectorizer(stop_words="english")
    try:
        counts = vectorizer.fit_transform(joined).toarray()
    except ValueError:  # sklearn's way to say that no word is left
        return [[] for _ in joined]
    weights, terms = class_tf_idf(counts), vectorizer.get_feature_names_out()
    # equal weights in the order of the alphabet
    return [[str(terms[term]) for term in np.argsort(-row, kind="stable")[:number] if row[term] > 0] for row in weights]
