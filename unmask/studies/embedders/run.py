"""Runs a study of embedders on one base model: makes its models, scores its embedders, and tests the paper's claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan, compare, forget_vectors
from unmask.evaluation.outcomes import why_not_scored
from unmask.evaluation.reference_rows import compare_if_installed, unscored_reference
from unmask.evaluation.results import Result, ResultStore
from unmask.io.files import only_run_in
from unmask.io.terminal import say
from unmask.models.identity import identity_of
from unmask.models.loading import Source, pick_device, precision_of
from unmask.models.source import lasting_name
from unmask.moe.experts.records import RunRecord, write_or_check
from unmask.runs import runs
from unmask.starter import reference_texts
from unmask.statistics.paired import PairedTest
from unmask.studies.claims.claim import Claim, Finding, findings, with_here
from unmask.studies.embedders.agreement import OnTask, agreement_test, agreements
from unmask.studies.embedders.builder import Builder
from unmask.studies.embedders.contrast import Scored, contrasts
from unmask.studies.embedders.made import Made
from unmask.studies.embedders.plan import EmbeddersPlan, Making, Reading
from unmask.studies.results import RECORD
from unmask.studies.results_file import ResultsFile
from unmask.studies.sheet import Sheet
from unmask.tasks.find import resolve_tasks, specs_below
from unmask.tasks.task import LocalTask, Task
from unmask.training.run import hash_of_texts

Group = tuple[dict[str, Design], list[Task]]
"""Designs by label, and the tasks that they are scored on."""


class EmbeddersRecord(RunRecord):
    """The content of `study.json`: the base model, and how the models of the study are made. Models and seeds may be added later.

    dtype: of the base model and of all that is read; older versions did not keep it.
    """

    base: str = Field(alias="model")
    study: str = ""
    scale: str
    dtype: str | None = None
    made: dict[str, Making]

    def is_same(self, before: RunRecord, folder: Path) -> bool:
        """Whether an earlier run had the same base model and scale, and made the models that both have in the same way.

        Seeds may differ: each has a model of its own.
        """
        assert isinstance(before, EmbeddersRecord)
        common = {
            name: before.made.get(name, making).model_copy(update={"seeds": making.seeds}) for name, making in self.made.items()
        }
        return super().is_same(before.model_copy(update={"made": common}), folder)


@dataclass(frozen=True)
class Findings:
    """What a study found: each embedder with its scores, then the reference row if there is one, and what becomes of each claim.

    agreements: of each claim about agreement, by id, how far both sides agree on each task, one value for each run.
    """

    plan: EmbeddersPlan
    model: str
    scored: dict[str, Scored]
    claims: list[Finding]
    agreements: dict[str, dict[str, list[OnTask]]]

    def mean(self, embedder: str, kind: str) -> float | None:
        """The mean score of an embedder over the tasks of a kind and its seeds, in percent. None without such a task."""
        scored = self.scored[embedder]
        tasks = scored.tasks([kind])
        return 100 * float(np.mean(scored.points(tasks))) if tasks else None

    @property
    def kinds(self) -> list[str]:
        """The kinds of task."""
        return list(dict.fromkeys(result.kind for scored in self.scored.values() for result in scored.runs[0].values()))

    def as_json(self) -> dict[str, Any]:
        """Every score, and the plan."""
        return {
            "scores": {
                name: {task: [run[task].main_score for run in scored.runs] for task in scored.runs[0]}
                for name, scored in self.scored.items()
            },
            "plan": self.plan.model_dump(mode="json"),
        }


def study(
    plan: EmbeddersPlan,
    scale: str,
    source: Source,
    root: Path,
    folder: Path,
    write: Callable[[Findings, Path], Sequence[Sheet]],
    callbacks: Sequence[Any] = (),
    command: str = "",
) -> Findings:
    """Run a plan on one base model. A stopped study continues. Raises UnmaskError.

    write: writes the report, and gives its tables. command: what started the run, for the results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with only_run_in(folder):
        tasks = resolve_tasks(specs_below(root, plan.tasks))
        source = replace(source, dtype=precision_of(source))  # one for all: what was trained was saved in that of its machine
        weights = identity_of(source).revision
        record = EmbeddersRecord(
            model=lasting_name(source.model),
            base_weights=weights,
            study=plan.study,
            scale=scale,
            made=plan.made,
            dtype=source.dtype,
        )
        write_or_check(folder / RECORD, record)
        _require_held_out(tasks, folder)
        builder = Builder(plan, scale, source, root, folder, tasks, callbacks)
        store = ResultStore(folder / "scores")
        scored = _scored(plan, builder, tasks, store) | _reference(plan.reference, tasks, store)
        forget_vectors(store)
        agreed = _agreements(plan, scored, store)
        found = Findings(plan, source.model, scored, _claims(plan, scored, store, agreed), agreed)
        results = ResultsFile(
            folder, record, pick_device(source.device), study=plan.study, paper=plan.paper, command=command, scale=scale,
            data={task.name: task.revision for task in tasks}, rests_on=plan.rests_on(scale),
        )  # fmt: skip
        provenance = [result.provenance for one in scored.values() for run in one.runs for result in run.values()]
        results.write(found.as_json(), found.claims, write(found, folder), provenance=provenance)
        return found


