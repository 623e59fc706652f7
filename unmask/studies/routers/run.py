"""Runs the study on one base model: seed by seed, and within a seed configuration by configuration. The report follows after each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.files import only_run_in
from unmask.models.decoder import body_of, find_layers
from unmask.models.identity import identity_of
from unmask.models.loading import Source, load_base_language_model, pick_device, precision_of
from unmask.models.routers import find_routers
from unmask.models.source import lasting_name
from unmask.moe.experts.lessons.lessons import tokenize_lessons
from unmask.moe.experts.records import LessonsRecord, RunRecord, write_or_check
from unmask.studies.learning_plan import LearningRecord
from unmask.studies.results import RECORD
from unmask.studies.results_file import ResultsFile
from unmask.studies.routers.analysis import noise_of
from unmask.studies.routers.anchor import find_anchor
from unmask.studies.routers.builder import Builder
from unmask.studies.routers.cell import Cell, Measuring
from unmask.studies.routers.configurations import CONFIGURATIONS, OWN, STANDARD, rests_on
from unmask.studies.routers.contest import Contest, decide, most_distinct
from unmask.studies.routers.findings import Findings, Measured, findings_of
from unmask.studies.routers.lesson_sets import LessonSet, draw
from unmask.studies.routers.plan import PAPER, RoutersPlan
from unmask.studies.routers.same_experts import SameExperts
from unmask.studies.sheet import Sheet
from unmask.tasks.task import Task


class RoutersRecord(LearningRecord):
    """The content of `study.json`: the settings that may not change while a study goes on, and its lessons by set of domains.

    A study that grows may need more sets. Those that it had before may not change.
    """

    lessons: dict[str, dict[str, LessonsRecord]]

    def with_sets_of(self, before: RoutersRecord) -> RoutersRecord:
        """The same record, with the sets that only an earlier run had."""
        return self.model_copy(update={"lessons": {**before.lessons, **self.lessons}})

    def is_same(self, before: RunRecord, folder: Path) -> bool:
        """Whether an earlier run had the same settings, and the same lessons in the sets that both have."""
        assert isinstance(before, RoutersRecord)
        common = {name: before.lessons.get(name, lessons) for name, lessons in self.lessons.items()}
        return super().is_same(before.model_copy(update={"lessons": common}), folder)


def study(
    plan: RoutersPlan,
    source: Source,
    root: Path,
    tasks: Sequence[Task],
    folder: Path,
    write: Callable[[Findings, Path], Sequence[Sheet]],
    callbacks: Sequence[Any] = (),
    command: str = "",
    scale: str = "",
) -> Findings:
    """Run the plan on one base model. A stopped study continues, and configurations and seeds can be added. Raises UnmaskError.

    write: writes the report, and gives its tables. command, scale: what started the run, for the results.
    """
    with only_run_in(folder):
        model, tokenizer = load_base_language_model(source)
        if find_routers(model):
            raise UnmaskError(
                f"'{source.model}' is a mixture of experts already, and this study builds mixtures from a dense model."
            )
        sets = draw(plan, root, folder / "lessons", lambda lesson: _tokens(tokenizer, lesson))
        record = _record(plan, source, tasks, sets)
        if (before := RoutersRecord.read(folder / RECORD)) is not None:
            record = record.with_sets_of(before)
        write_or_check(folder / RECORD, record)
        results = ResultsFile(
            folder, record, pick_device(source.device), study="routers", paper=PAPER, command=command, scale=scale,
            data=_data(record, tasks), rests_on=rests_on(plan.configurations),
        )  # fmt: skip
        layers = len(find_layers(body_of(model)))
        first = CONFIGURATIONS[STANDARD].domains
        measured = Measured(find_anchor(model, tokenizer, sets[first].learned, plan.max_length))
        del model
        builder = Builder(plan, source, sets, folder, measured.anchor.layer, layers, callbacks)
        measuring = Measuring(source, folder / "cells", tasks, plan.max_length, plan.embedded_length)
        experts = SameExperts()
        _require_training(plan, builder, measuring)
        for name, lessons in sets.items():
            measured.bases[name] = measuring.base(name, lessons.held_out)
        for seed in plan.seeds:
            if any(CONFIGURATIONS[name].choice and measuring.known(name, seed) is None for name in plan.configurations):
                builder.mixture(STANDARD, seed)  # first: a router that is made again is another one, for all of its choices
            for name in plan.configurations:
                cell = _cell(name, seed, builder, measuring, experts)
                measured.cells.setdefault(name, {})[seed] = cell
                # a finished report is not replaced by a part of it
                if STANDARD in measured.cells and cell.fresh and not results.finished_before:
                    _write(findings_of(measured, plan.claims), results, folder, write, finished=False)
        measured.contest = _contest(plan, measured, builder, measuring, experts)
        findings = findings_of(measured, plan.claims)
        _write(findings, results, folder, write, finished=True)
        return findings


def _require_training(plan: RoutersPlan, builder: Builder, measuring: Measuring) -> None:
    """Raise UnmaskError for a device that the training refuses, if something is left to train: the base is measured before that."""
    if any(_kept(name, seed, builder, measuring) is None for name in plan.configurations for seed in plan.seeds):
        plan.expert_learning(plan.number, seed=0).require_first_gpu(builder.source.device)


def _kept(name: str, seed: int, builder: Builder, measuring: Measuring) -> Cell | None:
    """A cell that was measured before, and whose mixture was removed since: mixtures are large, and what was measured stays."""
    return None if builder.folder_of(name, seed).exists() else measuring.known(name, seed)


def _cell(name: str, seed: int, builder: Builder, measuring: Measuring, experts: SameExperts) -> Cell:
    """A cell. experts: those of the cells before. Raises UnmaskError if this one was measured with others."""
    cell = _kept(name, seed, builder, measuring)
    if cell is None:
        held_out = builder.sets[CONFIGURATIONS[name].domains].held_out
        cell = measuring.cell(name, seed, builder.mixture(name, seed), held_out)
    experts.require(f"'{name}' with seed {seed}", cell.experts)
    return cell


def _contest(
    plan: RoutersPlan, measured: Measured, builder: Builder, measuring: Measuring, experts: SameExperts
) -> Contest | None:
    best = most_distinct(findings_of(measured, ()).rows.values())
    if best is None or OWN not in plan.configurations or not plan.fresh_seeds:
        return None
    fresh = {name: {seed: _cell(name, seed, builder, measuring, experts) for seed in plan.fresh_seeds} for name in (OWN, best)}
    return decide(best, fresh, measured.bases, noise_of(measured.cells, measured.bases))


def _write(
    findings: Findings,
    results: ResultsFile,
    folder: Path,
    write: Callable[[Findings, Path], Sequence[Sheet]],
    *,
    finished: bool,
) -> None:
    results.write(findings.as_json(), findings.papers, write(findings, folder), finished=finished)


def _data(record: RoutersRecord, tasks: Sequence[Task]) -> dict[str, str]:
    """What the study measures on: lessons of each set of domains, and tasks."""
    lessons = {f"{name}, {part}": said.words for name, parts in record.lessons.items() for part, said in parts.items()}
    return {**lessons, **{task.name: task.revision for task in tasks}}


def _record(plan: RoutersPlan, source: Source, tasks: Sequence[Task], sets: Mapping[str, LessonSet]) -> RoutersRecord:
    settled = plan.settled("configurations", "seeds", "fresh_seeds", "domains", "tasks")
    return RoutersRecord(
        model=lasting_name(source.model),
        base_weights=identity_of(source).revision,
        dtype=precision_of(source),
        plan={**settled, "tasks": [f"{task.name} {task.revision}" for task in tasks]},
        lessons={
            name: {
                f"{domain} {part}": LessonsRecord.of(lessons)
                for part, by_domain in (("learned", own.learned), ("held out", own.held_out))
                for domain, lessons in by_domain.items()
            }
            for name, own in sets.items()
        },
    )


def _tokens(tokenizer: Any, lesson: Any) -> int:
    [tokens] = tokenize_lessons(tokenizer, [lesson], 2**30)
    return len(tokens.ids)
