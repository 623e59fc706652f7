"""The leading design is described in sentences that follow from the tests."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from tests.evaluation.made_results import REFERENCE, TASKS, add, grid, values_of
from unmask.evaluation.leader import kind_leaders
from unmask.evaluation.results import ResultStore
from unmask.evaluation.verdict import comparisons
from unmask.statistics.bootstrap import Items


def test_a_clear_lead_is_told_with_its_interval(tmp_path: Path) -> None:
    results, store = grid(tmp_path, ["mean", "echo"], ["t0"])
    [found] = kind_leaders(results, store)
    [test] = comparisons(results, store)
    low, high = (-100 * bound for bound in reversed(test.outcome.interval))
    lead = 100 * (results[1].main_score - results[0].main_score)
    assert found.reasons == (
        "Better than every other design.",
        f"{lead:.1f} ahead of mean-label [{low:.1f}, {high:.1f}]; difference in standard errors: {-test.outcome.effect:.2f}.",
        "Tested on 1 task of 40 items; level 0.05; p and intervals: Holm over 1 pair.",
    )


def test_designs_that_cannot_be_told_apart_are_named(tmp_path: Path) -> None:
    # the same design of two models has the same values here
    store = ResultStore(tmp_path)
    results = [add(store, design, "t0", model=model) for design, model in (("echo", "m"), ("echo", "n"), ("last", "m"))]
    [found] = kind_leaders(results, store)
    tie, *rest = found.reasons
    assert re.fullmatch(r"Tied with n echo-label \(same score \[-[\d.]+, [\d.]+\]\)\.", tie)
    assert rest == [
        "Better than m last-label.",
        "None of these is clearly cheaper than m echo-label: 10 tokens per text on STS tasks.",
        "Tested on 1 task of 40 items; level 0.05; p and intervals: Holm over 3 pairs.",
    ]
    assert found.tied == (("n", "echo"),)


def test_a_cheaper_design_that_is_as_good_is_named_with_its_cost(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, "echo", "t0", tokens=200), add(store, "echo", "t0", model="n", tokens=100)]
    [found] = kind_leaders(results, store)
    assert found.system == ("n", "echo"), "of two with the same score the cheaper one comes first"
    store.add(results[1].model_copy(update={"main_score": results[1].main_score - 0.001}), store.items(results[1]))
    results = store.results
    [found] = kind_leaders(results, store)
    assert found.system == ("m", "echo")
    assert found.reasons[1] == "The cheapest of these is n echo-label: 10 tokens per text on STS tasks instead of 20."
    results[1] = results[1].model_copy(update={"tokens": 190})
    [found] = kind_leaders(results, store)
    assert found.reasons[1] == "None of these is clearly cheaper than m echo-label: 20 tokens per text on STS tasks."


def test_ties_alone_come_with_the_number_of_items_or_tasks_that_they_would_take(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    value, noise = values_of("mean", "t0", 400), np.random.default_rng(0).normal(0, 0.1, 400)
    results = []
    for design, moved in (("mean", 0), ("echo", noise + 0.004 - noise.mean()), ("last", np.full(400, -0.3))):
        result = add(store, design, "t0").model_copy(update={"n": 400, "main_score": float((value + moved).mean())})
        store.add(result, Items("mean", {"value": value + moved}))
        results.append(result)
    [found] = kind_leaders(results, store)
    sentence = r"Separating echo-label from mean-label takes about ([\d,]+) items like these \(80% power\)\."
    [needed] = re.findall(sentence, "\n".join(found.reasons))
    # two-sided normal at 0.05 / 3: ((2.394 + 0.842) x 0.1 / 0.004)^2
    assert int(needed.replace(",", "")) == pytest.approx((2.394 + 0.842) ** 2 * noise.var() / 0.004**2, rel=0.1)
    [clear] = kind_leaders([results[0], results[2]], store)
    assert clear.reasons[0] == "Better than every other design." and not any("takes" in reason for reason in clear.reasons)
    differences = np.array([0.1, -0.06, 0.08, -0.02, 0.05, -0.03, 0.02])
    results = [
        add(store, design, task).model_copy(update={"main_score": 0.5 + difference})
        for design, of_tasks in (("mean", 0 * differences), ("echo", differences))
        for task, difference in zip(TASKS, of_tasks, strict=True)
    ]
    [over_tasks] = kind_leaders(results, store)
    # Noether (1987): (1.960 + 0.842)^2 / (3 (Phi(sqrt(2) mean / deviation) - 1/2)^2)
    chance = NormalDist().cdf(2**0.5 * differences.mean() / differences.std(ddof=1)) - 0.5
    assert f"takes about {(1.96 + 0.842) ** 2 / (3 * chance**2):.0f} tasks (80% power)." in over_tasks.reasons[2]


def test_a_leader_is_not_called_better_than_a_design_that_the_test_finds_better(tmp_path: Path) -> None:
    """A task without items counts for the mean alone: the best by the mean may lose on the tasks that can be tested."""
    store = ResultStore(tmp_path)
    results = [add(store, design, "t0") for design in ("mean", "echo", "last")]
    for design, points in (("mean", 0.9), ("echo", 0.1), ("last", 0.1)):
        whole = add(store, design, "t1", items=False).model_copy(update={"main_score": points})
        results.append(whole)
    [found] = kind_leaders(results, store)
    assert found.system == ("m", "mean") and found.tied == ()
    better, distance, worse, _, left_out = found.reasons
    assert (better, worse) == ("Better than last-label.", "Worse than echo-label where it was tested.")
    assert re.match(r"[\d.]+ ahead of last-label", distance)
    assert left_out == "Left out: t1 (no items behind its score)."
    [alone] = kind_leaders([result for result in results if result.design != "last"], store)
    assert alone.reasons[0] == "Worse than echo-label where it was tested."


@pytest.mark.parametrize(("gap", "relation"), [(0.3, "better"), (0.001, "tied"), (-0.3, "worse")])
def test_a_reference_is_compared_and_never_recommended(gap: float, relation: str, tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = [add(store, design, "t0") for design in ("mean", "last")]
    noise = np.random.default_rng(0).normal(0, 0.05, 40)
    values = values_of("mean", "t0", 40) + gap + noise - noise.mean()
    reference = results[0].model_copy(update={"model": "minilm", "design": REFERENCE, "label": "minilm"})
    reference = reference.model_copy(update={"main_score": float(values.mean())})
    reference = reference.model_copy(update={"conditions": reference.conditions.model_copy(update={"model": "minilm"})})
    store.add(reference, Items("mean", {"value": values}))
    alone = kind_leaders(results, store)
    [found] = kind_leaders([reference, *results], store)
    assert found.system == ("m", "mean") and found.tied == alone[0].tied
    [compared] = found.references
    assert (compared.system, compared.relation, compared.is_higher) == (("minilm", REFERENCE), relation, gap > 0)
    index = 0 if gap > 0 else -1
    start = {"better": "The reference minilm is better: ", "tied": "Tied with the reference minilm: "}
    assert found.reasons[index].startswith(start.get(relation, "Better than the reference minilm: "))
    distance = f"{100 * abs(gap):.1f} {'ahead' if gap > 0 else 'behind'} ["
    assert distance in found.reasons[index], "the interval is that of the same difference"
    low, high = map(float, re.findall(r"\[(\S+), (\S+)\]", found.reasons[index])[0])
    assert low <= 100 * abs(gap) <= high
    assert [reason for reason in found.reasons if "reference" not in reason] == list(alone[0].reasons)
