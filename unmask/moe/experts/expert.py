"""Expert: one LoRA of a base model, trained on the lessons of one domain, as a plain PEFT folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.errors import UnmaskError
from unmask.io.files import atomic_folder, only_writer_of, remove_with_scratch
from unmask.io.seals import seal
from unmask.models.decoder import body_of, find_layers, pad_id_of
from unmask.models.identity import Pinned, identity_of, pinned
from unmask.models.loading import Source, load_base_language_model, precision_of
from unmask.models.provenance import versions
from unmask.models.source import lasting_name
from unmask.moe.experts.lesson_training import Learning, learn
from unmask.moe.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.moe.experts.records import LessonsRecord, TrainingRecord, claim, finished, is_own, working_folder
from unmask.saving.saved_adapter import sort_adapter_config
from unmask.training.lora import LoraOptions, add_lora, weight_kinds
from unmask.training.trainee import cast_inputs

RECORD = "expert.json"
LORA = LoraOptions(r=8, alpha=16)
LEARNING = Learning(steps=96, lr=3e-4, batch=8, warmup=4)


class ExpertRecord(TrainingRecord):
    """The content of `expert.json`."""

    revision: str | None = None
    lessons: LessonsRecord
    lora: LoraOptions
    learning: Learning


@dataclass(frozen=True)
class Trained:
    """A trained expert: its folder, and the loss of each logged step."""

    folder: Path
    losses: tuple[float, ...]


def train_expert(
    source: Source,
    lessons: Sequence[Lesson],
    folder: Path,
    *,
    lora: LoraOptions = LORA,
    learning: Learning = LEARNING,
    callbacks: Sequence[Any] = (),
) -> Trained:
    """Train a LoRA on lessons. A run that was stopped in the same folder continues; one that was finished is reused.

    theta_spec = theta_0 + B A with r 8, alpha 16 on all linear maps (Self-MoE, arXiv 2406.12034, section 2.1). Plain peft loads the
    folder on the base model. Raises UnmaskError for a folder that holds another expert, and as training does.
    """
    if not learning.steps:
        raise UnmaskError("An expert needs at least one step of training.")
    learning.require_first_gpu(source.device)
    folder = Path(os.path.realpath(folder))
    record = ExpertRecord(
        base=lasting_name(source.model),
        base_weights=identity_of(source).revision,
        dtype=precision_of(source),
        revision=source.revision,
        lessons=LessonsRecord.of(lessons),
        lora=lora,
        learning=learning,
    )
    work = working_folder(folder, "training")
    with only_writer_of(folder):
        done = finished(folder, RECORD, record, "expert")
        if done is None:
            adapter, log = _train(source, lessons, work, record, lora, learning, callbacks)
            losses = tuple(entry["loss"] for entry in log if "loss" in entry)
            done = record.model_copy(update={"losses": losses, "versions": versions()})
            _write(adapter, pinned(source, adapter), folder, done)
        remove_with_scratch(work)
    return Trained(folder, done.losses)


def _train(
    source: Source,
    lessons: Sequence[Lesson],
    work: Path,
    record: ExpertRecord,
    lora: LoraOptions,
    learning: Learning,
    callbacks: Sequence[Any],
) -> tuple[Any, list[dict[str, Any]]]:
    """Train an adapter, with checkpoints in `work`. Returns the model with it, and the log of each step."""
    model, tokenizer = load_base_language_model(source)
    torch.manual_seed(learning.seed)
    adapter = add_expert(model, lora)
    tokens = tokenize_lessons(tokenizer, lessons, learning.max_length)
    precise = model.dtype == torch.float32
    claim(work, RECORD, record)  # only now: a run that cannot train leaves nothing behind
    log = learn(
        model,
        {"lessons": tokens},
        learning,
        pad_id_of(tokenizer, model),
        work,
        nullcontext if precise else lambda: torch.autocast(model.device.type, model.dtype),
        callbacks,
    )
    return adapter, log


def add_expert(model: Any, lora: LoraOptions) -> Any:
    """Add a fresh expert to a language model: its LoRA trains, and the model itself is frozen."""
    model.requires_grad_(False)
    layers = find_layers(body_of(model))
    kinds = linear_kinds(model, layers, lora)
    if not kinds:
        raise UnmaskError(
            "The layers of this model have no nn.Linear map (those of GPT-2 are Conv1D), and an expert changes no others."
        )
    adapter = add_lora(model, layers, lora.model_copy(update={"targets": kinds}))
    cast_inputs(adapter, model.dtype == torch.float32)
    return adapter


def _write(adapter: Any, base: Pinned, folder: Path, record: ExpertRecord) -> None:
    config = adapter.peft_config["default"]
    config.base_model_name_or_path, config.revision, config.task_type = base.base, base.revision, "CAUSAL_LM"
    with atomic_folder(folder, replaces=is_own(RECORD)) as scratch:
        adapter.save_pretrained(scratch, save_embedding_layers=False)
        sort_adapter_config(scratch)
        (scratch / "README.md").unlink(missing_ok=True)  # an empty template of peft
        record.write(scratch / RECORD)
        seal(scratch)


def linear_kinds(model: nn.Module, layers: nn.ModuleList, lora: LoraOptions) -> Any:
    """What "all" means for an expert: every linear map, but no experts of a base that are stacked in one 3-D parameter."""
    if lora.targets != "all":
        return lora.targets
    modules = dict(model.named_modules())
    kinds = weight_kinds(model, layers)
    return tuple(kind for kind, names in kinds.items() if all(isinstance(modules.get(name), nn.Linear) for name in names))
