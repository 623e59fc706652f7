"""Runs the study of routers on one base model: seed by seed, and within a seed configuration by configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError, require_package
from unmask.io.files import inside
from unmask.models.decoder import body_of, find_layers
from unmask.models.loading import load_base_language_model, precision_of
from unmask.models.routers import find_routers
from unmask.moe.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.moe.experts.mixing import Ingredients
from unmask.moe.experts.records import LessonsRecord
from unmask.studies.mixtures import MixtureBuilder, lessons_record
from unmask.studies.routers.analysis import most_distinct, noise_of, replicate, rows_of
from unmask.studies.routers.cells import TOGETHER, Cell, CellMeasurements, SameExperts, find_anchor
from unmask.studies.routers.configurations import CONFIGURATIONS, OWN, STANDARD, rests_on
from unmask.studies.routers.findings import MeasuredCells, RoutersFindings
from unmask.studies.routers.plan import PAPER, LessonSet, RoutersPlan, draw
from unmask.studies.study import Study
from unmask.tasks.find import resolve_tasks, specs_below


@dataclass(frozen=True, kw_only=True)
class RoutersBuilder(MixtureBuilder):
    """Trains the experts once, and a mixture for each configuration and seed."""

    plan: RoutersPlan
    sets: Mapping[str, LessonSet]
    anchor: int
    """The layer that decides in anchored configurations."""
    layers: int
    """Of the base model."""

    def folder_of(self, name: str, seed: int) -> Path:
        """Where the mixture of a configuration is, or will be. A configuration without training has the standard one."""
        name = STANDARD if CONFIGURATIONS[name].choice else name
        return inside(inside(self.folder / "mixtures", name.replace(" ", "-")), str(seed))

    def mixture(self, name: str, seed: int) -> Path:
        """The folder of a configuration's mixture."""
        name = STANDARD if CONFIGURATIONS[name].choice else name
        configuration = CONFIGURATIONS[name]
        lessons = self.sets[configuration.domains].group(configuration.experts)
        learning = self.plan.router_learning("example", len(lessons), trained=not configuration.untrained, seed=seed)
        if configuration.options.balance.weight:
            # a pass holds one domain, as a device does in the papers; without balance, passes only cost time
            learning = replace(learning, accumulate=len(lessons))

        def ingredients() -> Ingredients:
            experts = tuple(self._expert(configuration.domains, domain, of_domain) for domain, of_domain in lessons.items())
            all_lessons = [lesson for of_domain in self.sets[configuration.domains].learned.values() for lesson in of_domain]
            return Ingredients(
                experts, self._expert(configuration.domains, TOGETHER, all_lessons) if configuration.shared else None
            )

        routing = (
            replace(configuration.routing, from_layer=self.anchor, span=self.layers)
            if configuration.anchored
            else configuration.routing
        )
        return self.train_mixture(
            self.plan, self.folder_of(name, seed), lessons, routing, configuration.options,
            learning=learning, ingredients=ingredients,
        )  # fmt: skip

    def _expert(self, domains: str, name: str, lessons: Sequence[Lesson]) -> Path:
        # experts are the same for all seeds of routers
        folder = inside(inside(self.folder / "experts", domains), name)
        return self.train_expert(self.plan, folder, lessons, seed=0)


