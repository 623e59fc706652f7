"""Bootstrap: the score of an evaluation on resamples of its items.

A metric is a function (columns, indices) -> scores. `indices` has the shape (resample, item): each row lists the items of a resample,
with repeats. All resamples are scored in one call. Values are sorted once, not once per resample, because ranks, precisions and entropies
only need to know how often each distinct value was drawn.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Columns = Mapping[str, NDArray[Any]]
Indices = NDArray[np.int64]
Scores = NDArray[np.float64]

_REPLICATES = 2**31
"""Spawn key of the random numbers that draw replicates, independent of the ones that draw items."""
DRAWS_AT_ONCE = 2**20
"""Items drawn in one call of a metric. This bounds the memory of a bootstrap to about ten arrays of 8 MB."""


@dataclass(frozen=True)
class Metric:
    """A score that can be computed on many resamples at once, and the columns of `Items` that it needs."""

    scores: Callable[[Columns, Indices], Scores]
    """(columns, indices of shape (resample, item)) -> scores of shape (resample,)."""
    output: str
    """The column that the design produced."""
    gold: str | None = None
    """The column of the task, equal for all designs."""
    other_outputs: tuple[str, ...] = ()


def mean(columns: Columns, indices: Indices) -> Scores:
    """Mean of the items' own scores: accuracy, nDCG@10, average precision per query, Spearman per document."""
    scores: Scores = columns["value"][indices].mean(axis=1, dtype=np.float64)
    return scores


def spearman(columns: Columns, indices: Indices) -> Scores:
    """Spearman's rank correlation of `predicted` and `gold`: Pearson's correlation of the ranks. Ties share their average rank.

    A constant prediction scores 0.0. A resample with constant gold scores nan.
    """
    centre = (indices.shape[1] + 1) / 2
    predicted = _ranks(columns["predicted"], indices) - centre
    gold = _ranks(columns["gold"], indices) - centre
    spread = np.square(predicted).sum(axis=1) * np.square(gold).sum(axis=1)
    correlation = (predicted * gold).sum(axis=1) / np.sqrt(np.where(spread > 0, spread, 1))
    return np.where(gold.any(axis=1), correlation, np.nan)


def average_precision(columns: Columns, indices: Indices) -> Scores:
    """Average precision of `label` in {0, 1}, ranked by `predicted`; nan for a resample without positives.

    It goes through the distinct values of `predicted`, the highest first, and sums (share of the positives with this value) x
    (precision so far). Items with one value count together, as in sklearn.metrics.average_precision_score.
    """
    ascending = _codes(columns["predicted"])
    codes = (ascending.max() - ascending)[indices]
    hits = _counts(codes, weights=columns["label"][indices])
    hits_so_far = np.cumsum(hits, axis=1)
    drawn_so_far = np.cumsum(_counts(codes), axis=1)
    precision = hits_so_far / np.maximum(drawn_so_far, 1)  # nothing drawn above a score: nothing found either
    positives = hits_so_far[:, -1]
    return np.where(positives > 0, (hits * precision).sum(axis=1) / np.where(positives > 0, positives, 1), np.nan)


def v_measure(columns: Columns, indices: Indices) -> Scores:
    """V-measure of `assigned` clusters against `label`. Resample b uses replicate b modulo the number of replicates.

    Both columns have the shape (item, replicate). With I the mutual information, homogeneity is I / H(label) and completeness is
    I / H(assigned). Their harmonic mean is 2 I / (H(label) + H(assigned)), or 1.0 if both entropies are zero (Rosenberg and Hirschberg,
    2007; sklearn.metrics.v_measure_score).
    Resamples score higher than the items do: the clusters are not fitted again, and a repeated item agrees with itself. Many clusters
    and poor clusters gain most. `around` in `interval` and the centring in `paired.difference_test` correct this.
    An optional column `weight` says how often each replicate counts an item. Then each resample has the mean over replicates.
    """
    replicates = columns["assigned"].shape[1]
    if "weight" in columns:
        of_replicates = [_v_of_replicate(columns, replicate, indices) for replicate in range(replicates)]
        return np.asarray(np.mean(of_replicates, axis=0), dtype=np.float64)
    scores = np.empty(len(indices))
    for replicate in range(min(replicates, len(indices))):
        scores[replicate::replicates] = _v_of_replicate(columns, replicate, indices[replicate::replicates])
    return scores


