"""The embedder and the index that tests of searching share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.search.cases import indexed, opened
from unmask.embedder import Embedder
from unmask.search.index import Index


@pytest.fixture(scope="module")
def embedder(pico: Callable[..., Embedder]) -> Embedder:
    return pico()


@pytest.fixture
def index(embedder: Embedder, tmp_path: Path) -> Index:
    indexed(embedder, tmp_path)
    return opened(embedder, tmp_path)
