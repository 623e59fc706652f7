"""Bases of experts and mixtures: one that was trained again in place is noticed by whoever resumes, mixes, loads or studies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.moe.experts.conftest import DOMAINS, SUMS
from unmask.errors import UnmaskError
from unmask.models.identity import recorded_base
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.expert import train_expert
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.mixing import Ingredients, mix
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import build_mixture, load_mixture
from unmask.training.lora import LoraOptions

SHORT = Learning(steps=2, lr=5e-3, batch=4, save_every=1)
CHANGED = "has changed since"


def expert(base: Path | str, folder: Path, *callbacks: Any) -> Any:
    source = Source(str(base), dtype="float32")
    return train_expert(source, SUMS, folder, lora=LoraOptions(r=4, alpha=8), learning=SHORT, callbacks=callbacks)


def mixed(folder: Path, experts: Path) -> Any:
    ingredients = Ingredients(tuple(experts / name for name in DOMAINS))
    return mix(ingredients, DOMAINS, folder, Routing(), Source("", dtype="float32"), learning=SHORT)


@pytest.fixture
def experts(base: Path, tmp_path: Path) -> Path:
    for name in DOMAINS:
        expert(base, tmp_path / "experts" / name)
    return tmp_path / "experts"


def retrain(base: Path) -> None:
    weights = load_file(base / "model.safetensors")
    save_file({name: weight + 0.05 for name, weight in weights.items()}, base / "model.safetensors", {"format": "pt"})


def test_a_base_that_was_retrained_is_noticed_by_all_who_use_its_experts(base: Path, experts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixture"
    mixed(folder, experts)
    said = json.loads((folder / "mixture.json").read_text())
    assert (said["base"], said["revision"], said["base_weights"]) == (str(base), None, recorded_base(experts / "sums"))
    assert mixed(folder, experts).losses  # taken over
    retrain(base)
    uses: list[Callable[[], Any]] = [
        lambda: mixed(folder, experts),
        lambda: build_mixture([experts / "sums"], Routing()),
        lambda: build_mixture([experts / "sums"], Routing(), Source(str(base))),
        lambda: load_mixture(folder, Source(str(folder))),
        lambda: load_language_model(Source(str(experts / "sums"))),
    ]
    for use in uses:
        with pytest.raises(UnmaskError, match=CHANGED):
            use()
    named = Source(str(base), adapters=(str(folder),), dtype="float32")  # whoever names the base means it
    assert load_mixture(folder, named)[0].source.model == str(base)
    assert load_language_model(named) and load_language_model(
        Source(str(base), adapters=(str(experts / "sums"),), dtype="float32")
    )


def test_the_same_experts_or_lessons_in_another_order_are_another_mixture(base: Path, experts: Path, tmp_path: Path) -> None:
    mixed(tmp_path / "mixture", experts)
    names, turned = list(DOMAINS), dict(reversed(DOMAINS.items()))
    for order, lessons in ((names[::-1], DOMAINS), (names, turned)):
        with pytest.raises(UnmaskError, match=rf"'{tmp_path / 'mixture'}' holds a run with other settings: order was"):
            ingredients = Ingredients(tuple(experts / name for name in order))
            mix(ingredients, lessons, tmp_path / "mixture", Routing(), Source("", dtype="float32"), learning=SHORT)
