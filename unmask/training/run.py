"""Trains each design of a recipe with each seed, stage by stage. A run that was stopped can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.embedder import Embedder
from unmask.errors import require_package
from unmask.io.files import remove, write_json
from unmask.io.paths import expanded
from unmask.io.terminal import say
from unmask.models.identity import identity_of
from unmask.models.provenance import hardware, versions
from unmask.models.source import Source, lasting_name
from unmask.runs import runs
from unmask.runs.runs import Run
from unmask.tasks.kinds.kind import Forms
from unmask.training import processes
from unmask.training.card import checkpoint_was_chosen
from unmask.training.data import DataSet
from unmask.training.leakage import find_all_leaks, without_leaks
from unmask.training.lora import Coverage
from unmask.training.recipe import Recipe, read_sets
from unmask.training.records import (
    BaseRecord,
    DataSetRecord,
    LeakCounts,
    StageData,
    TeacherRecord,
    TrainingResult,
    TrainingRun,
    TrainingSettings,
    planned_runs,
)
from unmask.training.sharding import shard
from unmask.training.sources import digest_of_source
from unmask.training.stages import STAGES
from unmask.training.stages.stage import Prepared, StageOptions
from unmask.training.trainee import Trainee, require_shardable, require_trainable, training_precision

WEIGHTS_OF_STAGE = "done.safetensors"

Score = Callable[[Embedder], dict[str, float]]
"""The scores of an embedder on the tasks of a recipe."""
Scored = tuple[Sequence[Forms], Sequence[tuple[int, int]]]
"""Texts of a task, and the index pairs that it compares."""


@dataclass(frozen=True)
class Listener:
    """Functions that are called during training. covered: with the weights a stage trains. callbacks: of the Trainer."""

    covered: Callable[[str, Sequence[Coverage]], None] = lambda *_: None
    callbacks: Sequence[Any] = field(default_factory=list)


SILENT = Listener()


def train(
    recipe: Recipe,
    folder: Path,
    root: Path,
    score: Score | None = None,
    listener: Listener = SILENT,
    held_out: Mapping[str, Scored] | None = None,
) -> list[TrainingRun]:
    """Train every design of a recipe with every seed.

    A run that was stopped continues from its last checkpoint, with the same weights as an unbroken run.

    Args:
        root: Folder that the paths of the recipe's data are relative to.
        score: Returns the scores of an embedder on the recipe's tasks.
        held_out: Tasks; rows with one of their texts, or with a near duplicate, are removed from the training data.

    Raises:
        UnmaskError: For data or settings that cannot be trained on, and if a folder holds a run with other settings or inputs.
    """
    require_package("tensorboard")
    processes.meet()
    planned = planned_runs(recipe, folder.resolve())
    for run in planned:  # the last design is refused before the first one trains
        require_trainable(recipe, run.design)
        require_shardable(recipe, run.design)
    for run in planned:
        _train_one(recipe, run, root, score, listener, held_out or {})
        processes.wait()
    return planned


def check_data(recipe: Recipe, root: Path) -> dict[str, list[DataSet]]:
    """Read every row that the recipe needs, by stage, without loading a model. Raises UnmaskError with file, line and reason."""
    return {stage: read_sets(recipe, stage, root, recipe.seeds[0]) for stage in recipe.stages}


def hash_of_texts(scored: Scored) -> str:
    """A hash of the texts and pairs of a task, 16 hex digits."""
    return hashlib.sha256(repr([list(part) for part in scored]).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class _Session:
    """A run while it trains."""

    recipe: Recipe
    planned: TrainingRun
    run: Run
    sets: Mapping[str, Sequence[DataSet]]
    score: Score | None
    listener: Listener

    @property
    def steps(self) -> dict[str, str]:
        """The step of each stage."""
        return {name: f"stages/{number}-{name}" for number, name in enumerate(self.recipe.stages, start=1)}


def _train_one(
    recipe: Recipe, planned: TrainingRun, root: Path, score: Score | None, listener: Listener, held_out: Mapping[str, Scored]
) -> None:
    settings = TrainingSettings(
        recipe=recipe.model_copy(update={"designs": (planned.design.name,), "seeds": (planned.seed,)}),
        held_out_tasks={task: hash_of_texts(scored) for task, scored in held_out.items()},
    )
    used = [name for name in recipe.data if any(name in recipe.stage(stage).data for stage in recipe.stages)]
    files = {f"file of the data set '{name}'": _digest_if_present(recipe, name, root) for name in used}
    with runs.open(planned.folder, settings, inputs=files, output="model", processes=processes) as run:
        if run.result is not None:
            say(f"{planned.design.name}, seed {planned.seed}: done before, in {planned.result}")
            return
        say(f"{planned.design.name}, seed {planned.seed}")
        sets, records = {}, {}
        for name in recipe.stages:  # every row is checked before anything is loaded
            sets[name], records[name] = clean(read_sets(recipe, name, root, planned.seed), held_out, root)
        revisions = {
            f"data set '{name}' of stage {stage}": data.revision
            for stage, datasets in records.items()
            for name, data in datasets.items()
        }
        run.check(revisions)
        session = _Session(recipe, planned, run, sets, score, listener)
        base = _base(session)
        trainee, trains = _through_stages(session)
        trainee.backbone.set_attention(planned.design.attention)
        trainee.rest()
        result = TrainingResult(
            design=planned.design.name,
            seed=planned.seed,
            base=base,
            data=records,
            trains=trains,
            hardware=hardware(trainee.backbone.device),
            versions=versions(),
            scores=score(trainee.embedder) if score else {},
            chosen=checkpoint_was_chosen(planned.folder),
        )
        if processes.is_first():
            trainee.save(planned.result)
        run.finish(result)


def _digest_if_present(recipe: Recipe, name: str, root: Path) -> str | None:
    source = recipe.data[name]
    return digest_of_source(source.path, source.split, root) if (root / expanded(source.path)).exists() else None


def _base(session: _Session) -> BaseRecord:
    """The base model, the teacher and the precision, which are compared with those the run began with. Raises UnmaskError."""
    recipe, run = session.recipe, session.run
    weights, precision = identity_of(Source(recipe.model)).revision, training_precision(recipe)
    run.check({f"base model '{recipe.model}'": weights, "precision of training": precision})
    teacher = None
    for name, step in session.steps.items():
        teacher_name = STAGES[name].teacher(recipe.stage(name))
        if teacher_name is not None:
            digest, design = f"teacher '{teacher_name.model}'", f"design of the teacher '{teacher_name.model}'"
            if not run.is_done(step) or digest not in run.inputs:  # else the teacher may be gone
                run.check({digest: identity_of(Source(teacher_name.model)).revision, design: teacher_name.design})
            teacher = TeacherRecord(
                model=lasting_name(teacher_name.model), weights=run.inputs[digest], design=run.inputs.get(design)
            )
    return BaseRecord(model=lasting_name(recipe.model), weights=weights, teacher=teacher, precision=precision)


def _through_stages(session: _Session) -> tuple[Trainee, dict[str, dict[str, int]]]:
    """The trainee after its last stage, and the number of parameters that trained in each."""
    recipe, design, seed = session.recipe, session.planned.design, session.planned.seed
    trainee = Trainee.load(recipe, design, seed)
    # what a later stage refuses shows before the first step; the next stage is prepared anyway
    for name in [name for name, step in session.steps.items() if not session.run.is_done(step)][1:]:
        trainee.backbone.set_attention(STAGES[name].attention or design.attention)
        STAGES[name].prepare(recipe.stage(name), trainee, session.sets[name], seed)
    trains = {}
    for number, (name, step) in enumerate(session.steps.items(), start=1):
        was_done = session.run.is_done(step)
        covered = _run_stage(session, name, step, trainee)
        if recipe.shard and not was_done:  # shards cannot be merged: a trainee without them loads the result of this stage
            processes.wait()
            return _through_stages(session)
        trains[name] = {kind.kind: kind.trainable for kind in covered}
        trainee.end(merge=recipe.merge or number < len(recipe.stages))
    return trainee, trains


def _run_stage(session: _Session, name: str, step: str, trainee: Trainee) -> list[Coverage]:
    """Run one stage, or load its weights if it is done. The trainee then holds these weights, not yet merged."""
    from unmask.training.loop import checkpoints, load_trainable, save_trainable

    stage, folder = session.recipe.stage(name), session.planned.folder / step
    trainee.backbone.set_attention(STAGES[name].attention or trainee.embedder.design.attention)
    covered = trainee.begin(name, session.planned.seed)
    ready = STAGES[name].prepare(stage, trainee, session.sets[name], session.planned.seed)
    if session.run.is_done(step):
        say(f"  {name}: done before")
        load_trainable(ready.module, folder / WEIGHTS_OF_STAGE)
    else:
        session.listener.covered(name, covered)
        if stage.warmup >= stage.steps:
            say(
                f"  {name}: the warm-up of {stage.warmup} steps does not end within {stage.steps}, so the learning rate stays below "
                f"{stage.lr:g}"
            )
        if processes.is_first():
            longest = trainee.backbone.within_positions(stage.max_length)
            cut, texts = ready.cut()
            limit = f"{name}.max_length" if longest == stage.max_length else "the positions of the model"
            if cut:
                say(f"  {name}: {cut} of the first {texts} texts are cut to {longest} tokens ({limit})")
        if trainee.recipe.shard:
            # a head that predicts tokens may share its weights with the embeddings, so both belong to one root
            shard(trainee.backbone, ready.module if ready.module is trainee.language_model else trainee.backbone.model)

        def compute(folder: Path) -> None:
            _loop(name, stage, ready, trainee, folder, session)
            save_trainable(ready.module, folder / WEIGHTS_OF_STAGE)

        session.run.step(step, compute, files=[WEIGHTS_OF_STAGE])
    if processes.is_first():
        for checkpoint in checkpoints(folder):  # optimizer states are as large as what trained, twice
            remove(checkpoint)
    return covered


def _loop(name: str, stage: StageOptions, ready: Prepared, trainee: Trainee, folder: Path, session: _Session) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback
    from transformers.trainer_callback import PrinterCallback

    from unmask.training.loop import Loop, arguments, resumable
    from unmask.training.progress import EaseWatch

    score = session.score if trainee.backbone.attention == trainee.embedder.design.attention else None
    if stage.checkpointing:
        trainee.backbone.model.gradient_checkpointing_enable({"use_reentrant": False})
    is_on_cpu = trainee.backbone.device.type == "cpu"
    settings = arguments(stage, folder, session.planned.seed, is_on_cpu, score is not None, not trainee.recipe.shard)
    curves = [TensorBoardCallback(SummaryWriter(str(folder / "tensorboard")))] if processes.is_first() else []
    loop = Loop(
        ready.module,
        settings,
        ready.rows,
        ready.collate,
        ready.objective,
        (lambda: score(trainee.embedder)) if score else None,
        [*curves, EaseWatch(STAGES[name].too_easy), *session.listener.callbacks],
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


def clean(sets: Sequence[DataSet], held_out: Mapping[str, Scored], root: Path) -> tuple[list[DataSet], StageData]:
    """Data sets without the rows that occur in held-out tasks, and a record of each. root: where paths of the data start."""
    cleaned, records = [], {}
    texts = {task: of_task for task, (of_task, _) in held_out.items()}
    reports = find_all_leaks(sets, texts, pairs={task: pairs for task, (_, pairs) in held_out.items()})
    for data, report in zip(sets, reports, strict=True):
        rest = without_leaks(data, report)
        say(
            f"  {data.name}: {len(rest.examples)} {data.kind}"
            + "".join(f", {n} {why} left out" for why, n in rest.skipped.items())
            + (f" (columns not read: {', '.join(rest.unread)})" if rest.unread else "")
        )
        cleaned.append(rest)
        records[data.name] = DataSetRecord(
            path=data.source.path,
            examples=len(rest.examples),
            revision=rest.revision,
            left_out=rest.skipped,
            leaks={task.task: LeakCounts(exact=task.exact, near=task.near, pairs=len(task.both)) for task in report.tasks},
            files=digest_of_source(data.source.path, data.source.split, root),
        )
    return cleaned, records
