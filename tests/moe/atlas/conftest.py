"""Atlases to look at: a small one with measures, one whose texts and names no page should trust, and two side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.moe.atlas.looking import Look
from tests.moe.atlas.made_record import Made, write_made
from unmask.moe.atlas.page import write_atlas
from unmask.moe.routing.measures import measured_routing
from unmask.moe.routing.record import read_record
from unmask.moe.routing.text_bootstrap import Draws

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def recorded(folder: Path, made: Made, measured: bool = False) -> Path:
    write_made(folder, made)
    if measured:
        measured_routing(read_record(folder), Draws(20, 10, 10))
    return folder


@pytest.fixture(scope="session")
def small_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("small-record"), Made(tags=True), measured=True)


@pytest.fixture(scope="session")
def small_atlas(small_record: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_atlas([small_record], tmp_path_factory.mktemp("small-atlas"))


@pytest.fixture(scope="session")
def strange_atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strange")
    return write_atlas([recorded(folder / "record", Made(strange=True, named=True, texts=20))], folder)


@pytest.fixture(scope="session")
def two_atlases(small_record: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    other = recorded(folder / "record", Made(points=7, experts=4, chosen=1, known=0.1, model="other", seed=3))
    return write_atlas([small_record, other], folder)


@pytest.fixture
def look(browser: Browser) -> Iterator[Any]:
    """Open an atlas; at the end nothing may have gone wrong, and nothing but the file been asked for."""
    opened: list[tuple[Any, Look]] = []

    def at(atlas: Path, width: int = 1280, **options: Any) -> Look:
        context = browser.new_context(viewport={"width": width, "height": 900}, **({"reduced_motion": "reduce"} | options))
        opened.append((context, Look(context.new_page(), atlas)))
        return opened[-1][1]

    yield at
    for context, seen in opened:
        assert seen.problems == []
        assert [url for url in seen.asked if not url.startswith("file:")] == [] and len(seen.asked) == 1
        context.close()
