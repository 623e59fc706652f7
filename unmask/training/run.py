"""Running a recipe: each design with each seed, stage by stage. A run that was stopped can be resumed."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError, require_package
from unmask.io.files import refuse_foreign, remove, write_json
from unmask.io.seals import CHECKSUM, Damaged, check_seal, load_tensors, read_record, write_record
from unmask.io.terminal import say
from unmask.models.identity import identity_of
from unmask.models.provenance import hardware, versions
from unmask.models.source import Source, lasting_name
from unmask.training import processes
from unmask.training.data import DataSet
from unmask.training.leakage import find_all_leaks, without_leaks
from unmask.training.lora import Coverage
from unmask.training.recipe import Recipe, read_sets
from unmask.training.records import (
    BASE,
    DATA,
    RECIPE,
    RUN,
    BaseRecord,
    DataRecord,
    DataSetRecord,
    LeakCounts,
    ModelRecord,
    RunRecord,
    StageData,
)
from unmask.training.sharding import shard
from unmask.training.stages import STAGES
from unmask.training.stages.stage import Prepared, StageOptions
from unmask.training.trainee import Trainee, require_shardable, require_trainable

Scored = tuple[Sequence[str], Sequence[tuple[int, int]]]  # texts of a task, and the places of those that it compares
Score = Callable[[Embedder], dict[str, float]]
DONE = "done.safetensors"


@dataclass(frozen=True)
class Listener:
    """Functions that are called while a run goes on. covered: what trains in a stage. callbacks: of the loop."""

    covered: Callable[[str, Sequence[Coverage]], None] = lambda *_: None
    callbacks: Sequence[Any] = field(default_factory=list)


SILENT = Listener()


@dataclass(frozen=True)
class Run:
    """One trained embedder: its design, its seed and its folder."""

    design: Design
    seed: int
    folder: Path

    @property
    def result(self) -> Path:
        """The folder that Embedder and SentenceTransformer load."""
        return self.folder / "model"


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
            _claim(recipe, folder)
        processes.wait()
        planned = runs(recipe, folder)
        for run in planned:
            _train_one(recipe, run, root, score, listener, held_out or {})
            processes.wait()
        return planned


def runs(recipe: Recipe, folder: Path) -> list[Run]:
    """Each run of a recipe, with its folder: the folder itself if there is only one run."""
    many = len(recipe.designs) * len(recipe.seeds) > 1
    return [
        Run(Design.parse(design), seed, folder / f"{design.replace('/', '-')}.seed{seed}" if many else folder)
        for design in recipe.designs
        for seed in recipe.seeds
    ]


def check_data(recipe: Recipe, root: Path) -> dict[str, list[DataSet]]:
    """Read every row that the recipe needs, by stage, without loading a model. Raises UnmaskError with file, line and reason."""
    return {stage: read_sets(recipe, stage, root, recipe.seeds[0]) for stage in recipe.stages}


def _is(recipe: Recipe, saved: dict[str, Any]) -> bool:
    """Whether saved settings are those of this recipe. A setting that a later version added has its default."""
    try:
        return Recipe.model_validate(saved) == recipe
    except ValidationError:
        return False


def _claim(recipe: Recipe, folder: Path) -> None:
    """Write the recipe into its folder. Raises UnmaskError if the folder holds steps of another recipe."""
    saved, settings = read_record(folder / RECIPE), json.loads(recipe.model_dump_json(by_alias=True))
    if _is_begun(folder):
        if saved is not None:
            same = _is(recipe, saved)
        else:  # damaged, or lost: each run has noted which recipe it is of
            notes = [DataRecord.read(file) for file in folder.glob(f"**/{DATA}")]
            same = all(note is not None and note.recipe == _digest(recipe) for note in notes)
        if not same:
            raise UnmaskError(f"'{folder}' holds a run of another recipe or other settings: give another folder.")
    else:
        _refuse_foreign(recipe, folder)
    write_record(folder / RECIPE, settings)


def _refuse_foreign(recipe: Recipe, folder: Path) -> None:
    """Raise UnmaskError if a file of somebody else stands where a run would write its own."""
    for run in runs(recipe, folder):
        for file in (folder / RECIPE, *(run.folder / record for record in (DATA, BASE, RUN))):
            refuse_foreign(file, [CHECKSUM])
        if run.result.exists() and not (run.result.is_dir() and not any(run.result.iterdir())):
            raise UnmaskError(
                f"'{run.result}' exists and is not a trained embedder, so it is not overwritten: give another folder."
            )


def _is_begun(folder: Path) -> bool:
    """Whether a folder holds results of training. A command that only read its data left none."""
    made = ("model/unmask.json", f"stages/*/{DONE}", "stages/*/checkpoint-*")
    return any(any(folder.glob(f"{depth}{pattern}")) for depth in ("", "*/") for pattern in made)


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(recipe.model_dump_json(by_alias=True).encode()).hexdigest()[:16]


def _is_done(run: Run) -> bool:
    """Whether a run is finished and its result intact. A damaged result is made again from the weights of its stages."""
    if not (run.result / "unmask.json").is_file():
        return False
    try:
        check_seal(run.result)
    except Damaged as error:
        warnings.warn(f"The result is made again: {error}", stacklevel=2)
        return False
    return RunRecord.read(run.folder / RUN) is not None


def _train_one(
    recipe: Recipe, run: Run, root: Path, score: Score | None, listener: Listener, held_out: Mapping[str, Scored]
) -> None:
    require_same_tasks(run.folder, held_out)
    if _is_done(run):
        say(f"{run.design.name}, seed {run.seed}: done before, in {run.result}")
        return
    say(f"{run.design.name}, seed {run.seed}")
    sets, seen = {}, {}
    for name in recipe.stages:  # every row is checked before anything is loaded
        sets[name], seen[name] = clean(read_sets(recipe, name, root, run.seed), held_out)
    _require_same_data(run.folder, seen, recipe)
    base = _require_same_base(recipe, run.folder)
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
        place = _place(run.folder, number, name)
        anew = not _is_finished(place) and recipe.shard
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
    left = [name for number, name in enumerate(recipe.stages, start=1) if not _is_finished(_place(run.folder, number, name))]
    for name in left[1:]:
        trainee.backbone.set_attention(STAGES[name].attention or run.design.attention)
        STAGES[name].prepare(recipe.stage(name), trainee, sets[name], run.seed)


def require_same_tasks(folder: Path, held_out: Mapping[str, Scored]) -> None:
    """Raise UnmaskError if the run began with other held-out tasks."""
    record = DataRecord.read(folder / DATA) if _is_begun(folder) else None
    sets = [data for stage in record.stages.values() for data in stage.values()] if record else []
    before = {task for data in sets for task in data.leaks}
    if sets and before != set(held_out):
        then, now = (", ".join(sorted(tasks)) or "no task" for tasks in (before, held_out))
        raise UnmaskError(
            f"'{folder}' holds a run whose rows were checked for leaks into {then}, and now they are checked for leaks into {now}: "
            "give another folder, or use --keep-leaks, or leave it out, as before."
        )


def _require_same_data(folder: Path, seen: dict[str, StageData], recipe: Recipe) -> None:
    """Raise UnmaskError if steps were made with other rows, because the run could not continue with the same schedule.

    If the record of the rows is damaged, nothing says which rows the steps saw, so the stages begin anew.
    """
    file = folder / DATA
    record = DataRecord(stages=seen, recipe=_digest(recipe))
    before = DataRecord.read(file) if _is_begun(folder) else record
    changed = [
        f"{stage}: {name}"
        for stage, sets in seen.items()
        for name in sets
        if before and before.stages[stage].get(name) != sets[name]
    ]
    if changed:
        raise UnmaskError(f"The data changed since the run in '{folder}' began ({', '.join(changed)}): give another folder.")
    processes.wait()
    if processes.is_first():
        if before is None:
            warnings.warn(f"Nothing says which rows the stages in '{folder}' saw, so they are begun anew.", stacklevel=2)
            remove(folder / "stages")
        record.write(file)
    processes.wait()


def _require_same_base(recipe: Recipe, folder: Path) -> BaseRecord:
    """The base model and the teacher of a run by their content. Raises UnmaskError if one has changed since the run began."""
    file = folder / BASE
    before = BaseRecord.read(file) if _is_begun(folder) else None
    base = require_unchanged("base model", recipe.model, before, folder)
    record = BaseRecord(model=base.model, weights=base.weights, teacher=_teacher(recipe, folder, before and before.teacher))
    processes.wait()
    if processes.is_first():
        record.write(file)
    return record


def _teacher(recipe: Recipe, folder: Path, before: ModelRecord | None) -> ModelRecord | None:
    """The teacher of a run. It is not asked for again when the stage that learns from it is done."""
    for number, name in enumerate(recipe.stages, start=1):
        teacher = STAGES[name].teacher(recipe.stage(name))
        if teacher is not None:
            return (
                before if _is_finished(_place(folder, number, name)) else require_unchanged("teacher", teacher, before, folder)
            )
    return None


def require_unchanged(what: str, model: str, before: ModelRecord | None, folder: Path) -> ModelRecord:
    """A model as it is now. Raises UnmaskError if it was another one when the run began."""
    now = ModelRecord(model=lasting_name(model), weights=identity_of(Source(model)).revision)
    if before is not None and before.weights != now.weights:
        raise UnmaskError(
            f"The {what} '{model}' has changed since the run in '{folder}' began: its weights were {before.weights} "
            f"and are {now.weights} now. Bring the old {what.removesuffix(' model')} back, or give another folder."
        )
    return now


def _place(folder: Path, number: int, stage: str) -> Path:
    """The folder of a stage, counted from one."""
    return folder / "stages" / f"{number}-{stage}"


def clean(sets: Sequence[DataSet], held_out: Mapping[str, Scored]) -> tuple[list[DataSet], StageData]:
    """Data sets without the rows that occur in held-out tasks, and a record of each."""
    kept, seen = [], {}
    texts = {task: of_task for task, (of_task, _) in held_out.items()}
    reports = find_all_leaks(sets, texts, pairs={task: pairs for task, (_, pairs) in held_out.items()})
    for data, report in zip(sets, reports, strict=True):
        rest = without_leaks(data, report)
        leaks = {task.task: LeakCounts(exact=task.exact, near=task.near, pairs=len(task.both)) for task in report.tasks}
        say(
            f"  {data.name}: {len(rest.examples)} {data.kind}"
            + "".join(f", {n} {why} left out" for why, n in rest.skipped.items())
        )
        kept.append(rest)
        seen[data.name] = DataSetRecord(
            path=data.source.path,
            examples=len(rest.examples),
            revision=rest.revision,
            left_out=rest.skipped,
            leaks=leaks,
        )
    return kept, seen


def run_stage(
    name: str,
    stage: StageOptions,
    trainee: Trainee,
    sets: Sequence[DataSet],
    folder: Path,
    seed: int,
    score: Score | None,
    listener: Listener,
) -> list[Coverage]:
    """Run one stage, or load its weights if it is done. The trainee then holds these weights, not yet merged."""
    from unmask.training.loop import load_trainable, save_trainable

    done = _is_finished(folder)
    trainee.backbone.set_attention(STAGES[name].attention or trainee.embedder.design.attention)
    covered = trainee.begin(name, seed)
    ready = STAGES[name].prepare(stage, trainee, sets, seed)
    if done:
        say(f"  {name}: done before")
        load_trainable(ready.module, folder / DONE)
        _remove_checkpoints(folder)  # those that a kill left
        return covered
    listener.covered(name, covered)
    if stage.warmup >= stage.steps:
        short = f"the warm-up of {stage.warmup} steps does not end within {stage.steps}"
        say(f"  {name}: {short}, so the learning rate stays below {stage.lr:g}")
    if trainee.recipe.shard:
        # a head that predicts tokens may share its weights with the embeddings, so both belong to one root
        shard(trainee.backbone, ready.module if ready.module is trainee.language_model else trainee.backbone.model)
    _loop(name, stage, ready, trainee, folder, seed, score, listener)
    save_trainable(ready.module, folder / DONE)
    processes.wait()  # a process may still be reading the best checkpoint
    _remove_checkpoints(folder)
    return covered


def _remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a stage that is done: optimizer states are as large as what trained, twice."""
    from unmask.training.loop import checkpoints

    if processes.is_first():
        for checkpoint in checkpoints(folder):
            remove(checkpoint)


