"""Runs a study of embedders on one base model: makes its models, scores its embedders, and tests the paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unmask.errors import UnmaskError, require_package
from unmask.evaluation.outcomes import why_not_scored
from unmask.evaluation.reference_models import reference_failures, score_if_installed
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.scoring import ScoringPlan, forget_vectors, score_designs
from unmask.io.terminal import say
from unmask.models.loading import precision_of
from unmask.runs import runs
from unmask.starter import reference_texts
from unmask.studies.embedders.analysis import ScoredEmbedder
from unmask.studies.embedders.findings import EmbeddersFindings
from unmask.studies.embedders.models import ModelBuilder, StudyModel
from unmask.studies.embedders.plan import EmbedderSpec, EmbeddersPlan
from unmask.studies.study import Study
from unmask.tasks.find import resolve_tasks, specs_below
from unmask.tasks.task import LocalTask, Task
from unmask.training.train import hash_of_texts


def run_study(plan: EmbeddersPlan, study: Study) -> EmbeddersFindings:
    """Run a plan on one base model. A stopped study continues. Raises UnmaskError."""
    require_package("mteb")
    tasks = resolve_tasks(specs_below(study.root, plan.tasks))
    # one precision for all: what was trained was saved in the precision of its machine
    source = replace(study.source, dtype=precision_of(study.source))
    study = replace(study, source=source)
    model_recipes = {name: spec.model_dump(mode="json") for name, spec in plan.made.items()}
    # seeds may be added later: each has its own model
    without_seeds = {name: {**spec, "seeds": None} for name, spec in model_recipes.items()}
    with study.open(plan={"scale": study.scale}, made=without_seeds) as run:
        settings = {"study": plan.study, "scale": study.scale, "dtype": source.dtype, "made": model_recipes}
        data = {task.name: task.revision for task in tasks}
        study.start(run, settings, paper=plan.paper, data=data, rests_on=plan.rests_on(study.scale))
        _require_unseen_tasks(tasks, study.folder)
        builder = ModelBuilder(plan, study, tasks)
        store = ResultStore(study.folder / "scores")
        scored = _score_all(plan, builder, store) | _score_reference(plan.reference, tasks, store)
        forget_vectors(store)
        findings = EmbeddersFindings.of(plan, source.model, scored, store)
        provenance = [result.provenance for embedder in scored.values() for runs in embedder.runs for result in runs.values()]
        study.publish(findings, provenance=provenance)
        return findings


def _require_unseen_tasks(tasks: Sequence[Task], folder: Path) -> None:
    """Raise UnmaskError if a model was trained before the study had one of its tasks."""
    if unsearched := [task.name for task in tasks if not isinstance(task, LocalTask)]:
        say(f"Training rows are not searched for the texts of mteb's tasks ({', '.join(unsearched)}).")
    texts = {task.name: hash_of_texts(task.texts_and_pairs) for task in tasks if isinstance(task, LocalTask)}
    for file in sorted(folder.glob(f"models/*/seed*/{runs.RECORD}")):
        record = runs.read(file.parent)
        searched = record.settings["held_out_tasks"] if record else texts
        if new := [task for task, digest in texts.items() if searched.get(task) != digest]:
            raise UnmaskError(
                f"'{file.parent}' was trained before the study had the task '{new[0]}' with these texts, so it may have seen some. Give "
                f"another folder, or remove '{folder / 'models'}'."
            )


def _score_all(plan: EmbeddersPlan, builder: ModelBuilder, store: ResultStore) -> dict[str, ScoredEmbedder]:
    """Every embedder with its results, in the order of the plan. Models are made in the order in which embedders need them."""
    runs: dict[str, list[dict[str, Result]]] = {}
    for model in dict.fromkeys(spec.model for spec in plan.measured_embedders.values()):
        specs = {name: spec for name, spec in plan.measured_embedders.items() if spec.model == model}
        for study_model in builder.models(model):
            results = _score(study_model, plan, specs, builder, store)
            for name, spec in specs.items():
                of_run = {result.task: result for result in results if result.label == name}
                tasks = [task for task in builder.tasks if not spec.kinds or task.kind in spec.kinds]
                # means of different tasks must not be compared
                if missing := [
                    task.name for task in tasks if task.name not in of_run and not why_not_scored(spec.parsed_design, task)
                ]:
                    raise UnmaskError(
                        f"'{name}' has no score on {', '.join(missing)}: see the messages above. Run the study again."
                    )
                runs.setdefault(name, []).append(of_run)
            study_model.write_note(results)
    return {name: ScoredEmbedder(tuple(runs[name])) for name in plan.measured_embedders}


def _score(
    model: StudyModel, plan: EmbeddersPlan, specs: dict[str, EmbedderSpec], builder: ModelBuilder, store: ResultStore
) -> list[Result]:
    """The results of one model. If one result of a removed model is missing, the model is made again, and so are all of its results.

    Made again, it may have other weights: results of both would be compared with each other.
    """
    groups = []  # designs that are scored on the same tasks
    for kinds in dict.fromkeys(spec.kinds for spec in specs.values()):
        designs = {name: spec.parsed_design for name, spec in specs.items() if spec.kinds == kinds}
        if tasks := [task for task in builder.tasks if not kinds or task.kind in kinds]:
            groups.append((designs, tasks))
    stored = [model.stored_results(*group, plan.max_length, builder.study.source.dtype, store) for group in groups]
    complete = [results for results in stored if results is not None]
    if len(complete) < len(groups):
        plans = (ScoringPlan(model.source, *group, plan.max_length, reference_texts()) for group in groups)
        complete = [score_designs(plan, store) for plan in plans]
    return [result for results in complete for result in results]


def _score_reference(name: str, tasks: Sequence[Task], store: ResultStore) -> dict[str, ScoredEmbedder]:
    results = score_if_installed(name, tasks, store) if name else None
    if not results:
        return {}
    # a mean is comparable only over the same tasks as for the embedders
    if lacking := [failure.task for failure in reference_failures(name, tasks, store) if failure.applies]:
        say(
            f"The row of {name} is left out, since it has no score on {', '.join(lacking)}. Run the study again to try once more."
        )
        return {}
    return {name: ScoredEmbedder(({result.task: result for result in results},))}
