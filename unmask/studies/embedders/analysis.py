"""Tests of one embedder against another: their scores on tasks of some kinds, and how far they agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations
from typing import Final

import numpy as np
from jaxtyping import Float

from unmask.errors import UnmaskError
from unmask.evaluation.results import Result, ResultStore
from unmask.io.array_types import NDArray
from unmask.statistics.bootstrap import METRICS, Items, each_replicate
from unmask.statistics.correlations import codes_of, correlations, ranks_of
from unmask.statistics.intervals import jackknife_variance
from unmask.statistics.paired import (
    PairedTest,
    SampledScores,
    VarianceSource,
    compare_on_items,
    compare_on_tasks,
    fewest_tasks,
    t_test,
)
from unmask.studies.claims.claim import Agreement
from unmask.tasks.kinds import is_of_words

_RESAMPLES = 2000


@dataclass(frozen=True)
class ScoredEmbedder:
    """An embedder on the tasks of a study: for each seed of its training, its results by task."""

    runs: tuple[dict[str, Result], ...]

    @property
    def models(self) -> tuple[str, ...]:
        """The model of each run."""
        return tuple(next(iter(run.values())).model for run in self.runs)

    def tasks(self, kinds: Sequence[str] = ()) -> list[str]:
        """The tasks of these kinds on which every run has a score. No kinds: all tasks on texts."""
        return [
            task
            for task, result in self.runs[0].items()
            if (result.kind in kinds if kinds else not is_of_words(result.kind))
            if all(task in run for run in self.runs)
        ]

    def points(self, tasks: Sequence[str]) -> Float[NDArray[np.float64], "seed task"]:
        """Main scores, 0 to 1."""
        return np.array([[run[task].main_score for task in tasks] for run in self.runs])

    def items(self, task: str, store: ResultStore) -> list[Items] | None:
        """For each run, the items of a task; None if it has none that can be resampled."""
        sets = [items for run in self.runs if (items := store.items(run[task])) is not None and items.n > 1]
        return sets if len(sets) == len(self.runs) else None


def compare_embedders(
    a: ScoredEmbedder, b: ScoredEmbedder, kinds: Sequence[str], store: ResultStore, family: int, less_on: Sequence[str] = ()
) -> tuple[PairedTest | None, PairedTest | None]:
    """The difference of a and b in points, on tasks of these kinds in general, and on these tasks alone.

    It is the mean over the tasks that both were scored on. In general, the test is over tasks, and over seeds where there are several
    (`compare_on_tasks`). If the tasks are too few for one of `family` tests to be significant after Holm's correction, it is the second
    test: over the items of these tasks, and over seeds. The latter leaves out tasks without items. None without a task to test.

    less_on: kinds whose mean difference is subtracted. That is the interaction of designs and kinds of task, and is tested over items.
    """
    same_trainings = len(a.runs) > 1 and a.models == b.models  # two poolings of one trained model, for example
    tasks, items = _common_tasks(a, b, kinds), _items(a, b, kinds, store)
    subtracted = _items(a, b, less_on, store) if less_on else {}
    item_test = None
    if items and (subtracted or not less_on):
        weights = np.ones(len(items))
        if less_on:
            both = len(items) + len(subtracted)
            weights = np.array([both / len(items)] * len(items) + [-both / len(subtracted)] * len(subtracted))
            items |= subtracted
        resamples = max(_RESAMPLES, 100 * family)
        sampled = [
            SampledScores.draw(
                [pair[side] for pair in items.values()], resamples, points=system.points(list(items)), weights=weights
            )
            for side, system in enumerate((a, b))
        ]
        interaction = bool((weights != 1).any())
        item_test = compare_on_items(*sampled, same_trainings=same_trainings, interaction=interaction).in_percent()
    if less_on or len(tasks) < fewest_tasks(family):
        return item_test, item_test
    scores = [points[0] if len(points) == 1 else points for points in (a.points(tasks), b.points(tasks))]
    return compare_on_tasks(*scores, same_trainings=same_trainings).in_percent(), item_test


def _common_tasks(a: ScoredEmbedder, b: ScoredEmbedder, kinds: Sequence[str]) -> list[str]:
    scored = b.tasks(kinds)
    return [task for task in a.tasks(kinds) if task in scored]


def _items(
    a: ScoredEmbedder, b: ScoredEmbedder, kinds: Sequence[str], store: ResultStore
) -> dict[str, tuple[list[Items], list[Items]]]:
    """Both sides' items of each task that has some, by run."""
    pairs = {task: (a.items(task, store), b.items(task, store)) for task in _common_tasks(a, b, kinds)}
    return {task: (items_a, items_b) for task, (items_a, items_b) in pairs.items() if items_a and items_b}