def _is_finished(folder: Path) -> bool:
    """Whether a stage left its weights. Damaged ones are removed, and the stage is run again."""
    file, whole = folder / DONE, True
    if processes.is_first():
        try:
            whole = file.is_file() and bool(load_tensors(file))
        except Damaged as error:
            warnings.warn(f"The stage is run again: {error}", stacklevel=2)
            remove(file)
            whole = False
    return bool(processes.agreed(whole))


def _loop(
    name: str,
    stage: StageOptions,
    ready: Prepared,
    trainee: Trainee,
    folder: Path,
    seed: int,
    score: Score | None,
    listener: Listener,
) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback
    from transformers.trainer_callback import PrinterCallback

    from unmask.training.ease import EaseWatch
    from unmask.training.loop import Loop, arguments, resumable

    same = trainee.backbone.attention == trainee.embedder.design.attention
    evaluates = score is not None and same
    if stage.checkpointing:
        trainee.backbone.model.gradient_checkpointing_enable({"use_reentrant": False})
    settings = arguments(stage, folder, seed, trainee.backbone.device.type == "cpu", evaluates, not trainee.recipe.shard)
    curves = [TensorBoardCallback(SummaryWriter(str(folder / "tensorboard")))] if processes.is_first() else []
    loop = Loop(
        ready.module,
        settings,
        ready.rows,
        ready.collate,
        ready.objective,
        (lambda: score(trainee.embedder)) if score and same else None,
        [*curves, EaseWatch(STAGES[name].too_easy), *listener.callbacks],
    )
    loop.remove_callback(PrinterCallback)
    checkpoint = resumable(folder)
    if checkpoint:
        say(f"  {name}: resumed from {checkpoint.name}")
    with ready.around():
        loop.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    ready.module.eval()
    if stage.checkpointing:
        trainee.backbone.model.gradient_checkpointing_disable()
    if processes.is_first():
        write_json(folder / "log.json", loop.state.log_history)
