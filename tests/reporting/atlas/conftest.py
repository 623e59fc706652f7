"""Atlases to look at: a small one with measures, one whose texts and names no page should trust, and two side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reporting.atlas.made_record import Made, write_made
from unmask.probing.routing.measures import measured_routing
from unmask.probing.routing.point_measures import Draws
from unmask.probing.routing.record import read_record
from unmask.reporting.atlas.page import write_atlas


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
