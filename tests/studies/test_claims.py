"""Each verdict follows from the tests; the table says the same as the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from unmask.statistics.paired import PairedTest, t_test, wilcoxon
from unmask.studies.claims.carry import TaskScores, most_influential, what_decides, with_basis
from unmask.studies.claims.claim import Basis, Claim, ClaimTest, Finding, add_item_verdicts, turns_on_one_task
from unmask.studies.claims.claim import findings as findings_in
from unmask.studies.claims.tables import MEASURED_TASKS_NOTE, claims_sheet, short_sheet, summary
from unmask.studies.plan import plan_tables
from unmask.studies.routers.configurations import CONFIGURATIONS, UNITS
from unmask.studies.study import PACKAGES, load_plan

SHIPPED = [claim for study in PACKAGES for claim in load_plan(study, "small").claims]


def findings(claims: Sequence[Claim], tests: Mapping[tuple[str, str], PairedTest]) -> list[Finding]:
    return findings_in(claims, tests, lambda _: "points")


def measured(difference: float, noise: float = 0.1, tasks: int = 12) -> PairedTest:
    values = np.random.default_rng(0).normal(size=tasks)
    values = difference + noise * (values - values.mean()) / values.std(ddof=1)
    return wilcoxon(values, np.zeros(tasks))


def claim(name: str = "a-beats-b", than: tuple[str, ...] = ("b",), **more: Any) -> Claim:
    """A claim that asks something else than others, unless they name the same kinds of task."""
    return Claim.model_validate(
        {"id": name, "where": "table 1", "says": "a is better", "better": "a", "than": than, "kinds": (name,), **more}
    )


def verdict(one: Claim, *differences: float) -> str:
    tests = {(one.id, than): measured(value) for than, value in zip(one.than, differences, strict=False)}
    [found] = findings([one], tests)
    return found.verdict


def test_the_tests_decide() -> None:
    assert verdict(claim(), 1.0) == "confirmed"
    assert verdict(claim(), -1.0) == "refuted"
    assert verdict(claim(), 0.0) == "undecided"
    assert verdict(claim()) == "not measured"
    untestable = Claim(id="x", where="table 2", says="it grows", untestable="No such model is small enough.")
    assert verdict(untestable) == "not wired"


def test_the_best_of_several_is_better_than_each() -> None:
    three = claim(than=("b", "c", "d"))
    assert verdict(three, 1.0, 2.0, 3.0) == "confirmed"
    assert verdict(three, 1.0, 0.0, 3.0) == "undecided"
    assert verdict(three, 1.0, 0.0, -3.0) == "refuted", "one that is better is enough"
    assert verdict(three, 1.0, 2.0) == "not measured", "one of the three is missing"
    assert verdict(three, 1.0, -2.0) == "refuted", "one that is better is enough, whatever is missing"


def test_a_margin_asks_for_the_whole_interval() -> None:
    assert verdict(claim(within=2.0), -1.0) == "confirmed", "told apart, but within the margin"
    assert verdict(claim(within=0.5), -1.0) == "refuted"
    assert verdict(claim(within=0.05), 0.0) == "undecided", "no difference was shown, and none was excluded"


@pytest.mark.parametrize(
    ("first", "second"), [(1.0, "confirmed"), (0.0, "undecided"), (-1.0, "undecided"), (None, "undecided")]
)
def test_what_a_claim_needs_has_to_be_confirmed(first: float | None, second: str) -> None:
    claims = [
        claim("learns", says="a learns."),
        claim("wins", needs=("learns",)),
        claim("lost", needs=("wins",)),
        claim("rest"),
    ]
    tests = {("wins", "b"): measured(1.0), ("lost", "b"): measured(-1.0), ("rest", "b"): measured(1.0)}
    found = findings(claims, tests if first is None else {("learns", "b"): measured(first), **tests})
    assert [one.verdict for one in found[1:]] == [second, "refuted" if second == "confirmed" else "undecided", "confirmed"]
    said = f"this is not {'measured' if first is None else 'confirmed'}: a learns."
    reasons = any(said in row[3] for row in claims_sheet(found).rows)
    assert reasons == (second != "confirmed"), "the reason stands in the table"
    assert found[3].because == "" and len(found[1].tests) == 1, "what was measured is kept"


def test_all_tests_of_a_study_are_one_family() -> None:
    alone = findings([claim()], {("a-beats-b", "b"): measured(0.09)})[0]
    many = [claim(f"claim {place}") for place in range(40)]
    together = findings(many, {(one.id, "b"): measured(0.09) for one in many})
    assert alone.verdict == "confirmed" and {one.verdict for one in together} == {"undecided"}
    assert together[0].tests[0].p_holm > 20 * alone.tests[0].p_holm


def test_a_comparison_that_stands_in_two_claims_is_one_test() -> None:
    """Holm's correction would count it twice, and find less."""
    test = wilcoxon(np.arange(1.0, 8), np.zeros(7))
    twice = [claim("sts", kinds=("sts",)), claim("best-on-sts", kinds=("sts",), than=("b", "c"))]
    others = [
        claim("elsewhere", kinds=("retrieval",)),
        claim("margin", kinds=("sts",), costs=1.0),
        claim("none", kinds=("sts",), than=("d",)),
    ]
    tests = {
        ("sts", "b"): test,
        ("best-on-sts", "b"): test,
        ("best-on-sts", "c"): test,
        ("elsewhere", "b"): test,
        ("margin", "b"): test,
    }
    found = findings([*twice, *others], tests)
    assert [[one.p_holm for one in of.tests] for of in found[:3]] == [[4 * test.p], [4 * test.p] * 2, [4 * test.p]]
    assert found[0].verdict == "undecided" and findings(twice, {("sts", "b"): test})[0].verdict == "confirmed"


