"""Pairs are tested by what there is to test them with, corrected as one family, and the advice says what it rests on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from unmask.evaluation.resampling import Items
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.evaluation.statistics import holm, paired_bootstrap, wilcoxon
from unmask.evaluation.verdict import Comparison, comparisons, display_name, ranked, recommendations

DESIGNS = {"mean": 0.5, "last": 0.45, "echo": 0.8}
TASKS = ["t0", "t1", "t2", "t3", "t4", "t5"]
REFERENCE = "sentence-transformers"


def values_of(design: str, task: str, n: int = 40) -> np.ndarray:
    """Scores of items: a task's own, moved by the design's mean, with noise of both."""
    shared = np.random.default_rng([TASKS.index(task)]).normal(0, 0.1, n)
    noise = np.random.default_rng([TASKS.index(task), sum(design.encode())]).normal(0, 0.02, n)
    return shared + noise + DESIGNS.get(design, 0.95)


def add(
    store: ResultStore, design: str, task: str, *, model: str = "m", kind: str = "sts", items: bool = True, tokens: int = 100
) -> Result:
    value = values_of(design, task)
    result = Result(
        model=model,
        design=design,
        label=f"{design}-label",
        task=task,
        kind=kind,
        metric="accuracy",
        main_score=float(value.mean()),
        interval=None,
        n=len(value),
        scores={},
        dim=8,
        texts=10,
        tokens=tokens,
        truncated=0,
        conditions=Conditions(
            model=model,
            model_revision="r",
            design=design,
            task=task,
            task_revision="tr",
            max_length=512,
            dtype="float32",
        ),
        provenance={},
    )
    store.add(result, Items("mean", {"value": value}) if items else None)
    return result


def grid(folder: Path, designs: Sequence[str], tasks: Sequence[str]) -> tuple[list[Result], ResultStore]:
    store = ResultStore(folder)
    return [add(store, design, task) for design in designs for task in tasks], store


def items_of(design: str, tasks: Sequence[str]) -> list[Items]:
    return [Items("mean", {"value": values_of(design, task)}) for task in tasks]


# --- comparisons -----------------------------------------------------------------------------------------------------


def test_fewer_than_six_tasks_are_compared_by_their_items(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last"], TASKS[:4])
    [found] = comparisons(results, store)
    expected = paired_bootstrap(items_of("mean", TASKS[:4]), items_of("last", TASKS[:4]))
    assert (found.outcome.unit, found.outcome.n) == ("items", 160)
    assert found.outcome.test.startswith("paired bootstrap over items")
    assert (found.outcome.difference, found.outcome.p) == (expected.difference, expected.p)
    assert (found.a, found.b, found.tasks) == (("m", "mean"), ("m", "last"), tuple(TASKS[:4]))


def test_six_tasks_are_compared_by_wilcoxons_test(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last"], TASKS)
    [found] = comparisons(results, store)
    means = {design: [float(values_of(design, task).mean()) for task in TASKS] for design in ("mean", "last")}
    expected = wilcoxon(means["mean"], means["last"])
    assert (found.outcome.unit, found.outcome.n, found.tasks) == ("tasks", 6, tuple(TASKS))
    assert found.outcome.test.startswith("Wilcoxon")
    assert (found.outcome.difference, found.outcome.p) == (expected.difference, expected.p)


@pytest.mark.parametrize("tasks", [4, 6])
def test_all_pairs_are_corrected_as_one_family(tasks: int, tmp_path: Path) -> None:
    results, store = grid(tmp_path, list(DESIGNS), TASKS[:tasks])
    found = comparisons(results, store)
    assert [(test.a[1], test.b[1]) for test in found] == list(combinations(DESIGNS, 2))
    assert [test.outcome.p_holm for test in found] == holm([test.outcome.p for test in found])
    assert any(test.outcome.p_holm != test.outcome.p for test in found)


@pytest.mark.parametrize("tasks", [1, 4, 6])
def test_designs_with_the_same_vectors_do_not_differ(tasks: int, tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, "mean", task, model=model) for model in ("m", "copy") for task in TASKS[:tasks]]
    [found] = comparisons(results, store)
    assert (found.outcome.difference, found.outcome.p, found.outcome.p_holm, found.outcome.effect) == (0, 1, 1, 0)
    assert found.outcome.interval == (0, 0)


def test_only_tasks_that_all_were_scored_on_are_compared(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last"], TASKS[:3])
    results.append(add(store, "echo", "t1"))
    found = comparisons(results, store)
    assert {test.tasks for test in found} == {("t1",)}
    assert {test.outcome.n for test in found} == {40}
    assert [system for system, _ in ranked(results)] == [("m", "echo"), ("m", "mean"), ("m", "last")]
    assert ranked(results)[1][1] == pytest.approx(values_of("mean", "t1").mean())


def test_a_task_without_items_is_left_out_of_the_bootstrap(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, design, task, items=task != "t0") for design in ("mean", "last") for task in TASKS[:3]]
    [found] = comparisons(results, store)
    assert (found.tasks, found.outcome.n) == (("t1", "t2"), 80)


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


def test_an_effect_without_an_error_is_plain_json_too(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, design, "t0") for design in ("mean", "last")]
    for result, value in zip(results, (0.5, 0.25), strict=True):
        store.add(result, Items("mean", {"value": np.full(10, value)}))
    [found] = comparisons(results, store)
    assert found.outcome.effect == np.inf
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["effect"] is None


# --- recommendations -------------------------------------------------------------------------------------------------


def test_the_best_design_of_each_kind_is_recommended(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, design, "t0", kind="sts") for design in ("mean", "echo")]
    results += [add(store, design, "t1", kind="retrieval") for design in ("mean", "last")]
    found = recommendations(results, store)
    assert [(one.kind, one.system) for one in found] == [("sts", ("m", "echo")), ("retrieval", ("m", "mean"))]
    assert [one.score for one in found] == [pytest.approx(results[index].main_score) for index in (1, 2)]


def test_a_clear_lead_is_told_with_its_interval(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "echo"], ["t0"])
    [found] = recommendations(results, store)
    [test] = comparisons(results, store)
    low, high = (-100 * bound for bound in reversed(test.outcome.interval))
    lead = 100 * (results[1].main_score - results[0].main_score)
    start = f"{100 * results[1].main_score:.1f}, {lead:.1f} ahead of mean-label [{low:.1f}, {high:.1f}]"
    assert found.reason == f"{start}; better than every other design (p < 0.05, Holm)"


def test_designs_that_cannot_be_told_apart_are_named(tmp_path: Path) -> None:
    # the same design of two models has the same values here
    store = ResultStore(tmp_path)
    results = [add(store, design, "t0", model=model) for design, model in (("echo", "m"), ("echo", "n"), ("last", "m"))]
    [found] = recommendations(results, store)
    assert "; cannot be told apart from n echo-label on 1 task of 40 items" in found.reason
    assert "last-label" not in found.reason


def test_a_cheaper_design_that_is_as_good_is_named_with_its_cost(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, "echo", "t0", tokens=200), add(store, "echo", "t0", model="n", tokens=100)]
    [found] = recommendations(results, store)
    assert found.reason.endswith("; n echo-label computes 50% of its tokens")
    results[1] = results[1].model_copy(update={"tokens": 190})
    assert "tokens" not in recommendations(results, store)[0].reason


def test_a_single_design_is_told_to_be_the_only_one(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean"], ["t0"])
    assert recommendations(results, store)[0].reason.startswith("the only design that was compared, ")


def test_reference_rows_are_compared_and_never_recommended(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, "mean", "t0"), add(store, REFERENCE, "t0", model="minilm"), add(store, "last", "t0")]
    assert ranked(results)[0][0] == ("minilm", REFERENCE)
    assert len(comparisons(results, store)) == 3
    [found] = recommendations(results, store)
    assert found.system == ("m", "mean")
    assert REFERENCE not in found.reason


def test_a_system_is_called_by_its_label_and_its_model_where_there_are_several(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    one, other = add(store, "mean", "t0", model="/home/me/a"), add(store, "mean", "t0", model="/home/me/b")
    reference = add(store, REFERENCE, "t0", model="minilm")
    assert display_name(one.system, [one, reference]) == "mean-label"
    assert display_name(one.system, [one, other, reference]) == "a mean-label"
    assert display_name(reference.system, [one, other, reference]) == f"{REFERENCE}-label"


def test_six_tasks_of_a_kind_are_told_by_tasks(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "echo"], TASKS)
    assert recommendations(results, store)[0].reason.endswith("better than every other design (p < 0.05, Holm)")
    [test] = comparisons(results, store)
    assert isinstance(test, Comparison) and test.outcome.p == pytest.approx(2 / 64)


def test_trained_embedders_are_told_apart_by_their_runs(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    one, other = (add(store, "mean", "t0", model=f"/runs/{run}/model") for run in ("first", "second"))
    assert display_name(one.system, [one, other]) == "first mean-label"
    assert display_name(other.system, [one, other]) == "second mean-label"
