"""Kills at random moments of writing lessons and of training: nothing is lost, and the result is the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.moe.experts.conftest import DOMAINS, SUMS
from tests.moe.experts.lessons.test_specialise import FREE, Scripted
from tests.moe.experts.test_training import LORA, SHORT
from tests.proofs import ALL
from tests.training.running import ended, forked, killed_at_random
from unmask.models.loading import Source
from unmask.moe.experts.expert import train_expert
from unmask.moe.experts.lessons.specialise import SpecialisePlan, specialise
from unmask.moe.experts.mixing import Ingredients, mix
from unmask.moe.mixture.gating import Routing

KILLS, FOLDERS = (5, 4) if ALL else (2, 1)


def seconds_of(work: Callable[[], object]) -> float:
    """How long a process of its own takes, as those that are killed."""
    begun = time.perf_counter()
    assert ended(forked(work)) == 0
    return time.perf_counter() - begun


def test_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import unmask.moe.experts.lessons.domain as filters

    monkeypatch.setattr(filters, "SIMILAR", 0.99)

    class Slow(Scripted):
        def write(self, *given: Any) -> Any:
            time.sleep(0.01)
            return super().write(*given)

    def write(name: str) -> None:
        specialise(Slow(), "pico", FREE, SUMS, tmp_path / name, SpecialisePlan(number=40, batch=4, patience=20))

    whole = seconds_of(lambda: write("whole"))
    for folder in range(FOLDERS):
        killed_at_random(partial(write, str(folder)), tmp_path / str(folder), KILLS, whole)
    for folder in range(FOLDERS):
        write(str(folder))
        for file in ("lessons.jsonl", "instructions.jsonl", "responses.jsonl", "report.json"):
            assert (tmp_path / str(folder) / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.sample(0)
def test_training(base: Path, tmp_path: Path) -> None:
    source = Source(str(base), dtype="float32")
    learning = replace(SHORT, steps=8, save_every=1)

    def train(name: str) -> None:
        folders = []
        for domain, lessons in DOMAINS.items():
            folders.append(tmp_path / name / domain)
            train_expert(source, lessons, folders[-1], lora=LORA, learning=learning)
        mix(Ingredients(tuple(folders)), DOMAINS, tmp_path / name / "mixture", Routing(), source, learning=learning)

    whole = seconds_of(lambda: train("whole"))
    for folder in range(FOLDERS):
        killed_at_random(partial(train, str(folder)), tmp_path / str(folder), KILLS, whole)
    for folder in range(FOLDERS):
        train(str(folder))
        for file in ("sums/adapter_model.safetensors", "mixture/router.safetensors", "mixture/mixing.json"):
            assert (tmp_path / str(folder) / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
        left = {
            part
            for file in (tmp_path / str(folder)).rglob("*")
            for part in file.parts
            if part.startswith(".") and not part.endswith(".lock")
        }
        assert not left, "no scratch files of a run that was killed"
