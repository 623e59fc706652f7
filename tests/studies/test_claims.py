"""Claims: each verdict follows from the tests, and the page says the same as the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import norm
from unmask.statistics.variance_sources import t_of_sources

from unmask.errors import UnmaskError
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import PairedTest, paired_bootstrap, wilcoxon
from unmask.studies.claims.claim import Claim, Finding, check_names, with_here
from unmask.studies.claims.claim import findings as findings_in
from unmask.studies.claims.tables import HERE, claims_sheet, name_of_test, short_sheet, summary
from unmask.studies.embedders.plan import STUDIES, load_plan
from unmask.studies.routers.plan import load_plan as load_routers
from unmask.studies.self_moe.plan import load_plan as load_self_moe

SHIPPED = (
    *(claim for study in STUDIES for claim in load_plan(study, "small").claims),
    *load_routers("small").claims,
    *load_self_moe("small").claims,
)


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
    assert verdict(untestable) == "not testable here"


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


def test_a_cost_may_also_be_a_gain() -> None:
    assert verdict(claim(costs=0.5), 9.0) == "confirmed"
    assert verdict(claim(within=0.5), 9.0) == "refuted"
    assert verdict(claim(costs=2.0), -1.0) == "confirmed"
    assert verdict(claim(costs=0.5), -1.0) == "refuted"
    assert verdict(claim(costs=0.05), 0.0) == "undecided"


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


def test_a_need_that_holds_on_the_tasks_of_the_run_is_enough() -> None:
    claims = [claim("learns"), claim("wins", needs=("learns",))]
    tests = {("learns", "b"): measured(0.0), ("wins", "b"): measured(1.0)}
    found = findings_in(claims, tests, lambda _: "points", hold_here=["learns"])
    assert [(one.verdict, one.because) for one in found] == [("undecided", ""), ("confirmed", "")]


def test_a_claim_without_tests_stays_not_measured_whatever_it_needs() -> None:
    found = findings([claim("learns"), claim("wins", needs=("learns",))], {("learns", "b"): measured(0.0)})
    assert [(one.verdict, one.because) for one in found] == [("undecided", ""), ("not measured", "")]


def test_a_claim_that_lacks_a_rival_is_not_measured_whatever_it_needs() -> None:
    claims = [claim("learns"), claim("best", than=("b", "c"), needs=("learns",))]
    found = findings(claims, {("learns", "b"): measured(0.0), ("best", "b"): measured(1.0)})
    assert (found[1].verdict, found[1].because) == ("not measured", "")


def test_a_claim_needs_claims_that_stand_before_it() -> None:
    check_names([claim("learns"), claim("wins", needs=("learns",))])
    for wrong in ([claim("wins", needs=("learns",)), claim("learns")], [claim("learns"), claim("wins", needs=("lerns",))]):
        with pytest.raises(UnmaskError, match="'wins'"):
            check_names(wrong)


def test_comparisons_with_design_1_need_that_it_has_learned() -> None:
    first, *others = load_plan("pooling-and-attention", "small").claims
    assert first.id == "1-has-learned"
    for one in others:
        assert ("1-has-learned" in one.needs) == ("design 1" in (one.better, *one.than)), one.id


def test_ranks_and_mean_have_to_agree() -> None:
    """One huge gain and many small losses: the ranks say worse, the mean says better."""
    values = np.array([200.0, *(-0.1 - 0.01 * place for place in range(30))])
    test = wilcoxon(values, np.zeros(31))
    assert test.difference > 0 and test.effect < 0 and test.p < 0.01
    [found] = findings([claim()], {("a-beats-b", "b"): replace(test, interval=(0.1, 9.0), bounds=None)})
    assert found.verdict == "undecided"


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


@pytest.mark.sample(0)
@pytest.mark.parametrize("form", ["costs", "within"])
def test_claims_with_a_margin_are_corrected_as_one_family(form: str) -> None:
    """Twenty true differences lie exactly at the margin, far from 0. In one study of twenty, one claim may be decided and not more."""
    random = np.random.default_rng(0)
    margin: dict[str, Any] = {form: 6.0}
    claims = [claim(f"claim {place}", **margin) for place in range(20)]

    def decided() -> bool:
        seen = random.normal(-6, 1, 20)
        tests = {
            (one.id, "b"): t_of_sources(value, [(1.0, 10**6)], 100, "items") for one, value in zip(claims, seen, strict=True)
        }
        return any(one.verdict != "undecided" for one in findings(claims, tests))

    assert np.mean([decided() for _ in range(100)]) < 0.1, "uncorrected: 0.6"


def test_the_p_of_a_claim_with_a_margin_is_about_the_margin() -> None:
    test = t_of_sources(-2.0, [(0.25, 10**6)], 100, "items")
    for form, margin, verdict_of_it in (("costs", 3.0, "confirmed"), ("within", 3.0, "confirmed"), ("within", 1.0, "refuted")):
        margins: dict[str, Any] = {form: margin}
        [found] = findings([claim(**margins)], {("a-beats-b", "b"): test})
        assert found.tests[0].p == pytest.approx(2 * norm.sf(2.0), rel=0.02), "two standard errors from the margin, four from 0"
        assert found.verdict == verdict_of_it
    [open_one] = findings([claim(costs=2.1)], {("a-beats-b", "b"): test})
    assert open_one.verdict == "undecided" and open_one.tests[0].interval[1] < 0, (
        "an interval about a margin is not widened to 0"
    )


def test_a_margin_over_few_tasks_is_not_met_by_chance() -> None:
    """The true difference lies at the margin, so 2.5 % of studies may confirm the claim. By the bootstrap's interval, 6 to 7 % do."""
    random, one, studies = np.random.default_rng(1), claim(costs=2.0), 500
    tests = [wilcoxon(random.normal(-2, 1, 6), np.zeros(6), resamples=500) for _ in range(studies)]
    confirmed = [findings([one], {(one.id, "b"): test})[0].verdict == "confirmed" for test in tests]
    assert 0.012 < np.mean(confirmed) < 0.04
    assert np.mean([test.interval[0] > -2 for test in tests]) > 0.05


