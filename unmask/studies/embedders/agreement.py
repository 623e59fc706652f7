"""The test of a claim about agreement: of one embedder under several prompts, and of two embedders with each other.

Everything comes from what the store keeps of tasks that were scored: the similarities of pairs of texts, and the clusters of texts. So no
model is run, and a claim about agreement can be tested again as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unmask.evaluation.results import ResultStore
from unmask.probing.clusters import contingency, normalised_mutual_information, without_each_text
from unmask.statistics.bootstrap import METRICS, Items
from unmask.statistics.correlations import codes_of, correlations, ranks_of
from unmask.statistics.jackknife import jackknife_variance
from unmask.statistics.paired import PairedTest
from unmask.statistics.variance_sources import t_of_sources
from unmask.studies.claims.claim import Agreement
from unmask.studies.embedders.contrast import Scored, in_points

Sides = Float[NDArray[np.float64], "... side"]
"""The agreement of both sides of a claim. The last dimension has two values: that of the claim's embedder, and that of its rival."""


@dataclass(frozen=True)
class OnTask:
    """How far both sides agree on one task.

    whole: on all items, of shape (side,). without_item: without each item, (item, side). without_prompt: without each prompt,
    (prompt, side).
    """

    whole: Sides
    without_item: Sides
    without_prompt: Sides


def agreement_test(agreements: Mapping[str, Sequence[OnTask]]) -> PairedTest | None:
    """The test of a claim about agreement, from `agreements`. None if it was measured on no task.

    The difference is the mean over tasks and runs, in percent. Its variance is that over the items of each task, plus that over prompts
    (both by jackknife), plus that over runs if a model was trained with several seeds. So the test is about other items of these tasks,
    and about other prompts.
    """
    if not agreements:
        return None
    items = [_mean([run.without_item for run in runs]) for runs in agreements.values()]
    prompts = _mean([_mean([run.without_prompt for run in runs]) for runs in agreements.values()])
    sources = [(jackknife_variance(gap) / len(items) ** 2, len(gap) - 1) for gap in map(_gap, items)]
    sources.append((jackknife_variance(_gap(prompts)), len(prompts) - 1))
    per_run = np.mean([[_gap(run.whole) for run in runs] for runs in agreements.values()], axis=0)
    if len(per_run) > 1:
        sources.append((float(np.var(per_run, ddof=1)) / len(per_run), len(per_run) - 1))
    return in_points(t_of_sources(float(per_run.mean()), sources, sum(map(len, items)), "items and prompts (jackknife)"))


def agreements(what: Agreement, a: Sequence[Scored], b: Sequence[Scored], store: ResultStore) -> dict[str, list[OnTask]]:
    """How far both sides of a claim agree, for each task that it is measured on, and each run of a training.

    a, b: two embedders, each under the same prompts in the same order. what:

    - `prompts`: the mean rank correlation of the similarities under two prompts (Spearman, over the pairs of a task of STS), of a and of b.
    - `clusters`: how alike two groupings of the texts of a task of clustering are (V-measure, the mean over all k-means runs). First the
      mean over every two prompts of a, then the mean over prompts of a with b under the same prompt.

    A task is left out if not all of them have items that can be compared. Raises ValueError if their items are not the same.
    """
    metric, measured = _MEASURED[what]
    found = {}
    for task in a[0].tasks([_KIND_OF[metric]]):
        items = [one.items(task, store) if task in one.runs[0] else None for one in (*a, *b)]
        known = [runs for runs in items if runs and all(run.metric == metric for run in runs)]
        if len(known) == len(items):
            found[task] = [measured(*_paired(task, run, len(a))) for run in zip(*known, strict=True)]
    return found


def _paired(task: str, run: Sequence[Items], prompts: int) -> tuple[Sequence[Items], Sequence[Items]]:
    """The items of a and of b. Raises ValueError if they are not of the same texts."""
    given = METRICS[run[0].metric].given
    if any(not np.array_equal(items.columns[str(given)], run[0].columns[str(given)]) for items in run[1:]):
        raise ValueError(f"'{task}' has other items under some prompts, so their agreement says nothing. Remove its scores.")
    return run[:prompts], run[prompts:]


def _over_prompts(a: Sequence[Items], b: Sequence[Items]) -> OnTask:
    table = np.column_stack([items.columns["predicted"] for items in (*a, *b)])
    codes, prompts = codes_of(table), range(len(a))

    def measured(counts: NDArray[np.int64], left: Sequence[int] = prompts) -> list[float]:
        matrix = correlations(ranks_of(codes, counts), counts)
        return [_mean_pair(matrix, left), _mean_pair(matrix[len(a) :, len(a) :], left)]

    every = np.ones(len(table), np.int64)
    return OnTask(
        whole=np.array(measured(every)),
        without_item=np.array([measured(every - one) for one in np.eye(len(table), dtype=np.int64)]),
        without_prompt=np.array([measured(every, [other for other in prompts if other != prompt]) for prompt in prompts]),
    )


def _mean_pair(matrix: Float[NDArray[np.float64], "column column"], left: Sequence[int]) -> float:
    return float(np.mean([matrix[pair] for pair in combinations(left, 2)]))


def _of_clusters(a: Sequence[Items], b: Sequence[Items]) -> OnTask:
    """The first row of a pair's likeness is that of all texts, the others are without each text."""
    own = {pair: _likeness(a[pair[0]], a[pair[1]]) for pair in combinations(range(len(a)), 2)}
    each_other = [_likeness(one, other) for one, other in zip(a, b, strict=True)]

    def measured(without: int | None = None) -> Sides:
        pairs = [likeness for pair, likeness in own.items() if without not in pair]
        across = [likeness for prompt, likeness in enumerate(each_other) if prompt != without]
        return np.stack([np.mean(pairs, axis=0), np.mean(across, axis=0)], axis=-1)

    every = measured()
    return OnTask(every[0], every[1:], np.array([measured(prompt)[0] for prompt in range(len(a))]))


def _likeness(one: Items, other: Items) -> Float[NDArray[np.float64], " text_or_none"]:
    """How alike two groupings are, the mean over k-means runs: of all texts, then without each text."""
    runs = list(zip(one.columns["assigned"].T, other.columns["assigned"].T, strict=True))
    whole = [normalised_mutual_information(contingency(*run)) for run in runs]
    left_out = [without_each_text(normalised_mutual_information, *run) for run in runs]
    return np.concatenate([[np.mean(whole)], np.mean(left_out, axis=0)])


def _gap(sides: Sides) -> Float[NDArray[np.float64], ...]:
    return np.asarray(sides[..., 0] - sides[..., 1])


def _mean(sides: Sequence[Sides]) -> Sides:
    return np.asarray(np.mean(sides, axis=0))


_MEASURED: Final[dict[Agreement, tuple[str, Callable[[Sequence[Items], Sequence[Items]], OnTask]]]] = {
    "prompts": ("spearman", _over_prompts),
    "clusters": ("v-measure", _of_clusters),
}
_KIND_OF: Final = {"spearman": "sts", "v-measure": "clustering"}
