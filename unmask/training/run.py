"""Running a recipe: each design with each seed, stage by stage. A run that was stopped can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unmask.errors import require_package
from unmask.io.terminal import say
from unmask.models.provenance import hardware, versions
from unmask.training import processes
from unmask.training.card import checkpoint_was_chosen
from unmask.training.data import DataSet
from unmask.training.leakage import find_all_leaks, without_leaks
from unmask.training.recipe import Recipe, read_sets
from unmask.training.records import RUN, DataSetRecord, LeakCounts, RunRecord, StageData
from unmask.training.run_folder import Run, claim, is_done, runs
from unmask.training.same_run import (
    Scored,
    hash_of_texts,
    require_same_base,
    require_same_data,
    require_same_files,
    require_same_tasks,
)
from unmask.training.sources import digest_of_source
from unmask.training.stage_run import SILENT, Listener, Score, is_finished, run_stage, stage_folder
from unmask.training.stages import STAGES
from unmask.training.trainee import Trainee, require_shardable, require_trainable


def train(
    recipe: Recipe,
    folder: Path,
    root: Path,
    score: Score | None = None,
    listener: Listener = SILENT,
    held_out: Mapping[str, Scored] | None = None,
) -> list[Run]:
    """Train every design of a recipe with every seed.

    root: the folder where paths of the recipe's data start. score: returns the scores of an embedder on the recipe's tasks. held_out:
    texts of tasks, and which of them are compared. Rows with such a text, or with a near duplicate, are left out. A run that was stopped
    continues from its last checkpoint, and gives the same weights as an unbroken run. Raises UnmaskError.
    """
    require_package("tensorboard")
    processes.meet()
    folder = folder.resolve()
    for run in runs(recipe, folder):  # the last design is refused before the first one trains
        require_trainable(recipe, run.design)
        require_shardable(recipe, run.design)
    with processes.hold(folder):
        if processes.is_first():
            claim(recipe, folder)
        processes.wait()
        planned = runs(recipe, folder)
        for run in planned:
            _train_one(recipe, run, root, score, listener, held_out or {})
            processes.wait()
        return planned


def check_data(recipe: Recipe, root: Path) -> dict[str, list[DataSet]]:
    """Read every row that the recipe needs, by stage, without loading a model. Raises UnmaskError with file, line and reason."""
    return {stage: read_sets(recipe, stage, root, recipe.seeds[0]) for stage in recipe.stages}


def _train_one(
    recipe: Recipe, run: Run, root: Path, score: Score | None, listener: Listener, held_out: Mapping[str, Scored]
) -> None:
    require_same_tasks(run.folder, held_out)
    if is_done(run):
        require_same_files(run.folder, recipe, root)
        say(f"{run.design.name}, seed {run.seed}: done before, in {run.result}")
        return
    say(f"{run.design.name}, seed {run.seed}")
    sets, seen = {}, {}
    for name in recipe.stages:  # every row is checked before anything is loaded
        sets[name], seen[name] = clean(read_sets(recipe, name, root, run.seed), held_out, root)
    require_same_data(run.folder, seen, recipe)
    base = require_same_base(recipe, run.folder)
    trainee, trains = _through_stages(recipe, run, sets, score, listener)
    trainee.backbone.set_attention(run.design.attention)
    trainee.rest()
    record = RunRecord(
        design=run.design.name,
        seed=run.seed,
        base=base,
        data=seen,
        trains=trains,
        hardware=hardware(trainee.backbone.device),
        versions=versions(),
        scores=score(trainee.embedder) if score else {},
        chosen=checkpoint_was_chosen(run.folder),
    )
    if processes.is_first():
        record.write(run.folder / RUN)
        trainee.save(run.result)  # the last of all: where it lies, the run is done


def _through_stages(
    recipe: Recipe, run: Run, sets: Mapping[str, Sequence[DataSet]], score: Score | None, listener: Listener
) -> tuple[Trainee, dict[str, dict[str, int]]]:
    """The trainee after its last stage, and the number of parameters that trained in each."""
    trainee = Trainee.load(recipe, run.design, run.seed)
    _check_later_stages(recipe, run, sets, trainee)
    trains = {}
    for number, name in enumerate(recipe.stages, start=1):
        place = stage_folder(run.folder, number, name)
        anew = not is_finished(place) and recipe.shard
        covered = run_stage(name, recipe.stage(name), trainee, sets[name], place, run.seed, score, listener)
        if anew:  # shards cannot be merged: a trainee without them takes over what this stage left
            processes.wait()
            return _through_stages(recipe, run, sets, score, listener)
        trains[name] = {kind.kind: kind.trainable for kind in covered}
        trainee.end(merge=recipe.merge or number < len(recipe.stages))
    return trainee, trains


def _check_later_stages(recipe: Recipe, run: Run, sets: Mapping[str, Sequence[DataSet]], trainee: Trainee) -> None:
    """Make each later stage ready once, so that what it refuses shows before the first step and not after the stages before it.

    The first stage that is not done is left out, because it is made ready next. Raises UnmaskError as the stages do.
    """
    left = [
        name for number, name in enumerate(recipe.stages, start=1) if not is_finished(stage_folder(run.folder, number, name))
    ]
    for name in left[1:]:
        trainee.backbone.set_attention(STAGES[name].attention or run.design.attention)
        STAGES[name].prepare(recipe.stage(name), trainee, sets[name], run.seed)


def clean(sets: Sequence[DataSet], held_out: Mapping[str, Scored], root: Path) -> tuple[list[DataSet], StageData]:
    """Data sets without the rows that occur in held-out tasks, and a record of each. root: where paths of the data start."""
    kept, seen = [], {}
    texts = {task: of_task for task, (of_task, _) in held_out.items()}
    reports = find_all_leaks(sets, texts, pairs={task: pairs for task, (_, pairs) in held_out.items()})
    hashes = {task: hash_of_texts(scored) for task, scored in held_out.items()}
    for data, report in zip(sets, reports, strict=True):
        rest = without_leaks(data, report)
        leaks = {
            task.task: LeakCounts(exact=task.exact, near=task.near, pairs=len(task.both), texts=hashes[task.task])
            for task in report.tasks
        }
        say(
            f"  {data.name}: {len(rest.examples)} {data.kind}"
            + "".join(f", {n} {why} left out" for why, n in rest.skipped.items())
            + (f" (columns not read: {', '.join(rest.unread)})" if rest.unread else "")
        )
        kept.append(rest)
        seen[data.name] = DataSetRecord(
            path=data.source.path,
            examples=len(rest.examples),
            revision=rest.revision,
            left_out=rest.skipped,
            leaks=leaks,
            files=digest_of_source(data.source.path, data.source.split, root),
        )
    return kept, seen
