"""Expert: one LoRA of a base model, trained on the lessons of one domain, as a plain PEFT folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.decoder import body_of, find_layers
from unmask.errors import UnmaskError
from unmask.experts.bases import require_same_weights, weights_of
from unmask.experts.learning import Learning, learn
from unmask.experts.lessons import Lesson, tokenize_lessons
from unmask.experts.records import content_of, write_or_check
from unmask.files import write_json
from unmask.identity import pinned
from unmask.loading import Source, load_language_model
from unmask.persistence import versions
from unmask.source import lasting_name
from unmask.training.lora import LoraOptions, add_lora, weight_kinds
from unmask.training.trainee import cast_inputs

RECORD = "expert.json"
LORA = LoraOptions(r=8, alpha=16)
LEARNING = Learning(steps=96, lr=3e-4, batch=8, warmup=4)


@dataclass(frozen=True)
class Trained:
    """An expert that was trained: its folder and the loss of each step that was logged."""

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
    """Train a LoRA on lessons; in a folder where that was begun before, go on, and where it was done, take it over.

    theta_spec = theta_0 + B A with r 8, alpha 16 on all linear maps (Self-MoE, arXiv 2406.12034, section 2.1). The folder loads with
    plain peft on the base model. Raises UnmaskError for a folder that holds another expert, and as training does.
    """
    record = {
        "base": lasting_name(source.model),
        "revision": source.revision,
        **weights_of(source),
        "lessons": content_of(lessons),
        "lora": lora.model_dump(mode="json"),
        "learning": asdict(learning),
    }
    work = folder.with_name(f".{folder.name}-training")
    if (done := _read(folder)) is not None:
        before = require_same_weights(done, record, folder)
        if {name: before[name] for name in record} != record:
            raise UnmaskError(f"'{folder}' holds an expert of other lessons or settings: give another folder.")
        shutil.rmtree(work, ignore_errors=True)  # of a run that was killed after its last step
        return Trained(folder, tuple(done["losses"]))
    model, tokenizer = load_language_model(source)
    model.requires_grad_(False)
    torch.manual_seed(learning.seed)
    layers = find_layers(body_of(model))
    adapter = add_lora(model, layers, lora.model_copy(update={"targets": linear_kinds(model, layers, lora)}))
    tokens = tokenize_lessons(tokenizer, lessons, learning.max_length)
    precise = model.dtype == torch.float32
    cast_inputs(adapter, precise)
    write_or_check(work / RECORD, record)
    log = learn(
        model,
        {"lessons": tokens},
        learning,
        int(tokenizer.pad_token_id or 0),
        work,
        nullcontext if precise else lambda: torch.autocast(model.device.type, model.dtype),
        callbacks,
    )
    losses = [entry["loss"] for entry in log if "loss" in entry]
    base, config = pinned(source, model), adapter.peft_config["default"]
    config.base_model_name_or_path, config.revision, config.task_type = base.base, base.revision, "CAUSAL_LM"
    adapter.save_pretrained(work / "expert", save_embedding_layers=False)
    (work / "expert" / "README.md").unlink(missing_ok=True)  # peft's own template, with nothing in it
    write_json(work / "expert" / RECORD, {**record, "losses": losses, "versions": versions()})
    folder.parent.mkdir(parents=True, exist_ok=True)
    (work / "expert").replace(folder)
    shutil.rmtree(work)
    return Trained(folder, tuple(losses))


def _read(folder: Path) -> dict[str, Any] | None:
    file = folder / RECORD
    if not folder.exists():
        return None
    if not file.is_file():
        raise UnmaskError(f"'{folder}' exists and is no expert that was trained here, so it is not overwritten.")
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def linear_kinds(model: nn.Module, layers: nn.ModuleList, lora: LoraOptions) -> Any:
    """What "all" means for an expert: every linear map, but no weight that is a parameter of three dimensions."""
    if lora.targets != "all":
        return lora.targets
    modules = dict(model.named_modules())
    kinds = weight_kinds(model, layers)
    return tuple(kind for kind, names in kinds.items() if all(isinstance(modules.get(name), nn.Linear) for name in names))
