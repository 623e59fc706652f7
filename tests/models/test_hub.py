"""A saved embedder on the hub is loaded as it was saved. The hub is a cache of the test's own, as a download leaves it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants

from tests.conftest import TEXTS
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.hub import hub_folder
from unmask.saving.folder import SETTINGS, read_settings

COMMITS = {"main": "1" * 40, "older": "2" * 40}
LOADING: dict[str, Any] = {"dtype": "float32", "device": "cpu"}


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a folder on the hub, under the name "someone/embedder" and a branch."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    place = cache / "models--someone--embedder"

    def put(folder: Path, branch: str = "main") -> None:
        shutil.copytree(folder, place / "snapshots" / COMMITS[branch])
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / branch).write_text(COMMITS[branch])

    return put


def test_a_saved_embedder_brings_its_design_and_its_fit(
    put: Callable[..., None], pico: Callable[..., Embedder], tmp_path: Path
) -> None:
    saved = pico("bidirectional/plain/mean/zscore", max_length=24).fit(TEXTS)
    saved.save_pretrained(tmp_path / "saved")
    put(tmp_path / "saved")
    loaded = Embedder.from_pretrained("someone/embedder", dtype="float32", device="cpu")
    assert loaded.design == saved.design
    assert loaded.max_length == 24
    assert np.array_equal(loaded.encode(TEXTS), saved.encode(TEXTS))


def test_what_is_no_saved_embedder_has_no_settings(
    put: Callable[..., None], pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(pico_folder("llama"))
    assert read_settings("someone/embedder") is None
    assert hub_folder("someone/embedder", SETTINGS, None) is None
    assert read_settings("someone/nobody-has-this") is None, "loading gives the reason"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone").mkdir()
    assert read_settings("someone/embedder") is None, "it is written like a path here, so the hub is not asked"


@pytest.mark.parametrize("name", ["someone/nobody-has-this"])
def test_a_model_that_nobody_has_is_told_as_such(name: str, put: Callable[..., None]) -> None:
    with pytest.raises(UnmaskError, match=f"'{name}' is neither a folder nor a bundled model .* could not be downloaded"):
        Embedder.from_pretrained(name, **LOADING)
