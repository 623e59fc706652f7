"""Running one stage, or loading its weights if it is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.embedder import Embedder
from unmask.io.files import remove, write_json
from unmask.io.seals import Damaged, load_tensors
from unmask.io.terminal import say
from unmask.training import processes
from unmask.training.data import DataSet
from unmask.training.lora import Coverage
from unmask.training.records import DONE
from unmask.training.sharding import shard
from unmask.training.stages import STAGES
from unmask.training.stages.stage import Prepared, StageOptions
from unmask.training.trainee import Trainee

Score = Callable[[Embedder], dict[str, float]]
"""The scores of an embedder on the tasks of a recipe."""


@dataclass(frozen=True)
class Listener:
    """Functions that are called while a run goes on. covered: what trains in a stage. callbacks: of the loop."""

    covered: Callable[[str, Sequence[Coverage]], None] = lambda *_: None
    callbacks: Sequence[Any] = field(default_factory=list)


SILENT = Listener()


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

    done = is_finished(folder)
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
    if processes.is_first():
        _say_cut(name, stage, ready, trainee.backbone.within_positions(stage.max_length))
    if trainee.recipe.shard:
        # a head that predicts tokens may share its weights with the embeddings, so both belong to one root
        shard(trainee.backbone, ready.module if ready.module is trainee.language_model else trainee.backbone.model)
    _loop(name, stage, ready, trainee, folder, seed, score, listener)
    save_trainable(ready.module, folder / DONE)
    processes.wait()  # a process may still be reading the best checkpoint
    _remove_checkpoints(folder)
    return covered


def _say_cut(name: str, stage: StageOptions, ready: Prepared, longest: int) -> None:
    """Say how many texts are longer than the limit, before the first step."""
    cut, texts = ready.cut()
    limit = f"{name}.max_length" if longest == stage.max_length else "the positions of the model"
    if cut:
        say(f"  {name}: {cut} of the first {texts} texts are cut to {longest} tokens ({limit})")


def stage_folder(folder: Path, number: int, stage: str) -> Path:
    """The folder of a stage, counted from one."""
    return folder / "stages" / f"{number}-{stage}"


def is_finished(folder: Path) -> bool:
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


def _remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a stage that is done: optimizer states are as large as what trained, twice."""
    from unmask.training.loop import checkpoints

    if processes.is_first():
        for checkpoint in checkpoints(folder):
            remove(checkpoint)


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
