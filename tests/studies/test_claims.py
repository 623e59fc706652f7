"""Each verdict follows from the tests; the table says the same as the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from unmask.statistics.paired import PairedTest, t_test, wilcoxon
from unmask.studies.claims.claim import Claim, Finding, add_item_verdicts
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
