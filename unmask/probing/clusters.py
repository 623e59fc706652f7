"""Clusters: do two designs, such as hidden states and routing weights, form the same clusters of texts?

The vectors of each design, at unit length, are clustered by k-means. Then the two groupings of the texts are compared (MoEE, arXiv
2410.10814, section 3.3: Jaccard 0.06 and an exact matching of 45.5 % for hidden states and routing weights). Each measure is given with two
others: its value by chance (the texts of one grouping shuffled), and its value for two k-means runs of one design with different seeds.
Two designs cannot be expected to agree more than a design agrees with itself.

Intervals are by jackknife over texts (`unmask.statistics.intervals`): a bootstrap would draw some texts twice, and two copies of a text
agree. An interval says what other texts would change. K-means is not fitted again for it: how much its groupings vary is what a design's
agreement with itself shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.designs.design import Design
from unmask.encoding.encoder import Encoder
from unmask.errors import UnmaskError
from unmask.io.rows import field, read_rows
from unmask.models.provenance import fingerprint_of
from unmask.probing.geometry import design_vectors, unit
from unmask.probing.topics import top_words
from unmask.statistics.information import adjusted_mutual_information, entropy, mutual_information
from unmask.statistics.intervals import Bounds, jackknife_interval
from unmask.tasks.sampling import random_subset

SEEDS = 5
_STARTS, _PERMUTATIONS = 10, 200
Labels = NDArray[np.int64]
Table = NDArray[np.int64]
"""Numbers of texts by their cluster in both groupings, (cluster, cluster)."""


@dataclass(frozen=True)
class Agreement:
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
class Clusters:
    """Two groupings of the same texts.

    table: numbers of texts by cluster of the first design (rows) and of the second (columns, in the order that puts as many texts as
    possible on the diagonal), from the first seed; words: the top words of each cluster, in the same orders; gold: AMI of each design's
    clusters with the labels, one number for each seed, or None without labels; gold_intervals: of their means, over texts.
    """

    designs: tuple[str, str]
    clusters: int
    texts: int
    seeds: int
    agreement: tuple[Agreement, ...]
    table: tuple[tuple[int, ...], ...]
    words: tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]
    gold: tuple[tuple[float, ...], tuple[float, ...]] | None
    gold_intervals: tuple[Bounds | None, Bounds | None] | None
    data: str
    provenance: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The result with everything that it depends on."""
        return asdict(self)


def normalised_mutual_information(table: Table) -> float:
    """2 I / (H + H'), from 0 to 1. By chance it is above 0, and the higher the more clusters there are."""
    joint = table / table.sum()
    total = float(entropy(joint.sum(axis=1)) + entropy(joint.sum(axis=0)))
    return 2 * float(mutual_information(joint)) / total if total > 0 else 1.0


def pair_jaccard(table: Table) -> float:
    """Pairs of texts that share a cluster in both groupings, over pairs that do so in at least one; 1 if there is no such pair."""
    both, rows, columns = (_pairs(counts) for counts in (table, table.sum(axis=1), table.sum(axis=0)))
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


def agree(name: str, first: Sequence[Labels], second: Sequence[Labels], seed: int = 0) -> Agreement:
    """One measure of two designs' groupings. Both have one grouping for each seed, and at least two seeds."""
    measure, random = MEASURES[name], np.random.default_rng(seed)
    value, bounds = mean_agreement(measure, list(zip(first, second, strict=True)))

    def dealt_anew() -> float:
        order = random.permutation(len(first[0]))
        return float(
            np.mean([measure(contingency(grouping, paired[order])) for grouping, paired in zip(first, second, strict=True)])
        )

    dealt = np.array([dealt_anew() for _ in range(_PERMUTATIONS)])
    low, high = np.quantile(dealt, [0.025, 0.975])
    within_first, within_second = (mean_agreement(measure, list(combinations(groupings, 2))) for groupings in (first, second))
    p = (int((dealt >= value).sum()) + 1) / (_PERMUTATIONS + 1)
    chance = float(dealt.mean()), (float(low), float(high))
    return Agreement(name, value, bounds, *chance, p, (within_first[0], within_second[0]), (within_first[1], within_second[1]))


def mean_agreement(measure: Callable[[Table], float], pairs: Sequence[tuple[Labels, Labels]]) -> tuple[float, Bounds | None]:
    """The mean of a measure over pairs of groupings of the same texts, and its 95 % interval over texts."""
    value = float(np.mean([measure(contingency(*pair)) for pair in pairs]))
    left_out = np.mean([_without_each_text(measure, *pair) for pair in pairs], axis=0)
    return value, jackknife_interval(value, left_out, most=1.0)


def _without_each_text(measure: Callable[[Table], float], first: Labels, second: Labels) -> NDArray[np.float64]:
    """The measure without each text, shape (text,). Texts that lie in the same two clusters leave the same table."""
    table = contingency(first, second)
    values = np.zeros(table.shape)
    for cell in zip(*np.nonzero(table), strict=True):
        rest = table.copy()
        rest[cell] -= 1
        values[cell] = measure(rest)
    return np.asarray(values[first, second], np.float64)


def group(vectors: NDArray[np.floating], clusters: int, seed: int) -> Labels:
    """Clusters of rows at unit length by k-means, the best of ten starts. Raises UnmaskError for a row of zeros."""
    from sklearn.cluster import KMeans

    return np.asarray(KMeans(clusters, n_init=_STARTS, random_state=seed).fit_predict(unit(vectors)), np.int64)


def read_texts(
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
    first, second = ([group(vectors[design], clusters, seed) for seed in range(seeds)] for design in designs)
    order = matched(first[0], second[0])
    label_codes = np.unique(labels, return_inverse=True)[1] if labels is not None else None
    golds = [] if label_codes is None else [_with(label_codes, grouping) for grouping in (first, second)]
    words = [[tuple(top) for top in top_words(texts, grouping[0].tolist())] for grouping in (first, second)]
    return Clusters(
        (designs[0].name, designs[1].name),
        clusters,
        len(texts),
        seeds,
        tuple(agree(name, first, second) for name in MEASURES),
        tuple(tuple(row) for row in contingency(first[0], second[0])[:, order].tolist()),
        (tuple(words[0]), tuple(words[1][index] for index in order)),
        (golds[0][0], golds[1][0]) if golds else None,
        (golds[0][1], golds[1][1]) if golds else None,
        fingerprint_of([*texts, *(labels or [])]),
        encoder.provenance | {"designs": [design.name for design in designs], "max_length": encoder.max_length},
    )


def matched(first: Labels, second: Labels) -> list[int]:
    """For each cluster of the first grouping, the cluster of the second that it is matched with."""
    from scipy.optimize import linear_sum_assignment

    return [int(column) for column in linear_sum_assignment(contingency(first, second), maximize=True)[1]]


def _with(gold: Labels, groupings: Sequence[Labels]) -> tuple[tuple[float, ...], Bounds | None]:
    """AMI of each grouping with the labels, and the interval of the mean."""
    each = tuple(adjusted_mutual_information(contingency(gold, grouping)) for grouping in groupings)
    return each, mean_agreement(adjusted_mutual_information, [(gold, grouping) for grouping in groupings])[1]


def _pairs(counts: Labels) -> int:
    return int((counts * (counts - 1) // 2).sum())
