"""The corpus that tests of folders of vectors share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bulk.corpora import write_corpus


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus, which the test runs in, so that names of files are short."""
    write_corpus(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    return Path()