def test_the_p_of_a_claim_with_a_margin_is_about_the_margin() -> None:
    test = t_test(-2.0, [(0.25, 10**6)], 100, "items")
    for form, margin, verdict_of_it in (("costs", 3.0, "confirmed"), ("within", 3.0, "confirmed"), ("within", 1.0, "refuted")):
        margins: dict[str, Any] = {form: margin}
        [found] = findings([claim(**margins)], {("a-beats-b", "b"): test})
        assert found.tests[0].p == pytest.approx(2 * norm.sf(2.0), rel=0.02), "two standard errors from the margin, four from 0"
        assert found.verdict == verdict_of_it
    [open_one] = findings([claim(costs=2.1)], {("a-beats-b", "b"): test})
    assert open_one.verdict == "undecided" and open_one.tests[0].interval[1] < 0, (
        "an interval about a margin is not widened to 0"
    )


@pytest.mark.parametrize(("differences", "told"), [((3.0, 1.0, 2.0), "c"), ((3.0, 0.02, 0.0), "d"), ((3.0, -0.5, 0.0), "c")])
def test_the_rival_that_decides_is_told(differences: tuple[float, ...], told: str) -> None:
    three = claim(than=("b", "c", "d"))
    [found] = findings([three], {(three.id, than): measured(value) for than, value in zip("bcd", differences, strict=True)})
    assert found.deciding is not None and found.deciding.than == told


def test_a_table_has_a_line_for_each_claim_and_the_summary_says_what_does_not_hold() -> None:
    claims = [claim("good"), claim("bad", says="c is better than d"), claim("open", says="e is better than f")]
    found = findings(claims, {("good", "b"): measured(1.0), ("bad", "b"): measured(-1.0), ("open", "b"): measured(0.0)})
    assert [row[1] for row in claims_sheet(found).rows] == ["refuted", "undecided", "confirmed"]
    assert [row[0] for row in short_sheet(found).rows] == ["good", "bad", "open"]
    assert summary(found).splitlines() == [
        "3 claims: 1 confirmed, 1 refuted, 1 undecided.",
        "- Refuted: c is better than d",
        "- Undecided: e is better than f",
    ]
    again = [Finding.model_validate_json(one.model_dump_json()) for one in found]
    assert claims_sheet(again) == claims_sheet(found), "results that were saved give the same table"


def test_what_holds_on_these_tasks_alone_stands_beside_the_verdict() -> None:
    """It is told of tests over tasks only; another test of the claim is about these tasks already."""
    claims = [claim("tasks", than=("b", "c")), claim("items"), claim("none")]
    items = {("items", "b"): replace(measured(1.0), unit="items")}
    over_tasks = {("tasks", "b"): measured(0.01), ("tasks", "c"): measured(0.02)}
    over_items = {("tasks", "b"): measured(1.0), ("tasks", "c"): measured(-1.0)}
    found = add_item_verdicts(findings(claims, over_tasks | items), findings(claims, over_items | items))
    assert [one.here and one.here.verdict for one in found] == ["refuted", None, None]
    assert [one.verdict for one in found] == ["undecided", "confirmed", "not measured"]
    sheet = claims_sheet(found)
    assert "on the measured tasks" in sheet.columns and MEASURED_TASKS_NOTE in sheet.note
    [said] = {row[sheet.columns.index("on the measured tasks")] for row in sheet.rows} - {""}
    assert said.startswith("refuted (against c), -1 ["), "the rival that decided here is another one"
    without = claims_sheet([one.model_copy(update={"here": None}) for one in found])
    assert "on the measured tasks" not in without.columns and MEASURED_TASKS_NOTE not in without.note


