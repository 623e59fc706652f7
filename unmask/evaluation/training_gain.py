"""Training gain: a trained embedder compared with its untrained base model and a reference model, on the same tasks.

Results and vectors are stored in a folder, as in `score_designs`: an interrupted comparison resumes, and several runs on one base
model score that base once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import mean

from pydantic import Field

from unmask.designs.design import Design
from unmask.designs.presets import DEFAULT_DESIGN
from unmask.errors import UnmaskError
from unmask.evaluation.leader import points
from unmask.evaluation.reference_models import score_if_installed
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.scoring import ScoringPlan, forget_vectors, score_designs
from unmask.evaluation.verdict import comparisons
from unmask.io.files import only_run_in
from unmask.io.records import Record
from unmask.io.terminal import counted, say
from unmask.models.loading import Source
from unmask.starter import reference_texts
from unmask.statistics.paired import PairedTest
from unmask.tasks.task import Task

UNTRAINED = (DEFAULT_DESIGN, "causal/plain/mean/zscore", "bidirectional/plain/mean/zscore")
"""Designs without training, the best first. If a base model cannot serve one, it is read by the next."""

REFERENCE = "minilm"
TRAINED = "trained"
BLANK = "\u2013"  # where a mean has no score of some task


class GainTest(Record):
    """The paired test of trained against untrained: see `PairedTest`."""

    test: str
    n: int
    unit: str
    difference: float
    p: float
    """Corrected by Holm."""
    effect: float | None
    """None if it is infinite."""
    effect_name: str
    interval: tuple[float, float]
    level: float
    is_significant: bool
    """Whether the test shows one of the two to be better."""

    @classmethod
    def of(cls, test: PairedTest) -> GainTest:
        """The record of a test."""
        fields = {name: getattr(test, name) for name in cls.model_fields if hasattr(test, name)}
        effect = test.effect if isfinite(test.effect) else None  # JSON has no infinity
        return cls.model_validate(fields | {"p": test.corrected_p, "effect": effect, "is_significant": test.winner is not None})


def revisions_of(tasks: Sequence[Task]) -> dict[str, str]:
    """The revision of each task."""
    return {task.name: task.revision for task in tasks}


class TrainingGain(Record):
    """What a training brought."""

    kinds: dict[str, str]
    """The kind of each task that the trained embedder and its untrained base were scored on."""
    untrained: str
    """The design of the base model."""
    scores: dict[str, dict[str, float]]
    """Main scores (0 to 1) of each system by task: the trained embedder, the untrained design, then the reference model if it is
    installed."""
    test: GainTest | None
    """None if no task has scores of its single items and there are too few tasks."""
    left_out: dict[str, str]
    """Tasks that the test does not use, and why."""
    blank: dict[str, str] = Field(default_factory=dict)
    """Tasks of `kinds` that the reference model has no score on, and why."""
    complete: bool = True
    """Nothing failed; if not, another try may score more."""
    unsearched: tuple[str, ...] = ()
    """Tasks whose texts were not searched for in the training data."""
    kept_leaks: bool = False
    """Whether leaks of any task stayed there."""
    runs: int = 1
    """Of the recipe, each with its own test."""
    revisions: dict[str, str] = Field(default_factory=dict)
    """Of the tasks."""

    def is_of(self, tasks: Sequence[Task]) -> bool:
        """Whether nothing failed, and the tasks have not changed since."""
        return self.complete and self.revisions == revisions_of(tasks)

    @property
    def table(self) -> list[list[str]]:
        """A header and a row for each system: mean main scores x 100 over the tasks of each kind, and over all tasks.

        A mean that lacks the score of a task is blank, because it would not be comparable.
        """
        kinds = list(dict.fromkeys(self.kinds.values()))
        columns = [[task for task, of_task in self.kinds.items() if of_task == kind] for kind in kinds] + [list(self.kinds)]
        rows = [["", *kinds, "mean"]]
        for system, scores in self.scores.items():
            name = f"untrained {system}" if system == self.untrained else system
            means = [
                points(mean(scores[task] for task in tasks)) if scores.keys() >= set(tasks) else BLANK for tasks in columns
            ]
            rows.append([name, *means])
        return rows

    @property
    def notes(self) -> list[str]:
        """Caveats to the sentence and the table, one sentence each."""
        notes = [f"The test leaves out {task}: {_as_sentence(reason)}" for task, reason in self.left_out.items()]
        if self.runs > 1 and self.test is not None:
            notes.insert(
                0,
                f"The recipe trained {self.runs} models, and each is tested alone: p and interval are not corrected for that, because this "
                f"card is written before the next model is tested. To claim the best of them, multiply p by {self.runs} (Bonferroni).",
            )
        notes += [f"{REFERENCE} has no score on {task}: {_as_sentence(reason)}" for task, reason in self.blank.items()]
        if not self.complete:
            notes.append("The same command tries again what failed.")
        if self.kept_leaks:
            notes.append("Texts of these tasks stayed in the training data.")
        elif self.unsearched:
            notes.append(f"The texts of {', '.join(self.unsearched)} were not searched for in the training data.")
        return notes

    @property
    def sentence(self) -> str:
        """Whether the training was worth it, in one sentence with its test."""
        tested = {task: kind for task, kind in self.kinds.items() if task not in self.left_out}
        scope = f"{counted(len(tested), 'task')} of {counted(len(set(tested.values())), 'kind')}"
        baseline = f"the untrained `{self.untrained}` of its base"
        if self.test is None:
            return f"This model was not tested against {baseline}: no task has scores of its single items."
        verdict = "not significantly different from"
        if self.test.is_significant:
            verdict = "better than" if self.test.difference > 0 else "worse than"
        low, high = (points(bound) for bound in self.test.interval)
        distance = f"difference {points(self.test.difference)}, {100 * self.test.level:g} % interval [{low}, {high}]"
        chance = "p < 0.001" if self.test.p < 0.001 else f"p = {self.test.p:.3f}"
        return f"Over {scope} this model is {verdict} {baseline} ({distance}, {chance}; {self.test.test}, {self.test.n} {self.test.unit})."


def training_gain(
    trained: Source, design: Design, base: Source, tasks: Sequence[Task], max_length: int, folder: Path
) -> TrainingGain:
    """Score a trained embedder, the best untrained design of its base model, and the reference model.

    folder: keeps the results, so that nothing is scored twice. max_length: most tokens of a text, for both models. A reference model that
    is not installed is left out. Raises UnmaskError if no task has a score for both, the trained embedder and its base.
    """
    with only_run_in(folder):
        store = ResultStore(folder)
        ours = score_designs(ScoringPlan(trained, {TRAINED: design}, tasks, max_length, reference_texts()), store)
        untrained = _score_untrained(base, tasks, max_length, store)
        _require_scored(ours, trained.model, store)
        forget_vectors(store)
        reference = score_if_installed(REFERENCE, tasks, store)
        systems = {(ours[0].model, ours[0].label): ours, (untrained[0].model, untrained[0].label): untrained}
        if reference is not None:
            systems[REFERENCE, REFERENCE] = reference
        scores = {label: {result.task: result.main_score for result in results} for (_, label), results in systems.items()}
        # the last reason why a system has no score on a task
        failures = {(failure.model, failure.label, failure.task): failure for failure in store.failures}
        missing = {
            label: {task.name: failures.get((model, label, task.name)) for task in tasks if task.name not in scores[label]}
            for model, label in systems
        }
        of_ours, of_untrained = missing[ours[0].label], missing[untrained[0].label]
        shared = [result for result in ours if result.task not in of_untrained]
        if not shared:
            reasons = "; ".join(f"{task}: {failure.error}" for task, failure in (of_ours | of_untrained).items() if failure)
            raise UnmaskError(f"No task to compare on was scored for both, the trained embedder and its base: {reasons}")
        why = {
            label: {
                task: f"not scored for {label}" + (f", {failure.error}" if failure else "")
                for task, failure in of_label.items()
            }
            for label, of_label in missing.items()
        }
        lacking = why[ours[0].label] | why[untrained[0].label]
        tests = comparisons([*ours, *untrained], store)
        kinds = {result.task: result.kind for result in shared}
        return TrainingGain(
            kinds=kinds,
            untrained=untrained[0].label,
            scores={label: {task: score for task, score in row.items() if task in kinds} for label, row in scores.items()},
            test=GainTest.of(tests[0].outcome) if tests else None,
            left_out=(tests[0].left_out if tests else {}) | lacking,
            blank={task: reason for task, reason in why.get(REFERENCE, {}).items() if task not in lacking},
            complete=not any(failure and failure.applies for row in missing.values() for failure in row.values()),
        )


def _score_untrained(base: Source, tasks: Sequence[Task], max_length: int, store: ResultStore) -> list[Result]:
    """Results of the first untrained design that the base model can serve. Raises UnmaskError with the last reason if it serves none."""
    for name in UNTRAINED:
        plan = ScoringPlan(base, {name: Design.parse(name)}, tasks, max_length, reference_texts())
        try:
            results = score_designs(plan, store)
        except UnmaskError as error:  # refused before anything was computed; later failures are not caused by the design
            reason = error
            say(f"{base.model} cannot be read as {name}: {error}")
        else:
            _require_scored(results, base.model, store)
            return results
    raise reason


def _require_scored(results: list[Result], model: str, store: ResultStore) -> None:
    """Raise UnmaskError with a reason if there are no results."""
    if not results:
        reason = next(failure.error for failure in reversed(store.failures) if failure.model == model)
        raise UnmaskError(f"'{model}' has no score on any task to compare on: {reason}")


def _as_sentence(reason: str) -> str:
    return " ".join(reason.split()).rstrip(".") + "."
