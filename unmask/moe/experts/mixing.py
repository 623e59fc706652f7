"""Mixing: build a mixture on disk from experts and lessons. Training of the router, or of experts and router together, is resumable."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import nn

from unmask.errors import UnmaskError
from unmask.io.records import Record
from unmask.models.decoder import body_of, find_layers
from unmask.models.identity import BASE_MODEL, identity_of
from unmask.models.loading import Source, load_base_language_model, precision_of
from unmask.models.source import adapter_weights
from unmask.moe.experts.expert import LORA, Trained, linear_kinds
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.moe.experts.records import LearningResult, LessonsRecord
from unmask.moe.experts.router import LEARNING, RouterOptions, train_router
from unmask.moe.mixture.expert_folder import Expert, read_expert, write_expert
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import EXPERTS, base_of_experts
from unmask.moe.mixture.model import Mixture, build_mixture
from unmask.runs import runs
from unmask.training.lora import LoraOptions, weight_kinds

RECORD = "mixing.json"
JOINT = Learning(steps=192, lr=3e-4, batch=8, warmup=4)


class MixingSettings(Record):
    """The settings in `mixing.json`.

    experts, shared: hashes of weights. scales: by which each expert's product of factors is multiplied. lora: of experts that
    trained with their router. order: of experts and domains; rows of the router and of each batch follow it.
    """

    dtype: str
    domains: dict[str, LessonsRecord]
    routing: Routing
    learning: Learning
    options: RouterOptions
    experts: dict[str, str] = Field(default_factory=dict)
    scales: dict[str, float] = Field(default_factory=dict)
    shared: str | None = None
    lora: LoraOptions | None = None
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ingredients:
    """What a mixture is made of: the PEFT folders of its experts, in order, and optionally an expert that always acts (shared)."""

    experts: tuple[Path, ...] = ()
    shared: Path | None = None


def default_learning(joint: bool) -> Learning:
    """How a router is trained on its frozen experts, or together with them."""
    return JOINT if joint else LEARNING


def train_mixture(
    ingredients: Ingredients,
    domains: Mapping[str, Sequence[Lesson]],
    folder: Path,
    routing: Routing,
    source: Source,
    *,
    lora: LoraOptions = LORA,
    learning: Learning | None = None,
    options: RouterOptions | None = None,
    callbacks: Sequence[Any] = (),
) -> Trained:
    """Put experts into their base and train the router. A run that was stopped in the same folder continues.

    With `options.joint`, new experts (`lora`) are trained together with the router: as many as there are domains, but no expert belongs to
    a domain. source: how to load the base; it also names the base, unless its model is empty and the experts do. learning: by default,
    `default_learning`. Raises UnmaskError for a folder that holds something else, and as building and training do.
    """
    options = options or RouterOptions()
    learning = learning or default_learning(options.joint)
    learning.require_first_gpu(source.device)
    inputs: dict[str, Any]
    if options.joint:
        if ingredients != Ingredients() or not source.model:
            raise UnmaskError("--joint trains new experts: name the base model (--base) and lessons, but no other experts.")
        if options.start == "prototypes":
            raise UnmaskError("Experts that learn jointly belong to no domain, so they cannot start from prototypes.")
        if options.lr == learning.lr:
            options = replace(options, lr=None)  # one rate for both, however it was given
        names = [f"expert{index}" for index in range(len(domains))]
        build = partial(fresh_mixture, source, names, routing, lora, learning.seed)
        inputs = {"order": tuple(domains), "lora": lora}
    else:
        if not ingredients.experts:
            raise UnmaskError("Name the folders of the experts, or train new ones with --joint.")
        options = replace(options, lr=None)
        experts = [read_expert(expert) for expert in ingredients.experts]
        shared = [read_expert(ingredients.shared)] if ingredients.shared else []
        source = base_of_experts(experts, source)
        names = [expert.name for expert in experts]
        build = partial(build_mixture, ingredients.experts, routing, source, learning.seed, ingredients.shared)
        inputs = {
            "order": (*names, *domains),
            "experts": {expert.name: _factors_hash(expert.folder) for expert in experts},
            "scales": {expert.name: expert.scale for expert in (*experts, *shared)},
            "shared": _factors_hash(ingredients.shared) if ingredients.shared else None,
        }
    options.check(routing, names, domains, learning)
    settings = MixingSettings(
        dtype=precision_of(source),
        domains={name: LessonsRecord.of(lessons) for name, lessons in domains.items()},
        routing=routing,
        learning=learning,
        options=options,
        **inputs,
    )
    with runs.open_published(folder, settings, inputs={BASE_MODEL: identity_of(source).revision}, record=RECORD) as run:
        if run.result is None:
            mixture, tokenizer = build()
            for lessons in domains.values():
                tokenize_lessons(tokenizer, lessons, learning.max_length)
            losses = train_router(
                mixture,
                tokenizer,
                domains,
                run.scratch("training"),  # only now: a mixture that cannot be built or trained leaves nothing behind
                learning=learning,
                options=options,
                callbacks=callbacks,
            )
            if options.joint:
                write_experts(mixture, run.work / EXPERTS, lora)
            run.publish(mixture.write_files, LearningResult.of(source, [{"loss": loss} for loss in losses]))
        result = LearningResult.model_validate(run.result)
    return Trained(run.folder, result.losses)


def _factors_hash(expert: Path) -> str:
    file = adapter_weights(expert) or expert / "adapter_model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def fresh_mixture(source: Source, names: Sequence[str], routing: Routing, lora: LoraOptions, seed: int) -> tuple[Mixture, Any]:
    """A mixture with untrained experts, their weights in fp32 for training; and its tokenizer."""
    model, tokenizer = load_base_language_model(source)
    layers = find_layers(body_of(model))
    kinds = weight_kinds(model, layers)
    linears = [name for kind in linear_kinds(model, layers, lora) for name in kinds[kind]]
    chance = torch.Generator().manual_seed(seed)
    experts = []
    for name in names:
        factors = {}
        for path in linears:
            size_out, size_in = model.get_submodule(path).weight.shape
            bound = 1 / math.sqrt(size_in)  # as PEFT begins: Kaiming, uniform, a = sqrt(5)
            down = (torch.rand(lora.r, size_in, generator=chance) * 2 - 1) * bound
            factors[path] = (down, torch.zeros(size_out, lora.r))
        experts.append(Expert(name, Path(), source.model, lora.r, lora.alpha / lora.r, factors))
    mixture = Mixture(model, experts, routing, source=source, seed=seed)
    mixture.scale_experts(lora.alpha / lora.r)
    for point in mixture.points.values():
        point.prepare_training()
    for linear in mixture.expert_linears.values():
        linear.down, linear.up = (nn.Parameter(weight.float(), requires_grad=False) for weight in (linear.down, linear.up))
    return mixture, tokenizer


def write_experts(mixture: Mixture, folder: Path, lora: LoraOptions) -> None:
    """Write what the experts of a mixture have become as PEFT folders, which they are the experts of from then on."""
    experts = []
    for index, expert in enumerate(mixture.experts):
        rows = slice(index * expert.rank, (index + 1) * expert.rank)
        factors = {
            name: (linear.down.detach()[rows].float().cpu(), linear.up.detach()[:, rows].float().cpu() * (lora.alpha / lora.r))
            for name, linear in mixture.expert_linears.items()
        }
        trained = replace(expert, folder=folder / expert.name, factors=factors)
        write_expert(trained, trained.folder, lora.alpha)
        experts.append(trained)
    mixture.experts = experts