def _require_held_out(tasks: Sequence[Task], folder: Path) -> None:
    """Raise UnmaskError if a model was trained before the study had one of its tasks. Say which tasks have texts that nobody looks for."""
    if unsearched := [task.name for task in tasks if not isinstance(task, LocalTask)]:
        say(f"Training rows are not searched for the texts of mteb's tasks ({', '.join(unsearched)}).")
    texts = {task.name: hash_of_texts(task.texts_and_pairs) for task in tasks if isinstance(task, LocalTask)}
    for file in sorted(folder.glob(f"models/*/seed*/{runs.RECORD}")):
        record = runs.read(file.parent)
        known = record.settings["held_out_tasks"] if record else texts
        if new := [task for task, digest in texts.items() if known.get(task) != digest]:
            raise UnmaskError(
                f"'{file.parent}' was trained before the study had the task '{new[0]}' with these texts, so it may have seen some. Give "
                f"another folder, or remove '{folder / 'models'}'."
            )


def _scored(plan: EmbeddersPlan, builder: Builder, tasks: Sequence[Task], store: ResultStore) -> dict[str, Scored]:
    """Every embedder with its results, in the order of the plan. Models are made in the order in which embedders need them."""
    runs: dict[str, list[dict[str, Result]]] = {}
    for model in dict.fromkeys(reading.model for reading in plan.measured.values()):
        readings = {name: reading for name, reading in plan.measured.items() if reading.model == model}
        for made in builder.models(model):
            groups = list(_groups(readings, tasks))
            results = _results(made, groups, plan.max_length, builder.source.dtype, store)
            for designs, asked in groups:
                for name, design in designs.items():
                    of_run = {result.task: result for result in results if result.label == name}
                    _check_complete(name, design, asked, of_run)
                    runs.setdefault(name, []).append(of_run)
            made.note(results)
    return {name: Scored(tuple(runs[name])) for name in plan.measured}


def _groups(readings: Mapping[str, Reading], tasks: Sequence[Task]) -> Iterator[Group]:
    """Designs that are scored on the same tasks."""
    for kinds in dict.fromkeys(reading.kinds for reading in readings.values()):
        designs = {name: reading.parsed for name, reading in readings.items() if reading.kinds == kinds}
        yield designs, [task for task in tasks if not kinds or task.kind in kinds]


def _results(made: Made, groups: Sequence[Group], max_length: int, dtype: str, store: ResultStore) -> list[Result]:
    """The results of one model. If a kept one of a removed model is missing, the model is made again, and so are all of its results.

    Made again, it may have other weights: results of both would be compared with each other.
    """
    asked = [(designs, tasks) for designs, tasks in groups if tasks]
    kept = [made.results(designs, tasks, max_length, dtype, store) for designs, tasks in asked]
    complete = [results for results in kept if results is not None]
    if len(complete) < len(asked):
        plans = (ComparisonPlan(made.source, designs, tasks, max_length, reference_texts()) for designs, tasks in asked)
        complete = [compare(plan, store) for plan in plans]
    return [result for results in complete for result in results]


def _check_complete(name: str, design: Design, tasks: Sequence[Task], of_run: Mapping[str, Any]) -> None:
    """Raise UnmaskError if a score is missing: means of different tasks would be compared."""
    missing = [task.name for task in tasks if task.name not in of_run and why_not_scored(design, task) is None]
    if missing:
        raise UnmaskError(f"'{name}' has no score on {', '.join(missing)}: see the messages above. Run the study again.")


def _reference(name: str, tasks: Sequence[Task], store: ResultStore) -> dict[str, Scored]:
    results = compare_if_installed(name, tasks, store) if name else None
    lacking = [failure.task for failure in unscored_reference(name, tasks, store) if failure.applies] if results else []
    if lacking:  # its means would be of other tasks than those of the embedders
        say(
            f"The row of {name} is left out, since it has no score on {', '.join(lacking)}. Run the study again to try once more."
        )
        return {}
    return {name: Scored(({result.task: result for result in results},))} if results else {}


def _agreements(plan: EmbeddersPlan, scored: dict[str, Scored], store: ResultStore) -> dict[str, dict[str, list[OnTask]]]:
    found = {}
    for claim in plan.claims:
        if claim.agreement and claim.better in scored and claim.than[0] in scored:
            one, other = ([scored[name] for name in plan.under_all_prompts(side)] for side in (claim.better, claim.than[0]))
            found[claim.id] = agreements(claim.agreement, one, other, store)
    return found


def _claims(
    plan: EmbeddersPlan, scored: dict[str, Scored], store: ResultStore, agreed: Mapping[str, Mapping[str, Sequence[OnTask]]]
) -> list[Finding]:
    """What becomes of each claim: on tasks of these kinds in general, and on these tasks alone."""
    claims = plan.claims
    pairs = [(claim, than) for claim in claims for than in claim.than if claim.better in scored and than in scored]
    tests: dict[tuple[str, str], tuple[PairedTest | None, PairedTest | None]] = {}
    for claim, than in pairs:
        if claim.agreement:
            tests[claim.id, than] = (agreement_test(agreed[claim.id]),) * 2
        else:
            sides = scored[claim.better], scored[than]
            tests[claim.id, than] = contrasts(*sides, claim.kinds, store, len(pairs), claim.less_on)
    general, here = ({names: test for names, both in tests.items() if (test := both[place])} for place in (0, 1))
    on_these_tasks = findings(claims, here, _unit)
    hold_here = [one.claim.id for one in on_these_tasks if one.verdict == "confirmed"]
    return with_here(findings(claims, general, _unit, hold_here), on_these_tasks)


def _unit(claim: Claim) -> str:
    if claim.agreement is None:
        return "points"
    return "points of Spearman" if claim.agreement == "prompts" else "points of V-measure"