Sides = Float[NDArray[np.float64], "... side"]
"""The agreement of both sides of a claim. The last dimension has two values: the claim's embedder, and its rival."""


@dataclass(frozen=True)
class TaskAgreement:
    """How far both sides of a claim agree on one task."""

    total: Sides
    """On all items, of shape (side,)."""
    without_prompt: Sides
    """Without each prompt, of shape (prompt, side)."""
    n: int
    over_items: VarianceSource
    """The variance of the difference of both sides over other items."""


def agreement_test(agreements: Mapping[str, Sequence[TaskAgreement]]) -> PairedTest | None:
    """The test of a claim about agreement, from `agreements`. None if it was measured on no task.

    The difference is the mean over tasks and runs, in percent. Its variance is the one over the items of each task, plus the one over
    prompts (jackknife), plus the one over runs if a model was trained with several seeds. So the test is about other items of these tasks,
    about other prompts, and about other trainings where there are several. Runs of one task share its items, so their variances over items
    are averaged, not added up.
    """
    if not agreements:
        return None
    firsts = [runs[0] for runs in agreements.values()]
    variances = [float(np.mean([run.over_items[0] for run in runs])) for runs in agreements.values()]
    sources = [(part / len(firsts) ** 2, first.over_items[1]) for part, first in zip(variances, firsts, strict=True)]
    prompts = np.mean([np.mean([run.without_prompt for run in runs], axis=0) for runs in agreements.values()], axis=0)
    sources.append((jackknife_variance(_side_difference(prompts)), len(prompts) - 1))
    per_run = np.mean([[_side_difference(run.total) for run in runs] for runs in agreements.values()], axis=0)
    if len(per_run) > 1:
        sources.append((float(np.var(per_run, ddof=1)) / len(per_run), len(per_run) - 1))
    units = "items, prompts and seeds" if len(per_run) > 1 else "items and prompts"
    return t_test(float(per_run.mean()), sources, sum(first.n for first in firsts), units).in_percent()


def agreements(
    agreement_kind: Agreement, a: Sequence[ScoredEmbedder], b: Sequence[ScoredEmbedder], store: ResultStore
) -> dict[str, list[TaskAgreement]]:
    """How far both sides of a claim agree, for each task that it is measured on, and each run of a training.

    Everything is computed from the stored predictions: similarities of text pairs, and clusters of texts. a, b: two
    embedders, each under the same prompts in the same order. agreement_kind:

    - `prompts`: the mean rank correlation of the similarities under two prompts (Spearman, over the pairs of a task of STS), of a and of b.
    - `clusters`: how similar two groupings of the texts of a task of clustering are (V-measure, the mean over mteb's experiments). First
      the mean over every two prompts of a, then the mean over every two prompts of a under one of them with b under the other. So both
      sides have two prompts, and only the second one has two embedders.
    - `clusters under one prompt`: the same, but the second side is a with b under the same prompt. What the prompt does to both makes
      them more similar. So a difference says that the embedder changes groupings more than the prompt does.

    A task is left out if not all of them have items that can be compared. Raises UnmaskError if their items are not the same.
    """
    kind, metric, measure = _MEASURED[agreement_kind]
    by_task: dict[str, list[TaskAgreement]] = {}
    for task in a[0].tasks([kind]):
        items = [scored.items(task, store) if task in scored.runs[0] else None for scored in (*a, *b)]
        comparable = [runs for runs in items if runs and all(_is_comparable(run, metric) for run in runs)]
        if len(comparable) < len(items):
            continue
        by_task[task] = []
        for run in zip(*comparable, strict=True):
            gold = str(METRICS[run[0].metric].gold)
            if any(not np.array_equal(items.columns[gold], run[0].columns[gold]) for items in run[1:]):
                raise UnmaskError(
                    f"'{task}' has other items under some prompts, so their agreement says nothing. Remove its scores."
                )
            by_task[task].append(measure(run[: len(a)], run[len(a) :]))
    return by_task