def _v_of_replicate(columns: Columns, replicate: int, rows: Indices) -> Scores:
    assigned, label = (_codes(columns[name][:, replicate]) for name in ("assigned", "label"))
    weights = columns["weight"][:, replicate][rows] if "weight" in columns else None
    total = _entropy(assigned[rows], weights) + _entropy(label[rows], weights)
    information = total - _entropy(_codes(assigned * (label.max() + 1) + label)[rows], weights)
    shared = 2 * np.maximum(information, 0) / np.where(total > 0, total, 1)
    return np.where(total > 0, shared, 1.0)


def ratio(columns: Columns, indices: Indices) -> Scores:
    """Sum of `above` divided by sum of `below`; nan for a resample where `below` sums to 0. An item is a sentence.

    For accuracy: correctly tagged words / words. For F1: 2 x correct entities / (gold entities + predicted entities). This is the F1 of
    all entities together, not the mean of the sentences' F1.
    """
    numerator = columns["above"][indices].sum(axis=1, dtype=np.float64)
    denominator = columns["below"][indices].sum(axis=1, dtype=np.float64)
    return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1), np.nan)


METRICS: dict[str, Metric] = {
    "mean": Metric(mean, "value"),
    "spearman": Metric(spearman, "predicted", "gold"),
    "average-precision": Metric(average_precision, "predicted", "label"),
    "v-measure": Metric(v_measure, "assigned", "label"),
    "ratio": Metric(ratio, "above", "gold", ("below",)),
}


@dataclass(frozen=True, eq=False)
class Items:
    """The items of one evaluation, with all values that the score needs. The score can be computed on any resample of them.

    metric: a key of METRICS. columns: arrays with one row per item, at least those that the metric needs. Raises ValueError if the
    columns do not fit the metric, or if the score on all items is undefined.
    """

    metric: str
    columns: dict[str, NDArray[Any]]

    def __post_init__(self) -> None:
        """Check the columns, and keep them as arrays in a new dict."""
        if self.metric not in METRICS:
            raise ValueError(f"Unknown metric {self.metric!r}; the metrics are {', '.join(METRICS)}.")
        metric = METRICS[self.metric]
        columns = {name: np.asarray(column) for name, column in self.columns.items()}
        needed = [metric.output, *metric.other_outputs, *([metric.gold] if metric.gold else [])]
        if missing := [name for name in needed if name not in columns]:
            raise ValueError(f"{self.metric} needs the columns {', '.join(needed)}; missing: {', '.join(missing)}.")
        shapes = {name: columns[name].shape for name in needed}
        shape = shapes[metric.output]
        dimensions = 2 if self.metric == "v-measure" else 1
        if len(shape) != dimensions or 0 in shape or any(column.shape[:1] != shape[:1] for column in columns.values()):
            raise ValueError(f"{self.metric} needs columns of {dimensions} dimensions and equal length, not {shapes}.")
        for name in needed:
            values = columns[name]
            if values.shape != shape or values.dtype.kind not in "biuf" or not np.isfinite(values).all():
                raise ValueError(f"{self.metric} needs finite numbers of shape {shape} in column {name}.")
        if dimensions == 1 and np.isnan(metric.scores(columns, np.arange(len(columns[metric.output]))[None])).any():
            raise ValueError(f"{self.metric} is undefined on these items: all have the same gold value, or none counts.")
        object.__setattr__(self, "columns", columns)

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.columns[METRICS[self.metric].output])

    @property
    def replicates(self) -> int:
        """Number of replicates: the second dimension of the columns, or 1 if they have none."""
        column = self.columns[METRICS[self.metric].output]
        return column.shape[1] if column.ndim == 2 else 1


def score(items: Items) -> float:
    """Score on all items. With several replicates, the mean of their scores."""
    if items.replicates > 1:
        return float(each_replicate(items).mean())
    return float(METRICS[items.metric].scores(items.columns, np.arange(items.n)[None])[0])


