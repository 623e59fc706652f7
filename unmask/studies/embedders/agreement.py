"""The test of a claim about agreement: of one embedder under several prompts, and of two embedders with each other.

Everything comes from what the store keeps of tasks that were scored: the similarities of pairs of texts, and the clusters of texts. So no
model is run, and a claim about agreement can be tested again as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations
from typing import Final

import numpy as np
from jaxtyping import Float

from unmask.errors import UnmaskError
from unmask.evaluation.results import ResultStore
from unmask.io.array_types import NDArray
from unmask.statistics.bootstrap import METRICS, Items, each_replicate
from unmask.statistics.correlations import codes_of, correlations, ranks_of
from unmask.statistics.intervals import jackknife_variance
from unmask.statistics.paired import PairedTest
from unmask.statistics.variance_sources import t_of_sources
from unmask.studies.claims.claim import Agreement
from unmask.studies.embedders.contrast import Scored, in_points

Sides = Float[NDArray[np.float64], "... side"]
"""The agreement of both sides of a claim. The last dimension has two values: that of the claim's embedder, and that of its rival."""


@dataclass(frozen=True)
class OnTask:
    """How far both sides agree on one task.

    whole: on all items, of shape (side,). without_prompt: without each prompt, (prompt, side). n: number of items. over_items: the
    variance of the difference of both sides over other items, and its degrees of freedom.
    """

    whole: Sides
    without_prompt: Sides
    n: int
    over_items: tuple[float, int]


def agreement_test(agreements: Mapping[str, Sequence[OnTask]]) -> PairedTest | None:
    """The test of a claim about agreement, from `agreements`. None if it was measured on no task.

    The difference is the mean over tasks and runs, in percent. Its variance is that over the items of each task, plus that over prompts
    (jackknife), plus that over runs if a model was trained with several seeds. So the test is about other items of these tasks, about
    other prompts, and about other trainings where there are several. Runs of one task share its items, so their variances over items are
    averaged, not added up.
    """
    if not agreements:
        return None
    firsts = [runs[0] for runs in agreements.values()]
    variances = [float(np.mean([run.over_items[0] for run in runs])) for runs in agreements.values()]
    sources = [(part / len(firsts) ** 2, first.over_items[1]) for part, first in zip(variances, firsts, strict=True)]
    prompts = _mean([_mean([run.without_prompt for run in runs]) for runs in agreements.values()])
    sources.append((jackknife_variance(_gap(prompts)), len(prompts) - 1))
    per_run = np.mean([[_gap(run.whole) for run in runs] for runs in agreements.values()], axis=0)
    several = len(per_run) > 1
    if several:
        sources.append((float(np.var(per_run, ddof=1)) / len(per_run), len(per_run) - 1))
    what = "items, prompts and seeds" if several else "items and prompts"
    return in_points(t_of_sources(float(per_run.mean()), sources, sum(first.n for first in firsts), what))


def agreements(what: Agreement, a: Sequence[Scored], b: Sequence[Scored], store: ResultStore) -> dict[str, list[OnTask]]:
    """How far both sides of a claim agree, for each task that it is measured on, and each run of a training.

    a, b: two embedders, each under the same prompts in the same order. what:

    - `prompts`: the mean rank correlation of the similarities under two prompts (Spearman, over the pairs of a task of STS), of a and of b.
    - `clusters`: how alike two groupings of the texts of a task of clustering are (V-measure, the mean over mteb's experiments). First
      the mean over every two prompts of a, then the mean over every two prompts of a under one of them with b under the other. So both
      sides have two prompts, and only the second one has two embedders.
    - `clusters under one prompt`: the same, but the second side is a with b under the same prompt. What the prompt does to both makes
      them more alike. So a difference says that the embedder changes groupings more than the prompt does.

    A task is left out if not all of them have items that can be compared. Raises UnmaskError if their items are not the same.
    """
    kind, metric, measured = _MEASURED[what]
    found = {}
    for task in a[0].tasks([kind]):
        items = [one.items(task, store) if task in one.runs[0] else None for one in (*a, *b)]
        known = [runs for runs in items if runs and all(_comparable(run, metric) for run in runs)]
        if len(known) == len(items):
            found[task] = [measured(*_paired(task, run, len(a))) for run in zip(*known, strict=True)]
    return found


