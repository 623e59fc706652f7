"""What leads is told apart from what only seems to, and nothing is compared that does not compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.reporting.synthetic import Folder
from unmask.evaluation.results import ResultStore
from unmask.reporting.grid import Grid, read_grid
from unmask.reporting.summary import Summary, comparable, summarise

DESIGNS = {"mean": ("causal/plain/mean", 0.5), "echo": ("causal/echo/mean", 0.9), "last": ("causal/plain/last", 0.1)}
MEAN, ECHO, LAST = (("smollm2", design) for design, _ in DESIGNS.values())
TWIN = ("smollm2", "causal/plain/mean@all")


def stood(folder: Path, of: Folder) -> tuple[Grid, Summary]:
    of.write(folder)
    grid = read_grid(folder)
    return grid, summarise(grid)


def test_the_order_is_by_mean_and_the_rest_are_held_against_the_first(tmp_path: Path) -> None:
    grid, found = stood(tmp_path, Folder(DESIGNS, {"sts-0": "sts", "topics": "clustering"}))
    assert [system for system, _ in found.order] == [ECHO, MEAN, LAST]
    means = {system: np.mean([one.main_score for one in grid.of(system)]) for system in grid.systems}
    assert dict(found.order) == pytest.approx(means)
    assert set(found.against) == {MEAN, LAST}
    assert found.untested == []
    for system, one in found.against.items():
        assert one.difference == pytest.approx(means[ECHO] - means[system])  # whichever of the two the test calls a
        assert 0 < one.interval[0] < one.difference < one.interval[1]
        assert one.winner is not None
    assert set(found.lead.tied) == set()


def test_a_twin_of_the_best_is_tied_with_it(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    value = np.random.default_rng(0).uniform(0.5, 0.6, 30)
    of = Folder({}, {})
    for label, design, moved in (("mean", MEAN[1], 0.0), ("twin", TWIN[1], 0.0), ("last", LAST[1], -0.3)):
        store.add(*replace(of, n=30).result(label, design, "sts-0", "sts", value + moved))
    found = summarise(read_grid(tmp_path))
    assert found.marks == {(MEAN, "sts-0"): "best", (TWIN, "sts-0"): "tied"}
    assert set(found.lead.tied) == {TWIN}


def test_without_items_only_the_best_is_marked(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    for place, (label, (design, _)) in enumerate(DESIGNS.items()):
        result, _ = Folder({}, {}).result(label, design, "a", "summarization", np.full(20, 0.5 + place / 10))
        store.add(result, None)
    found = summarise(read_grid(tmp_path))
    assert found.marks == {(LAST, "a"): "best"}
    assert found.tests == []
    assert found.untested == ["a"]


def test_systems_without_the_task_that_most_have_are_not_ranked(tmp_path: Path) -> None:
    without = [("mean", "sts-0"), ("mean", "sts-1"), ("last", "sts-2")]
    grid, found = stood(tmp_path, Folder(DESIGNS, {f"sts-{place}": "sts" for place in range(3)}, without=without))
    assert [system for system, _ in found.order] == [ECHO, LAST]
    assert found.unranked == [MEAN]
    assert found.common == ["sts-0", "sts-1"]
    assert {one.system for one in comparable(grid.results)} == {ECHO, LAST}
    assert [one.kind for one in found.advice] == ["sts"]


def test_a_reference_row_is_ranked_but_not_recommended(tmp_path: Path) -> None:
    reference = Folder({"minilm": ("sentence-transformers", 1.0)}, {"sts-0": "sts"}, model="minilm")
    reference.write(tmp_path, model="minilm")
    grid, found = stood(tmp_path, Folder(DESIGNS, {"sts-0": "sts"}))
    assert grid.names[found.order[0][0]] == "minilm"
    assert found.advice[0].system == ECHO
    assert found.advice_intervals["sts"] == grid.cells[ECHO, "sts-0"].interval
