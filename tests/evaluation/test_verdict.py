"""Designs are compared by one rule: which test, which family, which level, over tasks or items, with seeds or without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evaluation.made_results import DESIGNS, REFERENCE, TASKS, add, grid, values_of
from unmask.evaluation.results import ResultStore
from unmask.evaluation.verdict import comparisons, display_name, rank_systems
from unmask.statistics.paired import holm


@pytest.mark.parametrize(("tasks", "unit"), [(6, "items"), (7, "tasks")])
def test_tasks_are_asked_only_where_they_could_say_something_after_the_correction(
    tasks: int, unit: str, tmp_path: Path
) -> None:
    # 3 pairs: 3 * 2/2^6 = 0.094 at best, 3 * 2/2^7 = 0.047; 2 with a baseline: 2 * 2/2^6 = 0.0625, 2 * 2/2^7
    results, store = grid(tmp_path, list(DESIGNS), TASKS[:tasks])
    found = comparisons(results, store)
    assert {test.outcome.unit for test in found} == {unit}
    assert {(test.outcome.p_holm or 0) < 0.05 for test in found} == {True}
    against = comparisons(results, store, baseline=("m", "last"))
    assert {test.outcome.unit for test in against} == {unit}
    [one] = comparisons([result for result in results if result.design != "mean"], store, baseline=("m", "last"))
    assert one.outcome.unit == "tasks"


@pytest.mark.parametrize("tasks", [4, 7])
def test_a_baseline_is_compared_with_all_others_and_these_are_the_family(tasks: int, tmp_path: Path) -> None:
    results, store = grid(tmp_path, list(DESIGNS), TASKS[:tasks])
    found = comparisons(results, store, baseline=("m", "last"))
    assert [(test.a[1], test.b[1]) for test in found] == [("mean", "last"), ("echo", "last")]
    assert [test.outcome.p_holm for test in found] == holm([test.outcome.p for test in found])
    assert {test.family for test in found} == {"2 comparisons with last-label"}
    assert all(test.outcome.difference > 0 for test in found)  # of a design less the baseline, which is the worst here
    for test in found:
        [same] = [other for other in comparisons(results, store) if {other.a, other.b} == {test.a, test.b}]
        assert abs(same.outcome.difference) == pytest.approx(test.outcome.difference)


@pytest.mark.parametrize("tasks", [1, 4, 6])
def test_designs_with_the_same_vectors_do_not_differ(tasks: int, tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, "mean", task, model=model) for model in ("m", "copy") for task in TASKS[:tasks]]
    [found] = comparisons(results, store)
    assert (found.outcome.difference, found.outcome.p, found.outcome.p_holm, found.outcome.effect) == (0, 1, 1, 0)
    low, high = found.outcome.interval
    assert low == -high < 0, "what these items or tasks do not show, others may"
    assert found.winner is None


def test_only_tasks_that_all_were_scored_on_are_compared(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last"], TASKS[:3])
    results.append(add(store, "echo", "t1"))
    found = comparisons(results, store)
    assert {test.tasks for test in found} == {("t1",)}
    assert {test.outcome.n for test in found} == {40}
    lacking = dict.fromkeys(("t0", "t2"), "not scored for echo-label")
    assert [test.left_out for test in found] == [lacking] * 3
    assert [system for system, _ in rank_systems(results)] == [("m", "echo"), ("m", "mean"), ("m", "last")]
    assert rank_systems(results)[1][1] == pytest.approx(values_of("mean", "t1").mean())


def test_a_task_without_items_is_left_out_of_the_bootstrap(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, design, task, items=task != "t0") for design in ("mean", "last") for task in TASKS[:3]]
    [found] = comparisons(results, store)
    assert (found.tasks, found.outcome.n) == (("t1", "t2"), 80)
    assert found.left_out == {"t0": "no items behind its score"}


def test_where_nothing_can_be_tested_nothing_is(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    assert comparisons([], store) == []
    assert comparisons([add(store, "mean", "t0")], store) == []
    assert comparisons([add(store, "mean", "t0"), add(store, "last", "t1")], store) == []
    bare = [add(store, design, "t2", items=False) for design in ("mean", "last")]
    assert comparisons(bare, store) == []


def test_a_comparison_is_plain_json(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last"], TASKS[:2])
    [found] = comparisons(results, store)
    content = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert content["a"] == {"model": "m", "design": "mean"}
    assert content["b"] == {"model": "m", "design": "last"}
    assert content["tasks"] == ["t0", "t1"]
    assert content["p_holm"] == found.outcome.p_holm
    assert content["effect"] == found.outcome.effect
    assert (content["family"], content["left_out"]) == ("1 pair", {})


def test_what_is_said_of_two_designs_does_not_hang_on_a_reference_row(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last", "echo"], TASKS[:2])
    alone = {(test.a, test.b): test.outcome for test in comparisons(results, store)}
    results += [add(store, REFERENCE, task, model=model) for model in ("minilm", "e5") for task in TASKS[:2]]
    beside = comparisons(results, store)
    assert len(beside) == 10
    assert {pair: test.outcome for test in beside if (pair := (test.a, test.b)) in alone} == alone
    assert {test.family for test in beside} == {"3 pairs", "7 pairs with a reference"}


def test_a_system_is_called_by_its_label_and_its_model_where_there_are_several(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    one, other = add(store, "mean", "t0", model="/home/me/a"), add(store, "mean", "t0", model="/home/me/b")
    reference = add(store, REFERENCE, "t0", model="minilm")
    assert display_name(one.system, [one, reference]) == "mean-label"
    assert display_name(one.system, [one, other, reference]) == "a mean-label"
    assert display_name(reference.system, [one, other, reference]) == f"{REFERENCE}-label"


def test_a_family_that_counting_could_not_serve_is_tested_by_the_normal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, store = grid(tmp_path, list(DESIGNS)[:3], TASKS[:2])
    counted = comparisons(results, store)
    assert len(counted) == 3 and all("normal" not in one.outcome.test for one in counted)
    monkeypatch.setattr("unmask.evaluation.verdict._MOST_RESAMPLES", 1999)
    found = comparisons(results, store)
    assert len(found) == 3 and all("normal with the error of 2000 resamples" in one.outcome.test for one in found)