def test_a_margin_is_told_by_its_interval_and_not_more_surely_than_resamples_can() -> None:
    items = [Items("mean", {"value": np.random.default_rng(seed).normal(0, 1, 50)}) for seed in (0, 1)]
    test = paired_bootstrap(items[:1], items[1:], resamples=999)
    [found] = findings([claim(within=50.0)], {("a-beats-b", "b"): test})
    assert found.verdict == "confirmed" and found.tests[0].p == 2 / 1000
    assert found.tests[0].test.startswith("interval over items: ") and name_of_test(found.tests[0]) == "interval"
    many = {(f"claim {place}", "b"): test for place in range(40)}
    every = findings([claim(name, within=50.0) for name, _ in many], many)
    assert {one.verdict for one in every} == {"undecided"}, "40 times 2 / 1000 is more than 0.05"


@pytest.mark.parametrize(("differences", "told"), [((3.0, 1.0, 2.0), "c"), ((3.0, 0.02, 0.0), "d"), ((3.0, -0.5, 0.0), "c")])
def test_the_rival_that_decides_is_told(differences: tuple[float, ...], told: str) -> None:
    three = claim(than=("b", "c", "d"))
    [found] = findings([three], {(three.id, than): measured(value) for than, value in zip("bcd", differences, strict=True)})
    assert found.deciding is not None and found.deciding.than == told


def test_what_is_detectable_is_so_by_the_rule_of_the_verdict() -> None:
    """Over few tasks the ranks need more than the interval; a claim with a margin asks for the interval alone."""
    test = measured(0.0, 1.0, 12)
    many = {(f"{form} {place}", "b"): test for form in ("plain", "costs") for place in range(10)}
    claims = [claim(name, costs=1.0) if name.startswith("costs") else claim(name) for name, _ in many]
    found = {one.claim.id: one.tests[0].detectable for one in findings(claims, many)}
    assert found["plain 0"] > 1.05 * found["costs 0"]


def test_a_claim_is_tested_or_says_why_not() -> None:
    stated = {"id": "x", "where": "table 1", "says": "a is better"}
    for wrong in (stated, stated | {"better": "a", "than": ["b"], "untestable": "no"}):
        with pytest.raises(ValidationError, match="needs `better` and `than`, or `untestable`"):
            Claim.model_validate(wrong)


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
    found = with_here(findings(claims, over_tasks | items), findings(claims, over_items | items))
    assert [one.here and one.here.verdict for one in found] == ["refuted", None, None]
    assert [one.verdict for one in found] == ["undecided", "confirmed", "not measured"]
    sheet = claims_sheet(found)
    assert "on these tasks" in sheet.columns and HERE in sheet.note
    [said] = {row[sheet.columns.index("on these tasks")] for row in sheet.rows} - {""}
    assert said.startswith("refuted (against c), -1 ["), "the rival that decided here is another one"
    without = claims_sheet([one.model_copy(update={"here": None}) for one in found])
    assert "on these tasks" not in without.columns and HERE not in without.note


@pytest.mark.parametrize(
    ("hows", "rows", "of_all"),
    [
        (("Own. For all. And more.", "For all. And more."), ("Own.", ""), "For all. And more."),
        (("For all. One.", "For all. Two."), ("For all. One.", "For all. Two."), ""),
        (("For all.", ""), ("For all.", ""), ""),
        (("Alone.",), ("Alone.",), ""),
    ],
)
def test_what_is_said_of_all_claims_stands_below_the_table(hows: tuple[str, ...], rows: tuple[str, ...], of_all: str) -> None:
    claims = [claim(f"claim {place}", how=how) for place, how in enumerate(hows)]
    untestable = Claim(id="never", where="here", says="x", untestable="No model is small enough.")
    sheet = claims_sheet(findings([*claims, untestable], {(one.id, "b"): measured(1.0) for one in claims}))
    shown = [row[3].partition(".")[2].strip() for row in sheet.rows]
    assert tuple(shown) == (*rows, "")
    assert sheet.note.startswith(f"{of_all} Difference: a positive".lstrip())


def test_every_shipped_claim_can_be_read_and_there_are_enough() -> None:
    assert len(SHIPPED) >= 45
    assert all(claim.says.endswith((".", ")")) for claim in SHIPPED)


def test_a_claim_with_a_margin_says_so() -> None:
    """ "No better" is more than a test with a margin can show, and "as good" has two sides."""
    for claim in SHIPPED:
        says = claim.says.replace("points", "point").replace("nats per token", "point")
        assert (f"by more than {claim.costs:g} point" in says) if claim.costs else "by more than" not in says
        assert bool(claim.within) == ("as good" in says), claim.id
