"""Pairs are tested by what there is to test them with, corrected as one family, and the advice says what it rests on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from unmask.errors import UnmaskError
from unmask.evaluation.leader import kind_leaders
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.evaluation.verdict import Comparison, comparisons, display_name, ranked
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import holm, paired_bootstrap, wilcoxon

DESIGNS = {"mean": 0.5, "last": 0.45, "echo": 0.8}
TASKS = ["t0", "t1", "t2", "t3", "t4", "t5", "t6"]
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
    results, store = grid(tmp_path, ["mean", "last"], TASKS[:6])
    [found] = comparisons(results, store)
    means = {design: [float(values_of(design, task).mean()) for task in TASKS[:6]] for design in ("mean", "last")}
    expected = wilcoxon(means["mean"], means["last"])
    assert (found.outcome.unit, found.outcome.n, found.tasks) == ("tasks", 6, tuple(TASKS[:6]))
    assert found.outcome.test.startswith("Wilcoxon")
    assert (found.outcome.difference, found.outcome.p) == (expected.difference, expected.p)


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


def test_a_baseline_that_was_not_compared_is_refused(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last"], TASKS[:1])
    with pytest.raises(UnmaskError, match="The baseline, echo of m, is not among the compared systems: mean of m, last of m"):
        comparisons(results, store, baseline=("m", "echo"))


@pytest.mark.parametrize("tasks", [4, 7])
def test_all_pairs_are_corrected_as_one_family(tasks: int, tmp_path: Path) -> None:
    results, store = grid(tmp_path, list(DESIGNS), TASKS[:tasks])
    assert {test.family for test in comparisons(results, store)} == {"3 pairs"}
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
    low, high = found.outcome.interval
    assert low == -high < 0, "what these items or tasks do not show, others may"
    assert found.better is None


def test_only_tasks_that_all_were_scored_on_are_compared(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last"], TASKS[:3])
    results.append(add(store, "echo", "t1"))
    found = comparisons(results, store)
    assert {test.tasks for test in found} == {("t1",)}
    assert {test.outcome.n for test in found} == {40}
    lacking = dict.fromkeys(("t0", "t2"), "not scored for echo-label")
    assert [test.left_out for test in found] == [lacking] * 3
    assert [system for system, _ in ranked(results)] == [("m", "echo"), ("m", "mean"), ("m", "last")]
    assert ranked(results)[1][1] == pytest.approx(values_of("mean", "t1").mean())


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
    found = kind_leaders(results, store)
    assert [(one.kind, one.system) for one in found] == [("sts", ("m", "echo")), ("retrieval", ("m", "mean"))]
    assert [one.score for one in found] == [pytest.approx(results[index].main_score) for index in (1, 2)]


def test_a_clear_lead_is_told_with_its_interval(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "echo"], ["t0"])
    [found] = kind_leaders(results, store)
    [test] = comparisons(results, store)
    low, high = (-100 * bound for bound in reversed(test.outcome.interval))
    lead = 100 * (results[1].main_score - results[0].main_score)
    start = f"{100 * results[1].main_score:.1f}, {lead:.1f} ahead of mean-label [{low:.1f}, {high:.1f}]"
    evidence = f"on 1 task of 40 items, difference in standard errors {-test.outcome.effect:.2f}"
    assert found.reason == f"{start} {evidence}; better than every other design (p < 0.05; p and interval: Holm over 1 pair)"


def test_designs_that_cannot_be_told_apart_are_named(tmp_path: Path) -> None:
    # the same design of two models has the same values here
    store = ResultStore(tmp_path)
    results = [add(store, design, "t0", model=model) for design, model in (("echo", "m"), ("echo", "n"), ("last", "m"))]
    [found] = kind_leaders(results, store)
    assert "79.8, tied with n echo-label (the same score [-" in found.reason
    assert "]): not told apart on 1 task of 40 items (p >= 0.05; p and interval: Holm over 3 pairs)" in found.reason
    assert "; better than m last-label; none of them is clearly cheaper (10 tokens a text)" in found.reason
    assert "ahead" not in found.reason and found.tied == (("n", "echo"),)


def test_a_cheaper_design_that_is_as_good_is_named_with_its_cost(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, "echo", "t0", tokens=200), add(store, "echo", "t0", model="n", tokens=100)]
    [found] = kind_leaders(results, store)
    assert found.system == ("n", "echo"), "of two with the same score the cheaper one comes first"
    store.add(results[1].model_copy(update={"main_score": results[1].main_score - 0.001}), store.items(results[1]))
    results = store.results
    [found] = kind_leaders(results, store)
    assert found.system == ("m", "echo")
    assert found.reason.endswith("; the cheapest of them is n echo-label, 10 tokens a text, not 20")
    results[1] = results[1].model_copy(update={"tokens": 190})
    assert "none of them is clearly cheaper" in kind_leaders(results, store)[0].reason


def test_what_it_would_take_is_said_of_ties_alone(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    value, noise = values_of("mean", "t0", 400), np.random.default_rng(0).normal(0, 0.1, 400)
    results = []
    for design, moved in (("mean", 0), ("echo", noise + 0.004 - noise.mean()), ("last", np.full(400, -0.3))):
        result = add(store, design, "t0").model_copy(update={"n": 400, "main_score": float((value + moved).mean())})
        store.add(result, Items("mean", {"value": value + moved}))
        results.append(result)
    [found] = kind_leaders(results, store)
    [needed] = re.findall(
        r"telling echo-label from mean-label takes about ([\d,]+) items like these \(80% power\)", found.reason
    )
    # two-sided normal at 0.05 / 3: ((2.394 + 0.842) x 0.1 / 0.004)^2
    assert int(needed.replace(",", "")) == pytest.approx((2.394 + 0.842) ** 2 * noise.var() / 0.004**2, rel=0.1)
    [clear] = kind_leaders([results[0], results[2]], store)
    assert "takes about" not in clear.reason


def test_against_a_baseline_nothing_is_said_of_other_pairs(tmp_path: Path) -> None:
    results, store = grid(tmp_path, list(DESIGNS), TASKS[:2])
    [found] = kind_leaders(results, store, ("m", "last"))
    assert found.system == ("m", "echo")
    assert "better than last-label [" in found.reason and "Holm over 2 comparisons with last-label" in found.reason
    assert found.reason.endswith("; 1 other not tested against it")
    assert "every other" not in found.reason


def test_what_is_said_of_two_designs_does_not_hang_on_a_reference_row(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last", "echo"], TASKS[:2])
    alone = {(test.a, test.b): test.outcome for test in comparisons(results, store)}
    results += [add(store, REFERENCE, task, model=model) for model in ("minilm", "e5") for task in TASKS[:2]]
    beside = comparisons(results, store)
    assert len(beside) == 10
    assert {pair: test.outcome for test in beside if (pair := (test.a, test.b)) in alone} == alone
    assert {test.family for test in beside} == {"3 pairs", "7 pairs with a reference"}


def test_what_was_not_tested_is_not_called_better(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, design, "t0", items=False) for design in ("mean", "echo")]
    [found] = kind_leaders(results, store)
    assert found.system == ("m", "echo")
    assert found.reason.endswith(" ahead of mean-label; not tested: no task has the items behind its score")


def test_tasks_that_a_recommendation_does_without_are_named(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "last"], TASKS[:2])
    results.append(add(store, "echo", "t1"))
    [found] = kind_leaders(results, store)
    assert " on 1 task of 40 items," in found.reason
    assert found.reason.endswith("; left out: t0 (not scored for echo-label)")


def test_a_kind_without_a_common_task_is_refused(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, "mean", "t0"), add(store, "last", "t1")]
    lacking = r"t0 \(not scored for last-label\), t1 \(not scored for mean-label\)"
    with pytest.raises(UnmaskError, match=f"No sts task was scored for every design: {lacking}"):
        kind_leaders(results, store)


def test_a_kind_is_tested_by_its_own_tasks_and_all_kinds_together_by_all(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    kinds = ["sts"] * 6 + ["retrieval"]
    results = [
        add(store, design, task, kind=kind) for design in ("mean", "echo") for task, kind in zip(TASKS, kinds, strict=True)
    ]
    sts, retrieval = (one.reason for one in kind_leaders(results, store))
    assert " on 6 tasks, matched rank-biserial" in sts
    assert " on 1 task of 40 items, difference in standard errors" in retrieval
    assert comparisons(results, store)[0].outcome.n == 7


def test_a_single_design_is_told_to_be_the_only_one(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean"], ["t0"])
    assert kind_leaders(results, store)[0].reason.startswith("the only design that was compared, ")


def test_reference_rows_are_compared_and_never_recommended(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, "mean", "t0"), add(store, REFERENCE, "t0", model="minilm"), add(store, "last", "t0")]
    assert ranked(results)[0][0] == ("minilm", REFERENCE)
    assert len(comparisons(results, store)) == 3
    [found] = kind_leaders(results, store)
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
    results, store = grid(tmp_path, ["mean", "echo"], TASKS[:6])
    reason = kind_leaders(results, store)[0].reason
    evidence, verdict = reason.split("; ", 1)
    assert evidence.endswith(" on 6 tasks, matched rank-biserial correlation 1.00")
    assert verdict == "better than every other design (p < 0.05; p and interval: Holm over 1 pair)"
    [test] = comparisons(results, store)
    assert isinstance(test, Comparison) and test.outcome.p == pytest.approx(2 / 64)


def test_trained_embedders_are_told_apart_by_their_runs(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    one, other = (add(store, "mean", "t0", model=f"/runs/{run}/model") for run in ("first", "second"))
    assert display_name(one.system, [one, other]) == "first mean-label"
    assert display_name(other.system, [one, other]) == "second mean-label"


def test_many_designs_that_cannot_be_told_apart_are_counted(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    one = add(store, "good", "t0")
    alike = [one.model_copy(update={"design": letter, "label": f"{letter}-label"}) for letter in "abcdefgh"]
    (found,) = kind_leaders(alike, store)
    assert re.search(
        r"tied with b-label \(.*?\), c-label \(.*?\), d-label \(.*?\), e-label \(.*?\) and 3 more: not", found.reason
    )


def test_a_family_that_counting_could_not_serve_is_tested_by_the_normal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, store = grid(tmp_path, list(DESIGNS)[:3], TASKS[:2])
    assert all("normal" not in one.outcome.test for one in comparisons(results, store))
    monkeypatch.setattr("unmask.evaluation.verdict._MOST_RESAMPLES", 1999)
    found = comparisons(results, store)
    assert all("normal with the error of 2000 resamples" in one.outcome.test for one in found)
