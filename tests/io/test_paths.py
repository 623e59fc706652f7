"""Paths as users give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.io.paths import expanded


def test_the_home_folder_is_put_in_and_a_name_that_begins_alike_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert expanded("~/texts") == Path("/home/ada/texts") and expanded(Path("~")) == Path("/home/ada")
    assert expanded("~draft.jsonl") == Path("~draft.jsonl") and expanded("a/~b") == Path("a/~b")