def test_the_most_influential_task_moves_the_difference_towards_zero_the_most() -> None:
    assert most_influential({"a": 9.0, "b": 0.0, "c": -3.0}) == ("a", -1.5), "9 of 6: without it, the others say the opposite"
    assert most_influential({"a": -9.0, "b": 0.0, "c": 3.0}) == ("a", 1.5)
    assert most_influential({"a": 9.0}) is None, "nothing is left"
    more_on_ab_than_on_c = most_influential({"a": 6.0, "b": 2.0}, {"c": 3.0})
    assert more_on_ab_than_on_c == ("a", -1.0), "the only task of its kind stays"


def one_test(difference: float, interval: tuple[float, float], **more: Any) -> ClaimTest:
    values: dict[str, Any] = {
        "than": "b",
        "measured_in": "points",
        "level": 0.95,
        "p": 0.5,
        "p_holm": 0.5,
        "test": "t",
        "unit": "items",
    }
    return ClaimTest(difference=difference, interval=interval, **{"n": 100, "detectable": 1.0, **values, **more})


def test_a_verdict_turns_on_a_task_if_the_moved_interval_shows_it_no_more() -> None:
    def turns(without: float, one: Claim, interval: tuple[float, float] = (1.0, 5.0)) -> bool:
        basis = Basis(tasks=3, seeds=1, most_influential="x", without=without)
        return turns_on_one_task(one, one_test(3.0, interval, basis=basis))

    assert turns(1.5, claim()) and not turns(2.5, claim())
    assert not turns(1.5, claim(), (-1.0, 7.0)), "nothing was shown"
    assert turns(1.5, claim(within=0.9)) and not turns(2.95, claim(within=0.9)), (
        "refuted: the interval is outside of the margin"
    )


def decision(
    difference: float, one: Claim | None = None, share: float | None = None, seeds: int = 5, **more: Any
) -> tuple[float, str]:
    basis = Basis(tasks=4, seeds=seeds, seed_share=share)
    finding = Finding(claim=one or claim(), tests=(one_test(difference, (-2, 2), basis=basis, **more),), verdict="undecided")
    found = what_decides(finding)
    assert found is not None
    return found.cost, found.text


def test_what_would_decide_a_claim_is_the_cheapest_way_to_make_its_difference_detectable() -> None:
    """The variance has to fall to (difference / detectable)^2 of what it is. Seeds and items shrink their parts of it."""
    assert decision(0.5, seeds=1) == (4.0, "confirmed at 400 items")
    assert decision(-0.5, seeds=0) == (4.0, "refuted at 400 items")
    half = 0.5**0.5  # half of the variance
    for share, cost, expected in (
        (0.9, 0.9 / 0.4, "confirmed at 12 seeds"),
        (0.1, 0.9 / 0.4, "confirmed at 225 items"),
        (0.5, 4.0, "confirmed at 200 items and 10 seeds"),  # neither can do it alone
    ):
        assert decision(half, share=share)[1] == expected
        assert decision(half, share=share)[0] == pytest.approx(cost)
    assert decision(half)[1] == "confirmed at 200 items and 10 seeds", "the shares are not known"
    assert decision(0.5, claim(within=1.0), seeds=1)[1] == "confirmed at 400 items", "0.5 from the margin"
    assert decision(-0.5, claim(costs=1.0), seeds=1)[1] == "confirmed at 400 items"
    assert decision(1.5, claim(within=1.0), seeds=1)[1] == "refuted at 400 items"
    assert decision(0.01, seeds=1)[0] == np.inf
    blocked = Finding(claim=claim(), tests=(one_test(5.0, (4, 6)),), verdict="undecided", because="It needs another.")
    assert what_decides(blocked) == what_decides(blocked.model_copy(update={"tests": blocked.tests * 2})) is not None
    assert what_decides(findings([claim()], {("a-beats-b", "b"): measured(1.0)})[0]) is None


