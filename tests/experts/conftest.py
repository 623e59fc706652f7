"""A pico base model on disk, and lessons of two domains that differ in what follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mixture.models import language_model
from unmask.experts.lessons.lessons import Lesson

SUMS = [Lesson("Add the numbers.", f"The sum is {a + b}.", f"{a} and {b}", f"sums:{a}{b}") for a in range(4) for b in range(3)]
COLOURS = [Lesson(f"Name the colour of {thing}.", "It is green, as all of them are.", where=thing) for thing in "abcdefghijkl"]
DOMAINS = {"sums": SUMS, "colours": COLOURS}


@pytest.fixture
def base(tokenizer: Any, tmp_path: Path) -> Path:
    language_model(vocab_size=512, max_position_embeddings=512).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"
