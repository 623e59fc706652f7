"""Claims about agreement: of one embedder under several prompts, and of two embedders with each other."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import v_measure_score

from unmask.errors import UnmaskError
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.statistics.bootstrap import Items
from unmask.studies.embedders.agreement import agreement_test
from unmask.studies.embedders.contrast import Scored
from unmask.studies.embedders.plan import load_plan

N = 120
GOLD = np.random.default_rng(0).normal(size=N)
GROUPS = np.random.default_rng(1).integers(3, size=(N, 4))


def kept(store: ResultStore, name: str, kind: str, items: Items, task: str) -> Result:
    conditions = Conditions(
        model=name, model_revision="1", design="causal/plain/mean", task=task, task_revision="1", max_length=8, dtype="float32"
    )
    made = Result(
        model=name, design="causal/plain/mean", label=name, task=task, kind=kind, metric="m", main_score=0.5, interval=None,
        n=items.n, scores={}, dim=2, texts=1, tokens=1, truncated=0, conditions=conditions, provenance={},
    )  # fmt: skip
    store.add(made, items)
    return made


def pairs(store: ResultStore, name: str, noise: float, prompts: int = 3, runs: int = 1, kind: str = "sts") -> list[Scored]:
    """An embedder under several prompts, on a task of pairs: each prompt adds this noise to the same similarities."""
    random = np.random.default_rng(sum(map(ord, name)))
    return [
        Scored(
            tuple(
                {"pairs": kept(store, f"{name}{prompt}{run}", kind, similarities(random, noise), "pairs")}
                for run in range(runs)
            )
        )
        for prompt in range(prompts)
    ]


def similarities(random: np.random.Generator, noise: float) -> Items:
    return Items("spearman", {"predicted": GOLD + noise * random.normal(size=N), "gold": GOLD})


def clusters(store: ResultStore, name: str, changed: float, groups: np.ndarray = GROUPS, prompts: int = 3) -> list[Scored]:
    """An embedder under several prompts, on a task of clusters: each prompt moves this share of the texts."""
    random = np.random.default_rng(sum(map(ord, name)))
    made = []
    for prompt in range(prompts):
        moved = np.where(random.uniform(size=groups.shape) < changed, random.integers(3, size=groups.shape), groups)
        items = Items("v-measure", {"assigned": moved, "label": GROUPS})
        made.append(Scored(({"texts": kept(store, f"{name}{prompt}", "clustering", items, "texts")},)))
    return made


def columns(store: ResultStore, some: list[Scored], task: str, name: str) -> list[np.ndarray]:
    return [found[0].columns[name] for one in some if (found := one.items(task, store))]


def test_the_embedder_that_changes_less_with_the_prompt_is_steadier(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    steady, shaky = pairs(store, "steady", 0.3), pairs(store, "shaky", 1.0)
    test = agreement_test("prompts", steady, shaky, store, 1)
    assert test is not None and test.n == N and test.unit == "items" and test.p < 0.01
    means = [
        np.mean([spearmanr(one, other).statistic for one, other in combinations(columns(store, some, "pairs", "predicted"), 2)])
        for some in (steady, shaky)
    ]
    assert test.difference == pytest.approx(100 * (means[0] - means[1]))
    back = agreement_test("prompts", shaky, steady, store, 1)
    assert back is not None and back.difference == pytest.approx(-test.difference)
    assert back.interval == pytest.approx((-test.interval[1], -test.interval[0]))
    same = agreement_test("prompts", shaky, shaky, store, 1)
    assert same is not None and same.difference == 0 and same.p == 1


def test_clusters_of_two_embedders_are_compared_with_those_of_two_prompts(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    own, other = (
        clusters(store, "own", 0.1),
        clusters(store, "other", 0.0, np.random.default_rng(2).integers(3, size=GROUPS.shape)),
    )
    test = agreement_test("clusters", own, other, store, 1)
    assert test is not None and test.n == N and test.p < 0.01
    first, second = (columns(store, some, "texts", "assigned") for some in (own, other))

    def alike(one: np.ndarray, two: np.ndarray) -> float:
        return float(np.mean([v_measure_score(two[:, draw], one[:, draw]) for draw in range(GROUPS.shape[1])]))

    themselves = np.mean([alike(*both) for both in combinations(first, 2)])
    each_other = np.mean([alike(*both) for both in zip(first, second, strict=True)])
    assert test.difference == pytest.approx(100 * (themselves - each_other))
    likewise = agreement_test("clusters", own, clusters(store, "like", 0.1), store, 1)
    assert likewise is not None and abs(likewise.difference) < 10 < test.difference, "they agree as two prompts do"


def test_runs_of_a_training_count_as_tasks_and_other_kinds_do_not(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    twice = [pairs(store, name, noise, runs=2) for name, noise in (("steady", 0.3), ("shaky", 1.0))]
    test = agreement_test("prompts", twice[0], twice[1], store, 1)
    assert test is not None and test.n == 2 * N
    assert agreement_test("clusters", twice[0], twice[1], store, 1) is None
    elsewhere = [pairs(store, name, 0.3, kind="pair-classification") for name in ("one", "two")]
    assert agreement_test("prompts", elsewhere[0], elsewhere[1], store, 1) is None


def test_a_prompt_without_items_leaves_its_task_out(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    steady, shaky = pairs(store, "steady", 0.3), pairs(store, "shaky", 1.0)
    store.add(shaky[2].runs[0]["pairs"], None)
    assert agreement_test("prompts", steady, shaky, store, 1) is None


def test_an_embedder_is_read_under_the_other_prompts_of_the_plan() -> None:
    plan = load_plan("moee", "small")
    names = plan.under_all_prompts("routing")
    assert len(names) == 9 and names[:2] == ["routing", "routing, style"] and set(names) <= set(plan.measured)
    assert plan.measured["routing, style"].design == "causal/style/last/routing"
    assert plan.measured["routing, style"].kinds == ("sts", "clustering")
    assert plan.under_all_prompts("sum") == ["sum"]
    only = load_plan("moee", "small", ['only=["hidden", "sum"]'])
    assert "hidden, tone" in only.measured and not any("routing" in name for name in only.measured)
    assert {"embedder routing, tone", "embedder hidden, tone"} <= set(plan.rests_on("small"))


@pytest.mark.parametrize(
    ("setting", "words"), [('other_prompts.of=["ruting"]', "ruting"), ('other_prompts.prompts=["stile"]', "stile")]
)
def test_a_wrong_name_among_the_other_prompts_is_refused(setting: str, words: str) -> None:
    with pytest.raises(UnmaskError, match=words):
        load_plan("moee", "small", [setting])
