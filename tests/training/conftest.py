"""A pico language model on disk: with the head that stages on tokens need."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers and 32 dimensions with its language-model head, and a tokenizer."""
    from unmask.models.pico import write_pico

    folder = tmp_path_factory.mktemp("pico")
    write_pico(folder)
    return folder / "converted"
