"""Expert: one LoRA of a base model, trained on the lessons of one domain, as a plain PEFT folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.errors import UnmaskError
from unmask.io.records import Record
from unmask.models.decoder import body_of, find_layers, pad_id_of
from unmask.models.identity import BASE_MODEL, identity_of, pinned
from unmask.models.loading import Source, load_base_language_model, precision_of
from unmask.moe.experts.lesson_training import Learning, learn
from unmask.moe.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.moe.experts.records import LearningResult, LessonsRecord
from unmask.runs import runs
from unmask.saving.saved_adapter import sort_adapter_config
from unmask.training.lora import LoraOptions, add_lora, weight_kinds
from unmask.training.trainee import cast_inputs

RECORD = "expert.json"
LORA = LoraOptions(r=8, alpha=16)
LEARNING = Learning(steps=96, lr=3e-4, batch=8, warmup=4)


class ExpertSettings(Record):
    """The settings in `expert.json`. dtype: of the base; "auto" would mean another one on another machine."""

    dtype: str
    revision: str | None = None
    lessons: LessonsRecord
    lora: LoraOptions
    learning: Learning


@dataclass(frozen=True)
class Trained:
    """A trained expert or mixture: its folder, and the loss of each logged step."""

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

    theta_spec = theta_0 + B A with r 8, alpha 16 on all linear layers (Self-MoE, arXiv 2406.12034, section 2.1). Plain peft loads the
    folder on the base model. Raises UnmaskError for a folder that holds another expert, and as training does.
    """
    if not learning.steps:
        raise UnmaskError("An expert needs at least one step of training.")
    learning.require_first_gpu(source.device)
    settings = ExpertSettings(
        dtype=precision_of(source),
        revision=source.revision,
        lessons=LessonsRecord.of(lessons),
        lora=lora,
        learning=learning,
    )
    inputs = {BASE_MODEL: identity_of(source).revision}
    with runs.open_published(folder, settings, inputs=inputs, record=RECORD) as run:
        if run.result is None:
            model, tokenizer = load_base_language_model(source)
            torch.manual_seed(learning.seed)
            adapter: Any = add_expert(model, lora)
            tokens = tokenize_lessons(tokenizer, lessons, learning.max_length)
            log = learn(
                model,
                {"lessons": tokens},
                learning,
                pad_id=pad_id_of(tokenizer, model),
                folder=run.scratch("training"),  # only now: a run that cannot train leaves nothing behind
                computing=nullcontext
                if model.dtype == torch.float32
                else lambda: torch.autocast(model.device.type, model.dtype),
                callbacks=callbacks,
            )
            base = pinned(source, adapter)
            config = adapter.peft_config["default"]
            config.base_model_name_or_path, config.revision, config.task_type = base.base, base.revision, "CAUSAL_LM"

            def write(scratch: Path) -> None:
                adapter.save_pretrained(scratch, save_embedding_layers=False)
                sort_adapter_config(scratch)
                (scratch / "README.md").unlink(missing_ok=True)  # an empty template of peft

            run.publish(write, LearningResult.of(source, log))
        result = LearningResult.model_validate(run.result)
    return Trained(run.folder, result.losses)


def add_expert(model: Any, lora: LoraOptions) -> Any:
    """Add a fresh expert to a language model: its LoRA trains, and the model itself is frozen."""
    model.requires_grad_(False)
    layers = find_layers(body_of(model))
    kinds = linear_kinds(model, layers, lora)
    if not kinds:
        raise UnmaskError("The layers of this model have no nn.Linear (GPT-2 has Conv1D), and an expert changes no others.")
    adapter = add_lora(model, layers, lora.model_copy(update={"targets": kinds}))
    cast_inputs(adapter, model.dtype == torch.float32)
    return adapter


def linear_kinds(model: nn.Module, layers: nn.ModuleList, lora: LoraOptions) -> Any:
    """What "all" means for an expert: every linear layer, but no experts of a base that are stacked in one 3-D parameter."""
    if lora.targets != "all":
        return lora.targets
    modules = dict(model.named_modules())
    kinds = weight_kinds(model, layers)
    return tuple(kind for kind, names in kinds.items() if all(isinstance(modules.get(name), nn.Linear) for name in names))
