"""Trains each design of a recipe with each seed, stage by stage. A run that was stopped can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

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
from unmask.training import processes
from unmask.training.card import has_chosen_checkpoint
from unmask.training.data import DataSet
from unmask.training.leakage import TaskTexts, find_leaks, remove_leaks
from unmask.training.lora import Coverage
from unmask.training.recipe import Recipe, read_sets
from unmask.training.records import (
    BaseRecord,
    DataSetRecord,
    LeakCounts,
    StageData,
    TeacherRecord,
    TrainingJob,
    TrainingResult,
    TrainingSettings,
    training_jobs,
)
from unmask.training.sources import digest_of_source
from unmask.training.stages import STAGES
from unmask.training.stages.stage import PreparedStage
from unmask.training.trainee import Trainee, require_trainable, training_precision

WEIGHTS_OF_STAGE = "done.safetensors"

Score = Callable[[Embedder], dict[str, float]]
"""The scores of an embedder on the tasks of a recipe."""


@dataclass(frozen=True)
class Listener:
    """Callbacks during training. on_coverage: called with the weights that a stage trains. callbacks: of the Trainer."""

    on_coverage: Callable[[str, Sequence[Coverage]], None] = lambda *_: None
    callbacks: Sequence[Any] = field(default_factory=list)


SILENT = Listener()


def train(
    recipe: Recipe,
    folder: Path,
    root: Path,
    score: Score | None = None,
    listener: Listener = SILENT,
    excluded_tasks: Mapping[str, TaskTexts] | None = None,
) -> list[TrainingJob]:
    """Train every design of a recipe with every seed.

    A run that was stopped continues from its last checkpoint, with the same weights as an unbroken run.

    Args:
        root: Folder that the paths of the recipe's data are relative to.
        score: Returns the scores of an embedder on the recipe's tasks.
        excluded_tasks: Rows with one of their texts, or with a near duplicate, are removed from the training data.

    Raises:
        UnmaskError: For data or settings that cannot be trained on, and if a folder holds a run with other settings or inputs.
    """
    require_package("tensorboard")
    processes.connect()
    jobs = training_jobs(recipe, folder.resolve())
    for job in jobs:  # the last design is refused before the first one trains
        require_trainable(recipe, job.design)
    for job in jobs:
        _train_one(recipe, job, root, score, listener, excluded_tasks or {})
        processes.wait()
    return jobs


def check_data(recipe: Recipe, root: Path) -> dict[str, list[DataSet]]:
    """Read every row that the recipe needs, by stage, without loading a model. Raises UnmaskError with file, line and reason."""
    return {stage: read_sets(recipe, stage, root, recipe.seeds[0]) for stage in recipe.stages}


def hash_of_texts(texts: TaskTexts) -> str:
    """A hash of the texts and pairs of a task, 16 hex digits."""
    return hashlib.sha256(repr([list(part) for part in texts]).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class _Session:
    """A run while it trains."""

    recipe: Recipe
    job: TrainingJob
    run: Run
    sets: Mapping[str, Sequence[DataSet]]
    score: Score | None
    listener: Listener

    @property
    def steps(self) -> dict[str, str]:
        """The step of each stage."""
        return {name: f"stages/{number}-{name}" for number, name in enumerate(self.recipe.stages, start=1)}


def _train_one(
    recipe: Recipe,
    job: TrainingJob,
    root: Path,
    score: Score | None,
    listener: Listener,
    excluded_tasks: Mapping[str, TaskTexts],
) -> None:
    settings = TrainingSettings(
        recipe=recipe.model_copy(update={"designs": (job.design.name,), "seeds": (job.seed,)}),
        held_out_tasks={task: hash_of_texts(texts) for task, texts in excluded_tasks.items()},
    )
    used = {name: recipe.data[name] for stage in recipe.stages for name in recipe.stage(stage).data}
    files = {  # a finished run does not need its data
        f"file of the data set '{name}'": digest_of_source(source.path, source.split, root)
        for name, source in used.items()
        if (root / expanded(source.path)).exists()
    }
    with runs.open(job.folder, settings, inputs=files, output="model", processes=processes) as run:
        if run.result is not None:
            say(f"{job.label}: done before, in {job.result}")
            return
        say(job.label)
        sets, records = {}, {}
        for name in recipe.stages:  # every row is checked before anything is loaded
            sets[name], records[name] = remove_leaking_rows(read_sets(recipe, name, root, job.seed), excluded_tasks, root)
        for name, of_stage in records.items():
            run.check({f"data set '{data}' of stage {name}": record.revision for data, record in of_stage.items()})
        session = _Session(recipe, job, run, sets, score, listener)
        base = _base_record(session)
        trainee = Trainee.load(recipe, job.design, job.seed)
        # what a later stage refuses shows before the first step; the next stage is prepared anyway
        for name in [name for name, step in session.steps.items() if not run.is_done(step)][1:]:
            trainee.backbone.set_attention(STAGES[name].attention or job.design.attention)
            STAGES[name].prepare(recipe.stage(name), trainee, sets[name], job.seed)
        trains = {}
        for number, name in enumerate(recipe.stages, start=1):
            trains[name] = {kind.kind: kind.trainable for kind in _run_stage(session, name, trainee)}
            trainee.finish_stage(merge=recipe.merge or number < len(recipe.stages))
        trainee.backbone.set_attention(job.design.attention)
        trainee.prepare_for_saving()
        result = TrainingResult(
            design=job.design.name,
            seed=job.seed,
            base=base,
            data=records,
            trains=trains,
            hardware=hardware(trainee.backbone.device),
            versions=versions(),
            scores=score(trainee.embedder) if score else {},
            chosen=has_chosen_checkpoint(recipe, job.folder),
        )
        if processes.is_first():
            trainee.save(job.result)
        run.finish(result)


def _base_record(session: _Session) -> BaseRecord:
    """The base model, the teachers and the precision, which are compared with those the run began with. Raises UnmaskError."""
    recipe, run = session.recipe, session.run
    weights, precision = identity_of(Source(recipe.model)).revision, training_precision(recipe)
    run.check({f"base model '{recipe.model}'": weights, "precision of training": precision})
    records = {}
    for name, step in session.steps.items():
        for role, teacher in STAGES[name].teachers(recipe.stage(name)).items():
            digest, design = f"{role} '{teacher.model}'", f"design of the {role} '{teacher.model}'"
            if not run.is_done(step) or digest not in run.inputs:  # else the teacher may have been removed
                run.check({digest: identity_of(Source(teacher.model)).revision, design: teacher.design})
            records[role] = TeacherRecord(
                model=lasting_name(teacher.model), weights=run.inputs[digest], design=run.inputs.get(design)
            )
    return BaseRecord(model=lasting_name(recipe.model), weights=weights, precision=precision, **records)


def _run_stage(session: _Session, name: str, trainee: Trainee) -> list[Coverage]:
    """Run one stage, or load its weights if it is done. The trainee then holds these weights, not yet merged."""
    from unmask.training.loop import checkpoints, load_trainable, save_trainable

    stage, step = session.recipe.stage(name), session.steps[name]
    trainee.backbone.set_attention(STAGES[name].attention or trainee.embedder.design.attention)
    covered = trainee.start_stage(name, session.job.seed)
    ready = STAGES[name].prepare(stage, trainee, session.sets[name], session.job.seed)
    if session.run.is_done(step):
        say(f"  {name}: done before")
        load_trainable(ready.module, session.job.folder / step / WEIGHTS_OF_STAGE)
    else:
        session.listener.on_coverage(name, covered)
        if stage.warmup >= stage.steps:
            say(
                f"  {name}: the warm-up of {stage.warmup} steps does not end within {stage.steps}, so the learning rate stays below "
                f"{stage.lr:g}"
            )

        def compute(folder: Path) -> None:
            _run_loop(session, name, ready, trainee, folder)
            save_trainable(ready.module, folder / WEIGHTS_OF_STAGE)

        session.run.step(step, compute, files=[WEIGHTS_OF_STAGE])
    if processes.is_first():
        for checkpoint in checkpoints(session.job.folder / step):  # optimizer states are twice as large as what trained
            remove(checkpoint)
    return covered


def _run_loop(session: _Session, name: str, ready: PreparedStage, trainee: Trainee, folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback
    from transformers.trainer_callback import PrinterCallback

    from unmask.training.loop import Loop, find_resumable_checkpoint, trainer_arguments

    stage, score = session.recipe.stage(name), session.score
    if trainee.backbone.attention != trainee.embedder.design.attention:
        score = None
    if stage.checkpointing:
        trainee.backbone.model.gradient_checkpointing_enable({"use_reentrant": False})
    is_on_cpu = trainee.backbone.device.type == "cpu"
    curves = [TensorBoardCallback(SummaryWriter(str(folder / "tensorboard")))] if processes.is_first() else []
    loop = Loop(
        ready.module,
        trainer_arguments(stage, folder, session.job.seed, is_on_cpu, score is not None),
        ready.rows,
        ready.collate,
        ready.objective,
        evaluate_with=(lambda: score(trainee.embedder)) if score else None,
        callbacks=[*curves, *session.listener.callbacks],
        average=stage.average,
    )
    loop.remove_callback(PrinterCallback)
    checkpoint = find_resumable_checkpoint(folder)
    if checkpoint:
        say(f"  {name}: resumed from {checkpoint.name}")
    with ready.around(), compiled(trainee.backbone.layers[: trainee.depth]) if session.recipe.compile else nullcontext():
        loop.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    ready.module.eval()
    if stage.checkpointing:
        trainee.backbone.model.gradient_checkpointing_disable()
    if processes.is_first():
        write_json(folder / "log.json", loop.state.log_history)


@contextmanager
def compiled(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Compile the forward pass of some layers, for batches of any size."""
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None


def remove_leaking_rows(
    sets: Sequence[DataSet], excluded_tasks: Mapping[str, TaskTexts], root: Path
) -> tuple[list[DataSet], StageData]:
    """Data sets without the rows that occur in the excluded tasks, and a record of each. root: of the paths of the data."""
    cleaned, records = [], {}
    for data, report in zip(sets, find_leaks(sets, excluded_tasks), strict=True):
        clean = remove_leaks(data, report)
        say(f"  {clean.summary}")
        cleaned.append(clean)
        records[data.name] = DataSetRecord(
            path=data.source.path,
            examples=len(clean.examples),
            revision=clean.revision,
            left_out=clean.skipped,
            leaks={task.task: LeakCounts(exact=task.exact, near=task.near, pairs=len(task.both)) for task in report.tasks},
            files=digest_of_source(data.source.path, data.source.split, root),
        )
    return cleaned, records