def run_study(plan: RoutersPlan, study: Study) -> RoutersFindings:
    """Run the plan on one base model. A stopped study continues, and configurations and seeds can be added. Raises UnmaskError.

    The report is written again after each cell.
    """
    require_package("mteb")
    tasks = resolve_tasks(specs_below(study.root, plan.tasks))
    source = replace(study.source, attn_implementation=plan.attn_implementation)
    study = replace(study, source=source)
    fixed = plan.fixed_settings("configurations", "seeds", "fresh_seeds", "domains", "tasks")
    fixed |= {"tasks": [f"{task.name} {task.revision}" for task in tasks]}
    with study.open(plan=fixed) as run:
        model, tokenizer = load_base_language_model(source)
        if find_routers(model):
            raise UnmaskError(
                f"'{source.model}' is a mixture of experts already, and this study builds mixtures from a dense model."
            )

        def tokens(lesson: Lesson) -> int:
            return len(tokenize_lessons(tokenizer, [lesson], 2**30)[0].ids)

        sets = draw(plan, study.root, study.folder / "lessons", tokens)
        for name, lesson_set in sets.items():
            for part, by_domain in (("learned", lesson_set.learned), ("held out", lesson_set.held_out)):
                run.check(
                    {f"{name}, {domain} {part}": LessonsRecord.of(drawn_set).words for domain, drawn_set in by_domain.items()}
                )
        # a study that grows may need more sets; the sets of earlier runs may not change
        recorded = {name: words for name, words in run.inputs.items() if name != "base model"}
        settings: dict[str, Any] = {"plan": fixed, "dtype": precision_of(source), "lessons": {}}
        for name, words in recorded.items():
            set_name, _, part = name.partition(", ")
            settings["lessons"].setdefault(set_name, {})[part] = lessons_record(words)
        data = recorded | {task.name: task.revision for task in tasks}
        study.start(run, settings, paper=PAPER, data=data, rests_on=rests_on(plan.configurations))
        layers = len(find_layers(body_of(model)))
        anchor = find_anchor(model, tokenizer, sets[CONFIGURATIONS[STANDARD].domains].learned, plan.max_length)
        del model
        builder = RoutersBuilder(
            plan=plan,
            source=source,
            sets=sets,
            folder=study.folder,
            anchor=anchor.layer,
            layers=layers,
            callbacks=study.callbacks,
        )
        measurer = _CellMeasurer(
            plan, builder, CellMeasurements(source, study.folder / "cells", tasks, plan.max_length, plan.embedded_length)
        )
        measured = MeasuredCells(anchor)
        if any(measurer.read_without_mixture(name, seed) is None for name in plan.configurations for seed in plan.seeds):
            # the base is measured before anything is trained, so a device that the training refuses is found now
            plan.expert_learning(plan.number, seed=0).require_first_gpu(source.device)
        for name, lessons in sets.items():
            measured.bases[name] = measurer.cells.measure_base(name, lessons.held_out)
        for seed in plan.seeds:
            if any(CONFIGURATIONS[name].choice and measurer.cells.read(name, seed) is None for name in plan.configurations):
                builder.mixture(STANDARD, seed)  # first: a router that is made again is another one, for all of its choices
            for name in plan.configurations:
                cell = measurer.measure(name, seed)
                measured.cells.setdefault(name, {})[seed] = cell
                # a finished report is not replaced by a part of it
                if STANDARD in measured.cells and cell.fresh and not study.finished_before:
                    study.publish(RoutersFindings.of(plan, source.model, measured), finished=False)
        if OWN in plan.configurations and plan.fresh_seeds:
            rows = rows_of({name: measured.cells[name] for name in CONFIGURATIONS if name in measured.cells}, measured.bases)
            if (best := most_distinct(rows)) is not None:
                fresh = {name: {seed: measurer.measure(name, seed) for seed in plan.fresh_seeds} for name in (OWN, best)}
                measured.replication = replicate(best, fresh, measured.bases, noise_of(measured.cells, measured.bases))
        findings = RoutersFindings.of(plan, source.model, measured)
        study.publish(findings)
        return findings


@dataclass(frozen=True)
class _CellMeasurer:
    """Makes mixtures and measures their cells, all with the same experts."""

    plan: RoutersPlan
    builder: RoutersBuilder
    cells: CellMeasurements
    experts: SameExperts = field(default_factory=SameExperts)

    def read_without_mixture(self, name: str, seed: int) -> Cell | None:
        """A cell that was measured before, and whose mixture was removed since: mixtures are large, and cells are kept."""
        return None if self.builder.folder_of(name, seed).exists() else self.cells.read(name, seed)

    def measure(self, name: str, seed: int) -> Cell:
        """A cell. Raises UnmaskError if it was measured with other experts than the cells before."""
        cell = self.read_without_mixture(name, seed)
        if cell is None:
            held_out = self.builder.sets[CONFIGURATIONS[name].domains].held_out
            cell = self.cells.measure(name, seed, self.builder.mixture(name, seed), held_out)
        self.experts.require(f"'{name}' with seed {seed}", cell.experts)
        return cell
