"""What experts, mixtures and lessons leave on disk: whole, sealed, held by one run, and made again where it was damaged."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.moe.experts.conftest import DOMAINS
from tests.moe.experts.test_training import SHORT, expert
from unmask.errors import UnmaskError
from unmask.io.seals import Damaged
from unmask.models.loading import Source
from unmask.moe.experts.expert import RECORD
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.mixing import Ingredients, mix
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import load_mixture


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def mixed(base: Path, folder: Path, learning: Learning = SHORT, names: Any = DOMAINS, **options: Any) -> Any:
    for name in names:
        expert(base, folder / name, DOMAINS[name])
    ingredients = Ingredients(tuple(folder / name for name in names))
    source = Source(str(base), dtype="float32")
    lessons = options.pop("lessons", DOMAINS)
    return mix(ingredients, lessons, folder / "mixture", Routing(), source, learning=learning, **options)


@pytest.mark.sample(1)
@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_expert_is_trained_again(damage: Any, base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "expert"
    expert(base, folder)
    weights = folder / "adapter_model.safetensors"
    before = weights.read_bytes()
    damage(weights)
    with pytest.warns(UserWarning, match=r"The result is made again: .*adapter_model"):
        expert(base, folder)
    assert weights.read_bytes() == before
    damage(folder / RECORD)
    with pytest.warns(UserWarning), pytest.raises(UnmaskError, match="is damaged, so the settings of"):
        expert(base, folder)
    assert weights.read_bytes() == before


def test_a_damaged_mixture_is_not_loaded(base: Path, tmp_path: Path) -> None:
    mixed(base, tmp_path)
    whole = tmp_path / "mixture"
    files = [file.relative_to(whole) for file in whole.rglob("*") if file.is_file()]
    assert {"mixture.json", "router.safetensors", "adapter_model.safetensors"} <= {file.name for file in files}
    for file, damage in product(files, (flip, cut)):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "copy")
        damage(tmp_path / "copy" / file)
        with pytest.raises(Damaged) as told:
            load_mixture(tmp_path / "copy", Source(""))
        assert file.name in str(told.value) and "\n" not in str(told.value)
