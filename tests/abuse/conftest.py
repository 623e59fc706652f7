"""The folder that the examples start from, and the models that they need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.abuse.examples import prepare
from tests.abuse.forking import import_everything


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the input of every example; the same one for all workers. Copy it, and leave it as it is."""
    import unmask.models.bundled

    import_everything()
    unmask.models.bundled.resolve("pico")
    home = tmp_path_factory.getbasetemp()
    home = home.parent if os.environ.get("PYTEST_XDIST_WORKER") else home
    ready = home / "abuse" / "ready"
    with FileLock(home / "abuse.lock"):
        if not ready.exists():
            shutil.rmtree(ready.parent, ignore_errors=True)
            scratch = ready.with_name("scratch")
            scratch.mkdir(parents=True)
            prepare(scratch, ready.with_name("notes"))
            scratch.rename(ready)
    return ready


@pytest.fixture
def here(furnished: Path, tmp_path: Path) -> Iterator[Path]:
    """A furnished folder of the test's own."""
    shutil.copytree(furnished, tmp_path / "here")
    yield tmp_path / "here"
    shutil.rmtree(tmp_path, ignore_errors=True)
