"""Training gain: a trained embedder beside its base model without training, and beside a reference encoder, on the same tasks.

The results and the vectors lie in a folder as those of `compare` do: a comparison that was stopped continues, and several runs on one base
model score that base once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import mean

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan, compare
from unmask.evaluation.leader import points
from unmask.evaluation.reference_rows import compare_reference
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import comparisons, counted
from unmask.io.files import only_run_in
from unmask.io.records import Record
from unmask.io.terminal import say
from unmask.models.bundled import resolve
from unmask.models.loading import Source
from unmask.starter import reference_texts
from unmask.statistics.paired import PairedTest, told_apart
from unmask.tasks.task import Task

UNTRAINED = ("prompteol-z", "causal/plain/mean/zscore", "bidirectional/plain/mean/zscore")
"""Designs without training, the best first. If a base model cannot serve one, it is read by the next."""

REFERENCE = "minilm"
TRAINED = "trained"


class GainTest(Record):
    """The paired test of trained against untrained: see `PairedTest`. p: corrected by Holm. effect: None if it is infinite.

    told_apart: whether the two differ.
    """

    test: str
    n: int
    unit: str
    difference: float
    p: float
    effect: float | None
    effect_name: str
    interval: tuple[float, float]
    level: float
    told_apart: bool


class TrainingGain(Record):
    """What a training brought.

    kinds: the kind of each task that all systems were scored on. untrained: the design of the base model. scores: main scores (0 to 1) of
    each system by task; the trained embedder comes first, then the untrained design, then the reference encoder if it is installed. test:
    None if no task has scores of its single items and there are too few tasks. left_out: tasks that the test does not use, and why.
    """

    kinds: dict[str, str]
    untrained: str
    scores: dict[str, dict[str, float]]
    test: GainTest | None
    left_out: dict[str, str]

    @property
    def table(self) -> list[list[str]]:
        """A header and a row for each system: mean main scores x 100 over the tasks of each kind, and over all tasks."""
        kinds = list(dict.fromkeys(self.kinds.values()))
        names = {self.untrained: f"untrained {self.untrained}"}
        rows = [
            [names.get(system, system), *(_mean(self._of(scores, kind)) for kind in kinds), _mean(list(scores.values()))]
            for system, scores in self.scores.items()
        ]
        return [["", *kinds, "mean"], *rows]

    def _of(self, scores: dict[str, float], kind: str) -> list[float]:
        return [score for task, score in scores.items() if self.kinds[task] == kind]

    @property
    def sentence(self) -> str:
        """Whether the training was worth it, in one sentence with its test."""
        tested = {task: kind for task, kind in self.kinds.items() if task not in self.left_out}
        where = f"{counted(len(tested), 'task')} of {counted(len(set(tested.values())), 'kind')}"
        than = f"the untrained `{self.untrained}` of its base"
        if self.test is None:
            return f"This model was not tested against {than}: no task has scores of its single items."
        verdict = "not told apart from"
        if self.test.told_apart:
            verdict = "better than" if self.test.difference > 0 else "worse than"
        low, high = (points(bound) for bound in self.test.interval)
        distance = f"difference {points(self.test.difference)}, {100 * self.test.level:g} % interval [{low}, {high}]"
        chance = "p < 0.001" if self.test.p < 0.001 else f"p = {self.test.p:.3f}"
        return f"Over {where} this model is {verdict} {than} ({distance}, {chance}; {self.test.test}, {self.test.n} {self.test.unit})."


def training_gain(
    trained: Source, design: Design, base: Source, tasks: Sequence[Task], max_length: int, folder: Path
) -> TrainingGain:
    """Score a trained embedder, the best untrained design of its base model, and the reference encoder.

    folder: keeps the results, so that nothing is scored twice. max_length: most tokens of a text, for both models. A reference encoder
    that is not installed is left out. Raises UnmaskError if the trained embedder or its base has no score.
    """
    with only_run_in(folder):
        store = ResultStore(folder)
        own = compare(ComparisonPlan(trained, {TRAINED: design}, tasks, max_length, reference_texts()), store)
        untrained = _untrained(base, tasks, max_length, store)
        rows = [_scored(own, trained.model, store), untrained, _reference(tasks, store)]
        return _gain([row for row in rows if row], store)


def _untrained(base: Source, tasks: Sequence[Task], max_length: int, store: ResultStore) -> list[Result]:
    """Results of the first untrained design that the base model can serve. Raises UnmaskError with the last reason if it serves none."""
    for name in UNTRAINED:
        plan = ComparisonPlan(base, {name: Design.parse(name)}, tasks, max_length, reference_texts())
        try:
            return _scored(compare(plan, store), base.model, store)
        except UnmaskError as error:
            reason = error
            say(f"{base.model} cannot be read as {name}: {error}")
    raise reason


def _scored(results: list[Result], model: str, store: ResultStore) -> list[Result]:
    """The same results. Raises UnmaskError with a reason if there are none."""
    if not results:
        reason = next(failure.error for failure in reversed(store.failures) if failure.model == model)
        raise UnmaskError(f"'{model}' has no score on any task to compare on: {reason}")
    return results


def _reference(tasks: Sequence[Task], store: ResultStore) -> list[Result]:
    try:
        resolve(REFERENCE)
    except UnmaskError as error:
        say(f"compared without {REFERENCE}: {error}")
        return []
    return compare_reference(REFERENCE, tasks, store)


def _gain(rows: Sequence[Sequence[Result]], store: ResultStore) -> TrainingGain:
    """The gain from the results of each system, on the tasks that all of them were scored on. Raises UnmaskError without such a task."""
    shared = [result.task for result in rows[0] if all(result.task in {other.task for other in row} for row in rows)]
    if not shared:
        raise UnmaskError("No task to compare on was scored for all: the trained embedder, its base and the reference.")
    ours, theirs, *_ = common = [[result for result in row if result.task in shared] for row in rows]
    tests = comparisons([*ours, *theirs], store)
    return TrainingGain(
        kinds={result.task: result.kind for result in ours},
        untrained=theirs[0].label,
        scores={row[0].label: {result.task: result.main_score for result in row} for row in common},
        test=_recorded(tests[0].outcome) if tests else None,
        left_out=tests[0].left_out if tests else {},
    )


def _recorded(test: PairedTest) -> GainTest:
    fields = {name: getattr(test, name) for name in GainTest.model_fields if hasattr(test, name)}
    changes = {
        "p": test.p if test.p_holm is None else test.p_holm,
        "effect": test.effect if isfinite(test.effect) else None,  # JSON has no infinity
        "told_apart": told_apart(test),
    }
    return GainTest.model_validate(fields | changes)


def _mean(scores: Sequence[float]) -> str:
    return points(mean(scores))