def test_a_study_of_that_many_tasks_detects_the_difference() -> None:
    [small] = findings([claim()], {("a-beats-b", "b"): measured(0.05)})
    found = what_decides(small)
    assert small.verdict == "undecided" and found is not None
    number = int(found.text.split()[2])
    [large] = findings([claim()], {("a-beats-b", "b"): measured(0.05, tasks=number)})
    assert number > 12 and large.tests[0].detectable == pytest.approx(0.05, rel=0.15)


def test_what_a_difference_rests_on() -> None:
    scores = {
        "a": {"x": [3.0, 5.0], "y": [1.0, 1.0], "words": [9.0, 9.0]},
        "b": {"x": [1.0, 3.0], "y": [0.0, 2.0], "words": [0.0, 0.0]},
        "untrained": {"x": [1.0], "y": [1.0], "words": [0.0]},
    }
    kinds = {"x": "sts", "y": "clustering", "words": "word-level"}

    def basis(trained: Mapping[str, str], **more: Any) -> Basis:
        one = claim(**{"kinds": (), **more})
        test = one_test(1.0, (0, 2), unit="items" if one.kinds else "tasks", than=one.than[0])
        [found] = with_basis([Finding(claim=one, tests=(test,), verdict="undecided")], TaskScores(scores, kinds, trained))
        assert found.tests[0].basis is not None
        return found.tests[0].basis

    apart = basis({"a": "1", "b": "2"})
    assert (apart.tasks, apart.seeds, apart.most_influential, apart.without) == (2, 2, "x", 0.0), "words are no texts"
    # a: runs 2 and 3, variance 0.5; b: runs 0.5 and 2.5, variance 2; each over two runs. Tasks differ by 2 and 0: 2, over two tasks
    assert apart.seed_share == pytest.approx((0.25 + 1.0) / (0.25 + 1.0 + 1.0))
    paired = basis({"a": "1", "b": "1"})
    assert paired.seed_share == pytest.approx(0.25 / 1.25), "one training, read twice: the runs differ by 1.5 and 0.5"
    assert basis({"a": "1"}, than=("untrained",)).seeds == 2
    assert basis({}, than=("untrained",)).seeds == 0
    assert basis({"a": "1", "b": "2"}, kinds=("sts",)).without is None


def test_undecided_claims_stand_in_the_order_of_what_it_costs_to_decide_them() -> None:
    found = findings(
        [claim(name) for name in "xyz"],
        {(name, "b"): measured(size) for name, size in zip("xyz", (0.001, 0.05, 0.02), strict=True)},
    )
    sheet = claims_sheet(found)
    numbers = [row[sheet.columns.index("decided by")] for row in sheet.rows]
    assert [found[index].verdict for index in range(3)] == ["undecided"] * 3 and numbers[2] == "over 100 times"
    assert 12 < int(numbers[0].split()[2]) < int(numbers[1].split()[2])
    assert "without one task" not in sheet.columns, "a column without content is left out"


def test_a_claim_with_a_margin_says_so() -> None:
    """ "No better" is more than a test with a margin can show, and "as good" has two sides."""
    for claim in SHIPPED:
        says = claim.says.replace("points", "point").replace("nats per token", "point")
        assert (f"by more than {claim.costs:g} point" in says) if claim.costs else "by more than" not in says
        assert bool(claim.within) == ("as good" in says), claim.id


@pytest.mark.parametrize("study", PACKAGES)
def test_the_claims_of_a_plan_name_what_the_plan_has(study: str) -> None:
    for scale in plan_tables(study)["scale"]:
        plan = load_plan(study, scale)
        ids = [claim.id for claim in plan.claims]
        assert len(set(ids)) == len(ids)
        for index, claim in enumerate(plan.claims):
            assert set(claim.needs) <= set(ids[:index]), "a claim needs earlier claims"
            sides = {claim.better, *claim.than} - {""}
            if study == "routers":
                assert sides <= set(CONFIGURATIONS) and len(claim.kinds) == 1 and claim.kinds[0] in UNITS
            elif PACKAGES[study] == "embedders":
                assert sides <= set(plan.embedders)
            if claim.agreement:
                assert sides <= set(plan.other_prompts.of) and len({plan.embedders[name].model for name in sides}) == 1
        for name in plan.other_prompts.of if getattr(plan, "other_prompts", None) else ():
            prompts = [plan.embedders[name].parsed_design.prompt, *plan.other_prompts.prompts]
            assert len(set(prompts)) == len(prompts), "no embedder is read twice under one prompt"