def _comparable(items: Items, metric: str) -> bool:
    """Whether agreement can be measured: mteb gives means where a task has several sets of texts. One experiment has no variance.

    With a weight, an experiment draws many more texts than there are. Then it is no bootstrap sample of them.
    """
    return items.metric == metric and (metric != "v-measure" or (items.replicates > 1 and "weight" not in items.columns))


def _paired(task: str, run: Sequence[Items], prompts: int) -> tuple[Sequence[Items], Sequence[Items]]:
    """The items of a and of b. Raises UnmaskError if they are not of the same texts."""
    given = METRICS[run[0].metric].given
    if any(not np.array_equal(items.columns[str(given)], run[0].columns[str(given)]) for items in run[1:]):
        raise UnmaskError(f"'{task}' has other items under some prompts, so their agreement says nothing. Remove its scores.")
    return run[:prompts], run[prompts:]


def _over_prompts(a: Sequence[Items], b: Sequence[Items]) -> OnTask:
    """The variance over items is by jackknife."""
    table = np.column_stack([items.columns["predicted"] for items in (*a, *b)])
    codes, prompts = codes_of(table), range(len(a))

    def measured(counts: NDArray[np.int64], left: Sequence[int] = prompts) -> list[float]:
        matrix = correlations(ranks_of(codes, counts), counts)
        return [_mean_pair(matrix, left), _mean_pair(matrix[len(a) :, len(a) :], left)]

    every = np.ones(len(table), np.int64)
    without_item = np.array([measured(every - one) for one in np.eye(len(table), dtype=np.int64)])
    return OnTask(
        whole=np.array(measured(every)),
        without_prompt=np.array([measured(every, [other for other in prompts if other != prompt]) for prompt in prompts]),
        n=len(table),
        over_items=(jackknife_variance(_gap(without_item)), len(table) - 1),
    )


def _mean_pair(matrix: Float[NDArray[np.float64], "column column"], left: Sequence[int]) -> float:
    return float(np.mean([matrix[pair] for pair in combinations(left, 2)]))


def _of_clusters(a: Sequence[Items], b: Sequence[Items], *, one_prompt: bool = False) -> OnTask:
    """one_prompt: whether a and b are compared under the same prompt only. The variance over items is that between mteb's experiments.

    Each of them draws as many texts as there are, with replacement, and fits k-means anew. So it is a bootstrap sample of the texts, and
    the variance between experiments is that of the bootstrap, with the noise of k-means in it. A mean over experiments has less of this
    noise, so the variance is rather too large.
    """
    prompts = range(len(a))
    own = {(one, two): _likeness(a[one], a[two]) for one, two in combinations(prompts, 2)}
    pairs = zip(prompts, prompts, strict=True) if one_prompt else permutations(prompts, 2)
    across = {(one, two): _likeness(a[one], b[two]) for one, two in pairs}

    def measured(without: int | None = None) -> Sides:
        """For each experiment, the agreement of both sides."""
        left = [[likeness for pair, likeness in side.items() if without not in pair] for side in (own, across)]
        return np.stack([np.mean(side, axis=0) for side in left], axis=-1)

    every = measured()
    return OnTask(
        whole=_mean(every),
        without_prompt=np.array([_mean(measured(prompt)) for prompt in prompts]),
        n=a[0].n,
        over_items=(float(np.var(_gap(every), ddof=1)), len(every) - 1),
    )


def _likeness(one: Items, other: Items) -> Float[NDArray[np.float64], " experiment"]:
    """How alike two groupings are, in each experiment."""
    return each_replicate(Items("v-measure", {"assigned": one.columns["assigned"], "label": other.columns["assigned"]}))


def _gap(sides: Sides) -> Float[NDArray[np.float64], "*rest"]:
    return np.asarray(sides[..., 0] - sides[..., 1])


def _mean(sides: Sequence[Sides] | Sides) -> Sides:
    return np.asarray(np.mean(sides, axis=0))


_MEASURED: Final[dict[Agreement, tuple[str, str, Callable[[Sequence[Items], Sequence[Items]], OnTask]]]] = {
    "prompts": ("sts", "spearman", _over_prompts),
    "clusters": ("clustering", "v-measure", _of_clusters),
    "clusters under one prompt": ("clustering", "v-measure", partial(_of_clusters, one_prompt=True)),
}
"""What a claim is measured on: the kind of task, the metric of its items, and how far both sides agree on them."""