def _is_comparable(items: Items, metric: str) -> bool:
    """mteb gives means where a task has several sets of texts. One experiment has no variance.

    With a weight, an experiment draws many more texts than there are. Then it is not a bootstrap sample of them.
    """
    return items.metric == metric and (metric != "v-measure" or (items.replicates > 1 and "weight" not in items.columns))


def _agreement_over_prompts(a: Sequence[Items], b: Sequence[Items]) -> TaskAgreement:
    """The variance over items is by jackknife."""
    table = np.column_stack([items.columns["predicted"] for items in (*a, *b)])
    codes, prompts = codes_of(table), range(len(a))

    def agreement(counts: NDArray[np.int64], prompts: Sequence[int] = prompts) -> list[float]:
        matrix = correlations(ranks_of(codes, counts), counts)
        sides = (matrix, matrix[len(a) :, len(a) :])
        return [float(np.mean([side[pair] for pair in combinations(prompts, 2)])) for side in sides]

    once = np.ones(len(table), np.int64)
    without_item = np.array([agreement(once - item) for item in np.eye(len(table), dtype=np.int64)])
    return TaskAgreement(
        total=np.array(agreement(once)),
        without_prompt=np.array(
            [agreement(once, [other_prompt for other_prompt in prompts if other_prompt != prompt]) for prompt in prompts]
        ),
        n=len(table),
        over_items=(jackknife_variance(_side_difference(without_item)), len(table) - 1),
    )


def _agreement_over_clusters(a: Sequence[Items], b: Sequence[Items], *, one_prompt: bool = False) -> TaskAgreement:
    """one_prompt: whether a and b are compared under the same prompt only. The variance over items is the one between mteb's experiments.

    Each of them draws as many texts as there are, with replacement, and fits k-means again. So it is a bootstrap sample of the texts, and
    the variance between experiments is the bootstrap's, with the noise of k-means in it. A mean over experiments has less of this noise, so
    the variance is rather too large.
    """
    prompts = range(len(a))
    within = {(first, second): _cluster_similarity(a[first], a[second]) for first, second in combinations(prompts, 2)}
    pairs = zip(prompts, prompts, strict=True) if one_prompt else permutations(prompts, 2)
    across = {(first, second): _cluster_similarity(a[first], b[second]) for first, second in pairs}

    def agreement(without: int | None = None) -> Sides:
        """For each experiment, the agreement of both sides."""
        sides = [[similarity for pair, similarity in side.items() if without not in pair] for side in (within, across)]
        return np.stack([np.mean(side, axis=0) for side in sides], axis=-1)

    total = agreement()
    return TaskAgreement(
        total=np.mean(total, axis=0),
        without_prompt=np.array([np.mean(agreement(prompt), axis=0) for prompt in prompts]),
        n=a[0].n,
        over_items=(float(np.var(_side_difference(total), ddof=1)), len(total) - 1),
    )


def _cluster_similarity(a: Items, b: Items) -> Float[NDArray[np.float64], " experiment"]:
    return each_replicate(Items("v-measure", {"assigned": a.columns["assigned"], "label": b.columns["assigned"]}))


def _side_difference(sides: Sides) -> Float[NDArray[np.float64], "*rest"]:
    return np.asarray(sides[..., 0] - sides[..., 1])


_MEASURED: Final[dict[Agreement, tuple[str, str, Callable[[Sequence[Items], Sequence[Items]], TaskAgreement]]]] = {
    "prompts": ("sts", "spearman", _agreement_over_prompts),
    "clusters": ("clustering", "v-measure", _agreement_over_clusters),
    "clusters under one prompt": ("clustering", "v-measure", partial(_agreement_over_clusters, one_prompt=True)),
}
"""What a claim is measured on: the kind of task, the metric of its items, and how far both sides agree on them."""
