"""Clusters: do two designs, such as hidden states and routing weights, form the same clusters of texts?

The vectors of each design, at unit length, are clustered by k-means. Then the two groupings of the texts are compared (MoEE, arXiv
2410.10814, section 3.3: Jaccard 0.06 and an exact matching of 45.5 % for hidden states and routing weights). Each measure is given with two
others: its value by chance (the texts of one grouping shuffled), and its value for two k-means runs of one design with different seeds.
Two designs cannot be expected to agree more than a design agrees with itself.

Intervals are by jackknife over texts (`unmask.statistics.intervals`): a bootstrap would draw some texts twice, and two copies of a text
agree. An interval says what other texts would change. K-means is not fitted again for it: how much its groupings vary is what a design's
agreement with itself shows.

Clusters are named by the words that distinguish them, by class-based TF-IDF: a term t weighs tf(t, c) * log(1 + A / f(t)) in cluster c.
tf(t, c) is its share among the words of the cluster, f(t) its number in all clusters together, and A the mean number of words of a cluster
(BERTopic, arXiv 2203.05794, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.designs.design import Design
from unmask.encoding.encoder import Encoder
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.rows import field, read_rows
from unmask.models.provenance import fingerprint_of
from unmask.probing.inputs import ProbeResult, design_vectors, unit
from unmask.statistics.information import adjusted_mutual_information, entropy, mutual_information
from unmask.statistics.intervals import Bounds, jackknife_interval
from unmask.tasks.sampling import random_subset

SEEDS = 5
_STARTS, _PERMUTATIONS = 10, 200
Labels = NDArray[np.int64]
Table = NDArray[np.int64]
"""Numbers of texts by their cluster in both groupings, (cluster, cluster)."""


@dataclass(frozen=True)
class ClusterAgreement:
    """How much the groupings of two designs agree by one measure, the mean over seeds.

    chance: the mean after shuffling the texts of one grouping; chance_interval: the middle 95 % of these shuffles; p: the share of
    shuffles that agree as much, with one added to both counts; themselves: each design's agreement with itself over pairs of seeds.
    interval, themselves_intervals: 95 % over texts, None for fewer than five texts.
    """

    measure: str
    value: float
    interval: Bounds | None
    chance: float
    chance_interval: tuple[float, float]
    p: float
    themselves: tuple[float, float]
    themselves_intervals: tuple[Bounds | None, Bounds | None]


@dataclass(frozen=True)
class Clusters(ProbeResult):
    """Two groupings of the same texts.

    table: numbers of texts by cluster of the first design (rows) and of the second (columns, in the order that puts as many texts as
    possible on the diagonal), from the first seed; words: the top words of each cluster, in the same orders; gold: AMI of each design's
    clusters with the labels, one number for each seed, or None without labels; gold_intervals: of their means, over texts.
    """

    designs: tuple[str, str]
    clusters: int
    texts: int
    seeds: int
    agreement: tuple[ClusterAgreement, ...]
    table: tuple[tuple[int, ...], ...]
    words: tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]
    gold: tuple[tuple[float, ...], tuple[float, ...]] | None
    gold_intervals: tuple[Bounds | None, Bounds | None] | None
    data: str
    provenance: dict[str, Any]


def normalised_mutual_information(table: Table) -> float:
    """2 I / (H + H'), from 0 to 1. By chance it is above 0, and the higher the more clusters there are."""
    joint = table / table.sum()
    total = float(entropy(joint.sum(axis=1)) + entropy(joint.sum(axis=0)))
    return 2 * float(mutual_information(joint)) / total if total > 0 else 1.0


def pair_jaccard(table: Table) -> float:
    """Pairs of texts that share a cluster in both groupings, over pairs that do so in at least one; 1 if there is no such pair."""
    both, rows, columns = (int((counts * (counts - 1) // 2).sum()) for counts in (table, table.sum(axis=1), table.sum(axis=0)))
    return both / (rows + columns - both) if rows + columns else 1.0


def exact_matching(table: Table) -> float:
    """The share of texts in matched clusters, for the one-to-one matching of clusters with the largest share (Kuhn, 1955)."""
    from scipy.optimize import linear_sum_assignment

    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())


MEASURES: dict[str, Callable[[Table], float]] = {
    "AMI": adjusted_mutual_information,
    "NMI": normalised_mutual_information,
    "Jaccard of pairs": pair_jaccard,
    "exact matching": exact_matching,
}


def contingency(first: Labels, second: Labels) -> Table:
    """Numbers of texts by their cluster in both groupings, shape (cluster, cluster)."""
    table = np.zeros((int(first.max()) + 1, int(second.max()) + 1), np.int64)
    np.add.at(table, (first, second), 1)
    return table


def measure_agreement(name: str, first: Sequence[Labels], second: Sequence[Labels], seed: int = 0) -> ClusterAgreement:
    """One measure of two designs' groupings. Both have one grouping for each seed, and at least two seeds."""
    measure, random = MEASURES[name], np.random.default_rng(seed)
    value, bounds = mean_agreement(measure, list(zip(first, second, strict=True)))
    shuffled = np.zeros(_PERMUTATIONS)
    for index in range(_PERMUTATIONS):
        order = random.permutation(len(first[0]))
        shuffled[index] = np.mean([measure(contingency(a, b[order])) for a, b in zip(first, second, strict=True)])
    low, high = np.quantile(shuffled, [0.025, 0.975])
    themselves = [mean_agreement(measure, list(combinations(groupings, 2))) for groupings in (first, second)]
    return ClusterAgreement(
        measure=name,
        value=value,
        interval=bounds,
        chance=float(shuffled.mean()),
        chance_interval=(float(low), float(high)),
        p=(int((shuffled >= value).sum()) + 1) / (_PERMUTATIONS + 1),
        themselves=(themselves[0][0], themselves[1][0]),
        themselves_intervals=(themselves[0][1], themselves[1][1]),
    )


def mean_agreement(measure: Callable[[Table], float], pairs: Sequence[tuple[Labels, Labels]]) -> tuple[float, Bounds | None]:
    """The mean of a measure over pairs of groupings of the same texts, and its 95 % interval over texts."""
    values, left_out = [], []
    for first, second in pairs:
        table = contingency(first, second)
        values.append(measure(table))
        without = np.zeros(table.shape)  # texts that lie in the same two clusters leave the same table
        for cell in zip(*np.nonzero(table), strict=True):
            rest = table.copy()
            rest[cell] -= 1
            without[cell] = measure(rest)
        left_out.append(without[first, second])
    value = float(np.mean(values))
    return value, jackknife_interval(value, np.mean(left_out, axis=0), most=1.0)


def k_means(vectors: NDArray[np.floating], clusters: int, seed: int) -> Labels:
    """Clusters of rows at unit length by k-means, the best of ten starts. Raises UnmaskError for a row of zeros."""
    from sklearn.cluster import KMeans

    return np.asarray(KMeans(clusters, n_init=_STARTS, random_state=seed).fit_predict(unit(vectors)), np.int64)


def read_labelled_texts(
    file: Path, column: str = "text", label: str | None = None, limit: int | None = None, seed: int = 0
) -> tuple[list[str], list[str] | None]:
    """Distinct texts of a file, and their gold labels if `label` names a column. Raises UnmaskError.

    Repeated texts are left out: copies share a cluster under every design. With a limit, the seed draws the texts from the whole file,
    since many files are sorted by label.
    """
    labels: dict[str, str] = {}
    for line, row in read_rows(file):
        text = field(file, line, row, column)
        labels.setdefault(text, str(field(file, line, row, label, (str, int))) if label else "")
    texts = random_subset(list(labels), limit, seed)
    return texts, [labels[text] for text in texts] if label else None


def probe_clusters(
    encoder: Encoder,
    designs: tuple[Design, Design],
    texts: Sequence[str],
    labels: Sequence[str] | None = None,
    *,
    clusters: int = 10,
    seeds: int = SEEDS,
) -> Clusters:
    """Cluster distinct texts under two designs and compare the groupings. Raises UnmaskError for too few texts, clusters or seeds."""
    if len(texts) < 4:
        raise UnmaskError(f"Two clusters need at least 4 distinct texts, and there are only {len(texts)}. Add texts.")
    if not 2 <= clusters <= len(texts) / 2:
        raise UnmaskError(f"{clusters} clusters do not fit {len(texts)} texts: choose 2 to {len(texts) // 2}.")
    if seeds < 2:
        raise UnmaskError("At least 2 seeds are needed: k-means is compared with itself from another seed.")
    vectors = design_vectors(encoder, designs, texts)
    first, second = ([k_means(vectors[design], clusters, seed) for seed in range(seeds)] for design in designs)
    order = match_clusters(first[0], second[0])
    words = [top_words(texts, grouping[0].tolist()) for grouping in (first, second)]
    gold, gold_intervals = [], []
    if labels is not None:
        codes = np.unique(labels, return_inverse=True)[1]
        for groupings in (first, second):
            gold.append(tuple(adjusted_mutual_information(contingency(codes, grouping)) for grouping in groupings))
            gold_intervals.append(mean_agreement(adjusted_mutual_information, [(codes, one) for one in groupings])[1])
    return Clusters(
        designs=(designs[0].name, designs[1].name),
        clusters=clusters,
        texts=len(texts),
        seeds=seeds,
        agreement=tuple(measure_agreement(name, first, second) for name in MEASURES),
        table=tuple(tuple(row) for row in contingency(first[0], second[0])[:, order].tolist()),
        words=(tuple(words[0]), tuple(words[1][index] for index in order)),
        gold=(gold[0], gold[1]) if gold else None,
        gold_intervals=(gold_intervals[0], gold_intervals[1]) if gold else None,
        data=fingerprint_of([*texts, *(labels or [])]),
        provenance=encoder.provenance | {"designs": [design.name for design in designs], "max_length": encoder.max_length},
    )


def match_clusters(first: Labels, second: Labels) -> list[int]:
    """For each cluster of the first grouping, the cluster of the second that it is matched with."""
    from scipy.optimize import linear_sum_assignment

    return [int(column) for column in linear_sum_assignment(contingency(first, second), maximize=True)[1]]


def class_tf_idf(counts: NDArray[np.integer]) -> Float[NDArray[np.float64], "cluster term"]:
    """Weights of terms from their counts, both of shape (cluster, term). They are 0 for terms and clusters without words."""
    words, frequency = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
    share = counts / np.maximum(words, 1)
    return np.asarray(share * np.log1p(words.mean() / np.maximum(frequency, 1)), np.float64)


def top_words(texts: Sequence[str], clusters: Sequence[int], number: int = 10) -> list[tuple[str, ...]]:
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
        return [() for _ in joined]
    weights, terms = class_tf_idf(counts), vectorizer.get_feature_names_out()
    # equal weights: in alphabetical order
    return [tuple(str(terms[term]) for term in np.argsort(-row, kind="stable")[:number] if row[term] > 0) for row in weights]
