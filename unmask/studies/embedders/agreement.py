"""The test of a claim about agreement: of one embedder under several prompts, and of two embedders with each other.

Everything comes from what the store keeps of tasks that were scored: the similarities of pairs of texts, and the clusters of texts. So no
model is run, and a claim about agreement can be tested again as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unmask.evaluation.results import ResultStore
from unmask.statistics.bootstrap import Items, bootstrap, score
from unmask.statistics.correlations import codes_of, correlations, ranks_of, resampled, spearman_matrix
from unmask.statistics.paired import PairedTest, difference_test
from unmask.studies.claims.claim import Agreement
from unmask.studies.embedders.contrast import RESAMPLES, Scored, in_points

Points = tuple[float, NDArray[np.float64]]
"""A measure on all items of a task, and on each resample of them."""


def agreement_test(
    what: Agreement, a: Sequence[Scored], b: Sequence[Scored], store: ResultStore, family: int
) -> PairedTest | None:
    """The test of a claim about agreement, over the items of the tasks that it is measured on. None if there is no such task.

    a, b: two embedders, each under the same prompts in the same order. what:

    - `prompts`: the mean rank correlation of the similarities under two prompts (Spearman, over the pairs of a task of STS). The
      difference is that of a minus that of b.
    - `clusters`: how alike two groupings of the texts of a task of clustering are (V-measure). The difference is the mean over every
      two prompts of a, minus the mean over prompts of a with b under the same prompt.

    The runs of a training count as tasks of their own. Differences are in percent.
    """
    kind, measured = _MEASURED[what]
    resamples = max(RESAMPLES, 100 * family)
    sides: list[tuple[Points, Points]] = []
    sizes: list[int] = []
    for task in a[0].tasks([kind]):
        per_prompt = [one.items(task, store) if task in one.tasks([kind]) else None for one in (*a, *b)]
        known = [items for items in per_prompt if items]
        if len(known) < len(per_prompt):
            continue
        for run in zip(*known, strict=True):
            sides.append(measured(run[: len(a)], run[len(a) :], resamples))
            sizes.append(run[0].n)
    if not sides:
        return None
    points, samples = ([[side[place] for side in both] for both in zip(*sides, strict=True)] for place in (0, 1))
    return in_points(difference_test(samples[0], samples[1], points[0], points[1], sum(sizes), smallest=min(sizes)))


def _over_prompts(a: Sequence[Items], b: Sequence[Items], resamples: int) -> tuple[Points, Points]:
    table = np.column_stack([items.columns["predicted"] for items in (*a, *b)])
    codes = codes_of(table)
    drawn = [_means(correlations(ranks_of(codes, counts), counts), len(a)) for counts in resampled(len(table), 0, resamples)]
    whole = _means(spearman_matrix(table), len(a))
    return (whole[0], np.array([one for one, _ in drawn])), (whole[1], np.array([other for _, other in drawn]))


def _means(matrix: Float[NDArray[np.float64], "column column"], prompts: int) -> tuple[float, float]:
    """The mean correlation of two prompts of a, whose columns come first, and of b."""
    above = np.triu_indices(prompts, 1)
    return float(matrix[:prompts, :prompts][above].mean()), float(matrix[prompts:, prompts:][above].mean())


def _of_clusters(a: Sequence[Items], b: Sequence[Items], resamples: int) -> tuple[Points, Points]:
    return _likeness(list(combinations(a, 2)), resamples), _likeness(list(zip(a, b, strict=True)), resamples)


def _likeness(pairs: Sequence[tuple[Items, Items]], resamples: int) -> Points:
    both = [
        Items("v-measure", {"assigned": one.columns["assigned"], "label": other.columns["assigned"]}) for one, other in pairs
    ]
    samples = np.mean([bootstrap(items, resamples) for items in both], axis=0)
    return float(np.mean([score(items) for items in both])), samples


_MEASURED: Final[dict[Agreement, tuple[str, Callable[[Sequence[Items], Sequence[Items], int], tuple[Points, Points]]]]] = {
    "prompts": ("sts", _over_prompts),
    "clusters": ("clustering", _of_clusters),
}
