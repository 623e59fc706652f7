"""`unmask probe routing`, run as a user does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.moe.routing.recorded import topical
from tests.probing.conftest import Run
from tests.tiny import write_rows


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [{"text": text.text, "topic": text.values[0], "size": text.values[1]} for text in topical(24).texts]
    return write_rows(tmp_path / "texts.jsonl", rows)


def test_a_record_is_made_measured_and_read_again(
    run: Run, texts: Path, pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = ("routing", "-o", tmp_path / "out")
    code, out, err = run(*base, "-m", pico_folder("olmoe"), "-t", texts, "--label", "topic", "--label", "size")
    assert code == 0, err
    for part in (
        "topic: information",
        "size: probe, routing weights",
        "repetition",
        "3 routing points, 2 of 8 experts per token",
    ):
        assert part in out
    assert max(len(line.rstrip()) for line in out.splitlines() if line.startswith(" ")) <= 80
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name[0] != ".") == [
        "measures.json",
        "parts",
        "record.json",
    ]
    assert run(*base)[1] == out, "without a model"
    found: Any = json.loads(run(*base, "--json")[1])
    assert found["labels"]["topic"]["values"] == {"music": 12, "sport": 12} and len(found["points"]) == 3
    assert found["draws"]["seed"] == 0


def test_two_records_are_compared(run: Run, texts: Path, pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    for name, family in (("a", "olmoe"), ("b", "mixtral")):
        assert run("routing", "-m", pico_folder(family), "-t", texts, "-o", tmp_path / name)[0] == 0
    code, out, _ = run("routing", "-o", tmp_path / "a", "--against", tmp_path / "b")
    assert code == 0 and all(word in out for word in ("kappa", "AMI", "saturation"))
    found = json.loads(run("routing", "-o", tmp_path / "a", "--against", tmp_path / "b", "--json")[1])
    assert found["measures"]["kappa"]["value"] < 0.9
