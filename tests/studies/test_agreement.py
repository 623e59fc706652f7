"""Claims about agreement: of one embedder under several prompts, and of two embedders with each other."""

from __future__ import annotations

from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import v_measure_score

from tests.proofs import ALL
from unmask.errors import UnmaskError
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import PairedTest
from unmask.studies.claims.claim import Agreement, Claim, check_names
from unmask.studies.embedders import agreement
from unmask.studies.embedders.comparison import OnTask, Scored, agreement_test, agreements
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
        items = Items("v-measure", {"assigned": moved, "label": GROUPS[:, : groups.shape[1]]})
        made.append(Scored(({"texts": kept(store, f"{name}{prompt}", "clustering", items, "texts")},)))
    return made


def columns(store: ResultStore, some: list[Scored], task: str, name: str) -> list[np.ndarray]:
    return [found[0].columns[name] for one in some if (found := one.items(task, store))]


def contrast(what: Agreement, a: list[Scored], b: list[Scored], store: ResultStore) -> PairedTest | None:
    return agreement_test(agreements(what, a, b, store))


def test_the_embedder_that_changes_less_with_the_prompt_is_steadier(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    steady, shaky = pairs(store, "steady", 0.3), pairs(store, "shaky", 1.0)
    test = contrast("prompts", steady, shaky, store)
    assert test is not None and test.n == N and test.unit == "items" and test.p < 0.01
    means = [
        np.mean([spearmanr(one, other).statistic for one, other in combinations(columns(store, some, "pairs", "predicted"), 2)])
        for some in (steady, shaky)
    ]
    assert test.difference == pytest.approx(100 * (means[0] - means[1]))
    back = contrast("prompts", shaky, steady, store)
    assert back is not None and back.difference == pytest.approx(-test.difference)
    assert back.interval == pytest.approx((-test.interval[1], -test.interval[0]))
    same = contrast("prompts", shaky, shaky, store)
    assert same is not None and same.difference == 0 and same.p == 1


def test_clusters_of_two_embedders_are_compared_with_those_of_two_prompts(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    own, other = (
        clusters(store, "own", 0.1, prompts=5),
        clusters(store, "other", 0.0, np.random.default_rng(2).integers(3, size=GROUPS.shape), prompts=5),
    )
    test = contrast("clusters", own, other, store)
    assert test is not None and test.n == N and test.p < 0.01
    first, second = (columns(store, some, "texts", "assigned") for some in (own, other))

    def alike(one: np.ndarray, two: np.ndarray) -> float:
        return float(np.mean([v_measure_score(two[:, draw], one[:, draw]) for draw in range(GROUPS.shape[1])]))

    themselves = np.mean([alike(*both) for both in combinations(first, 2)])
    each_other = np.mean([alike(first[one], second[two]) for one, two in permutations(range(5), 2)])
    assert test.difference == pytest.approx(100 * (themselves - each_other))
    one_prompt = contrast("clusters under one prompt", own, other, store)
    each_other = np.mean([alike(*both) for both in zip(first, second, strict=True)])
    assert one_prompt is not None and one_prompt.difference == pytest.approx(100 * (themselves - each_other))
    likewise = contrast("clusters", own, clusters(store, "like", 0.1, prompts=5), store)
    assert likewise is not None and likewise.p > 0.05, "they agree as two prompts do"


def test_what_a_prompt_does_to_both_embedders_is_no_likeness_of_the_embedders(tmp_path: Path) -> None:
    """Two embedders that differ from each other by nothing else than chance. Under one prompt they are more alike than two prompts are."""
    store = ResultStore(tmp_path)
    random = np.random.default_rng(3)
    of_prompt = [
        np.where(random.uniform(size=GROUPS.shape) < 0.4, random.integers(3, size=GROUPS.shape), GROUPS) for _ in range(5)
    ]
    one, other = (
        [clusters(store, f"{name}{place}", 0.1, groups, prompts=1)[0] for place, groups in enumerate(of_prompt)]
        for name in ("a", "zz")  # names make seeds
    )
    test, one_prompt = contrast("clusters", one, other, store), contrast("clusters under one prompt", one, other, store)
    assert test is not None and test.p > 0.05
    assert one_prompt is not None and one_prompt.difference < 0 and one_prompt.p < 0.05


@pytest.mark.parametrize("what", ["prompts", "clusters", "clusters under one prompt"])
def test_a_prompt_that_is_left_out_is_left_out(what: Agreement, tmp_path: Path) -> None:
    """Without a prompt, everything is what the others alone give."""
    store = ResultStore(tmp_path)
    make = pairs if what == "prompts" else clusters
    a, b = make(store, "a", 0.3, prompts=4), make(store, "b", 0.6, prompts=4)
    [[whole]] = agreements(what, a, b, store).values()
    [[fewer]] = agreements(what, [a[0], *a[2:]], [b[0], *b[2:]], store).values()
    assert whole.without_prompt[1] == pytest.approx(fewer.whole) and len(whole.without_prompt) == 4


@pytest.mark.sample(0)
@pytest.mark.parametrize("what", ["prompts", "clusters"])
def test_equal_embedders_are_seldom_told_apart(what: Agreement) -> None:
    """Prompts and items are drawn anew each time. A test over items alone takes each prompt for all prompts, and finds too much.

    It would find 0.45 of prompts and 0.15 of clusters. Of 100 draws, 0.09 lies 1.8 standard errors above the level and 1.7 below 0.15.
    """
    draw, draws = sides_of_prompts if what == "prompts" else sides_of_clusters, 200 if ALL else 100
    found = [agreement_test({"task": [draw(np.random.default_rng(seed))]}) for seed in range(draws)]
    assert sum(test is not None and test.p < 0.05 for test in found) / draws < 0.09


def sides_of_prompts(random: np.random.Generator) -> OnTask:
    """Two embedders whose prompts add noise to the same similarities: how much is random, and no matter of the embedder."""
    gold = random.normal(size=40)
    sides = [gold[:, None] + random.exponential(size=5) * random.normal(size=(40, 5)) for _ in range(2)]
    own, other = ([Items("spearman", {"predicted": column, "gold": gold}) for column in side.T] for side in sides)
    return agreement._over_prompts(own, other)


def sides_of_clusters(random: np.random.Generator) -> OnTask:
    """Groupings of one pool of texts, each moved from the same grouping by chance: two prompts agree as two embedders do."""
    groups, draws = random.integers(3, size=60), random.integers(60, size=(60, 10))
    label = {"label": np.arange(60)[draws] % 3}

    def grouping() -> Items:
        share = random.uniform(0.1, 0.5)
        moved = np.where(random.uniform(size=60) < share, random.integers(3, size=60), groups)
        return Items("v-measure", {"assigned": moved[draws], **label})

    return agreement._of_clusters([grouping() for _ in range(5)], [grouping() for _ in range(5)])


def test_runs_of_a_training_are_averaged_and_other_kinds_do_not_count(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    steady, shaky = (pairs(store, name, noise, runs=2) for name, noise in (("steady", 0.3), ("shaky", 1.0)))
    test = contrast("prompts", steady, shaky, store)
    of_run = [[[Scored((one.runs[run],)) for one in side] for side in (steady, shaky)] for run in range(2)]
    alone = [contrast("prompts", own, other, store) for own, other in of_run]
    assert test is not None and test.n == N
    assert test.difference == pytest.approx(np.mean([one.difference for one in alone if one]))
    assert agreements("clusters", steady, shaky, store) == {} and contrast("clusters", steady, shaky, store) is None
    elsewhere = [pairs(store, name, 0.3, kind="pair-classification") for name in ("one", "two")]
    assert agreements("prompts", elsewhere[0], elsewhere[1], store) == {}


def test_a_task_without_comparable_items_is_left_out(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    steady, shaky = pairs(store, "steady", 0.3), pairs(store, "shaky", 1.0)
    once = [clusters(store, name, 0.1, GROUPS[:, :1]) for name in ("own", "other")]  # one experiment has no variance
    assert agreements("clusters", once[0], once[1], store) == {}
    means = [  # of several sets of texts, mteb gives a mean
        Scored(({"texts": kept(store, f"{name}{prompt}", "clustering", Items("mean", {"value": GOLD}), "texts")},))
        for name in ("own", "other")
        for prompt in range(2)
    ]
    assert agreements("clusters", means[:2], means[2:], store) == {}
    store.add(shaky[2].runs[0]["pairs"], None)
    assert agreements("prompts", steady, shaky, store) == {}


def test_other_items_under_a_prompt_are_refused(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    own, other = (clusters(store, name, 0.1) for name in ("own", "other"))
    moved = Items("v-measure", {"assigned": GROUPS, "label": GROUPS[::-1]})
    other[1] = Scored(({"texts": kept(store, "moved", "clustering", moved, "texts")},))
    with pytest.raises(UnmaskError, match="other items"):
        agreements("clusters", own, other, store)


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
    ("setting", "words"),
    [
        ('other_prompts.of=["ruting"]', "ruting"),
        ('other_prompts.of=["hidden"]', "has to name both"),
        ('other_prompts.prompts=["tone","stile","style","intent"]', "stile"),
        ('other_prompts.prompts=["style","style","tone","intent"]', "twice under the prompt 'style'"),
        ('other_prompts.prompts=["eol","tone","style","intent"]', "twice under the prompt 'eol'"),
        ('other_prompts.kinds=["clusterring"]', "clusterring"),
        ('embedders.routing.model="base"', "two embedders of one model"),
    ],
)
def test_a_mistake_among_the_other_prompts_is_refused(setting: str, words: str) -> None:
    with pytest.raises(UnmaskError, match=words):
        load_plan("moee", "small", [setting])


def test_a_claim_about_agreement_belongs_to_a_study_that_can_test_it() -> None:
    claim = Claim(id="steady", where="here", says="It is steady.", better="a", than=("b",), agreement="prompts")
    check_names([claim], agreement=True)
    with pytest.raises(UnmaskError, match="Leave `agreement` out of 'steady'"):
        check_names([claim])
    with pytest.raises(ValueError, match="leave `kinds` and `less_on` out"):
        Claim(id="steady", where="here", says="It is steady.", better="a", than=("b",), agreement="prompts", kinds=("sts",))
