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
from unmask.statistics.bootstrap import Items, score
from unmask.statistics.intervals import score_interval

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


def test_marks_say_of_a_single_task_what_the_tests_of_all_pairs_say(tmp_path: Path) -> None:
    near = {f"near-{place}": (f"causal/plain/mean@{place}", 0.5 + 0.02 * place) for place in range(1, 9)}
    _, found = stood(tmp_path, Folder(near, {"sts-0": "sts"}))
    assert {system for (system, _), mark in found.marks.items() if mark == "tied"} == set(found.lead.tied)
    assert 0 < len(set(found.lead.tied)) < 7
    assert found.advice[0].tied == found.lead.tied


def test_without_items_only_the_best_is_marked(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    for place, (label, (design, _)) in enumerate(DESIGNS.items()):
        result, _ = Folder({}, {}).result(label, design, "a", "summarization", np.full(20, 0.5 + place / 10))
        store.add(result, None)
    found = summarise(read_grid(tmp_path))
    assert found.marks == {(LAST, "a"): "best"}
    assert found.tests == []
    assert found.untested == ["a"]


def test_v_measure_lies_within_its_interval(tmp_path: Path) -> None:
    """Resamples of clusters score higher than the items do; many poor clusters the most."""
    store = ResultStore(tmp_path)
    random = np.random.default_rng(0)
    for task in ("topics", "others"):
        items = Items("v-measure", {"assigned": random.integers(0, 20, (60, 1)), "label": random.integers(0, 20, (60, 1))})
        result, _ = Folder({}, {}).result("mean", MEAN[1], task, "clustering", np.full(60, 0.5))
        store.add(result.model_copy(update={"main_score": score(items), "interval": score_interval(items)}), items)
    grid = read_grid(tmp_path)
    found = summarise(grid)
    low, high = found.intervals[MEAN]
    assert low < dict(found.order)[MEAN] < high
    assert (low + high) / 2 == pytest.approx(dict(found.order)[MEAN], abs=0.02)


def test_an_interval_without_a_width_is_made_anew(tmp_path: Path) -> None:
    """As older versions left them: a bootstrap of twenty outcomes that are all alike."""
    grid, found = stood(tmp_path, Folder({"sure": ("causal/plain/mean", 9.0)}, {"sts-0": "sts"}))
    assert grid.store.results[0].interval == (1.0, 1.0)
    assert grid.results[0].interval == pytest.approx((0.839, 1.0), abs=1e-3)
    assert found.intervals == {grid.systems[0]: grid.results[0].interval}


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