def bootstrap(items: Items, resamples: int = 1000, seed: int | np.random.SeedSequence = 0) -> Scores:
    """Scores of shape (resample,), nan where undefined. Each resample draws n items with replacement.

    The same seed and n draw the same items, so two designs on one task are paired. Fewer resamples are the first of more.
    With several replicates, the score is their mean: the change caused by a resample of items is added to the mean of as many
    replicates, drawn with replacement. A single replicate would vary far more than that mean. Raises ValueError for fewer than 2 items.
    """
    if items.n < 2:
        raise ValueError("A bootstrap needs at least 2 items: with 1 item, all resamples are equal.")
    metric = METRICS[items.metric]
    blocks = drawn_indices(items.n, resamples, np.random.default_rng(seed), items.replicates)
    scores = np.concatenate([metric.scores(items.columns, indices) for indices in blocks])
    if items.replicates == 1:
        return scores
    by_replicate = each_replicate(items)
    # the score of each resample with all items: that of its replicate, or the mean if it uses all of them
    unresampled = by_replicate.mean() if "weight" in items.columns else np.resize(by_replicate, resamples)
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    random = np.random.default_rng(np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, _REPLICATES)))
    rows = random.integers(items.replicates, size=(resamples, items.replicates))
    return np.asarray(scores - unresampled + by_replicate[rows].mean(axis=1), np.float64)


def each_replicate(items: Items) -> Scores:
    """The score of each replicate on all items, of shape (replicate,)."""
    every = np.arange(items.n)[None]
    return np.array([_v_of_replicate(items.columns, replicate, every)[0] for replicate in range(items.replicates)])


def interval(samples: ArrayLike, level: float = 0.95, *, around: float | None = None) -> tuple[float, float]:
    """Percentile interval: the middle `level` of the samples, without nan (Efron and Tibshirani, 1993).

    around: a score; the samples are first shifted so that it is their mean. V-measure needs this: repeated items raise it, and the plain
    interval may lie above the score. Raises ValueError if all samples are nan.
    """
    values = np.asarray(samples, dtype=np.float64)
    values = values[~np.isnan(values)]
    if not values.size:
        raise ValueError("There is no interval: the score is undefined on every resample.")
    if around is not None:
        values = values - values.mean() + around
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def drawn_indices(n: int, resamples: int, random: np.random.Generator, replicates: int = 1) -> Iterator[Indices]:
    """Item indices of the resamples, in blocks of bounded memory. The draws do not depend on the block size."""
    # the rows of a block are a multiple of the replicates, so each resample gets its own replicate
    rows = replicates * max(1, DRAWS_AT_ONCE // (n * replicates))
    for start in range(0, resamples, rows):
        yield random.integers(n, size=(min(rows, resamples - start), n))


def _codes(values: NDArray[Any]) -> Indices:
    """Number the distinct values 0, 1, ... in ascending order."""
    return np.unique(values, return_inverse=True)[1]


def _counts(codes: Indices, weights: NDArray[Any] | None = None) -> NDArray[Any]:
    """How often each code occurs in each row, or the sum of its weights: (row, item) -> (row, code)."""
    rows, size = len(codes), int(codes.max()) + 1
    cells = codes + size * np.arange(rows)[:, None]
    flat_weights = None if weights is None else weights.ravel()
    return np.bincount(cells.ravel(), flat_weights, minlength=rows * size).reshape(rows, size)


def _ranks(values: NDArray[Any], indices: Indices) -> Scores:
    """Average rank of each drawn item in its resample: the number of draws up to its value, minus half of its ties."""
    codes = _codes(values)[indices]
    counts = _counts(codes)
    return np.take_along_axis(np.cumsum(counts, axis=1) - (counts - 1) / 2, codes, axis=1)


def _entropy(codes: Indices, weights: NDArray[Any] | None = None) -> Scores:
    """Entropy of the codes in each row, in nats. 0 for a row without weight."""
    counts = _counts(codes, weights)
    share: Scores = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    negative: Scores = (share * np.log(np.where(share > 0, share, 1))).sum(axis=1)
    return -negative
