"""A claim of a paper, and the verdict on it.

A claim says that one thing is better than another, or than several others. The verdict follows from the tests alone:

- confirmed: the tests tell it apart from all others, in the direction of the claim;
- refuted: a test tells it apart from another, in the other direction;
- not measured: nothing in the run carries the claim, because tasks or embedders were left out;
- undecided: anything else. The result then says how large a difference the test would have found.

Two forms of claim have a margin. `within` says that two things are about as good: the whole interval has to be inside of the margin.
`costs` says that something is lost, but not more than so much: the whole interval has to be above minus the margin. Both are refuted if
the whole interval is outside. Their p is the smallest level at which the interval decides, so that they are corrected with all others.

A claim may need others, without which its tests say nothing: that a training had an effect at all, for example. It is enough that they
hold on the tasks of the run. If one of them is not confirmed, the claim is undecided, whatever its own tests say, and the finding says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from unmask.errors import UnmaskError, unknown
from unmask.statistics.intervals import NO_WIDTH, t_interval
from unmask.statistics.paired import SIGNIFICANT, PairedTest, better_side, with_holm
from unmask.statistics.power import detectable

Verdict = Literal["confirmed", "refuted", "undecided", "not measured", "not testable here"]
Agreement = Literal["prompts", "clusters", "clusters under one prompt"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
_POWER: Final = 0.8
_LEAST: Final = 1e-12
_OWN: Final = ("our question", "question of reviewers")
"""How `where` begins if no paper claims it."""


class _Fixed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Claim(_Fixed):
    """A claim of a paper.

    id: unique in its study. where: section or table of the paper. says: the claim, in our words. how: how it is tested here, if the
    comparison does not say it. better, than: what is compared. kinds: kinds of task, or the yardstick of a study that has several; none
    means all of them. less_on: kinds of task on which the difference is smaller; then the difference of both differences is tested, an
    interaction. agreement: what is compared, if it is no score: how far similarities of pairs agree under several prompts (`prompts`), or
    clusters of texts under several prompts and of two embedders (`clusters`, of which the embedders may have one prompt); such a claim
    names its kinds of task by this. within,
    costs: the margins of the two other forms of claim. needs: ids of claims that stand before this one, without which its tests say
    nothing. untestable: why this study cannot carry the claim; then nothing is compared.
    """

    id: str
    where: str
    says: str
    how: str = ""
    better: str = ""
    than: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    less_on: tuple[str, ...] = ()
    agreement: Agreement | None = None
    within: float | None = Field(default=None, gt=0)
    costs: float | None = Field(default=None, gt=0)
    needs: tuple[str, ...] = ()
    untestable: str = ""

    @model_validator(mode="after")
    def _testable_or_not(self) -> Claim:
        if bool(self.untestable) == bool(self.better and self.than):
            raise ValueError(f"claim '{self.id}' needs `better` and `than`, or `untestable`")
        if self.agreement and (self.kinds or self.less_on):
            raise ValueError(
                f"claim '{self.id}' has `agreement`, which says what it is measured on: leave `kinds` and `less_on` out"
            )
        return self

    @property
    def is_own(self) -> bool:
        """Whether this is a question of reviewers or our own, and no claim of a paper."""
        return self.where.startswith(_OWN)

    def asks(self, than: str) -> tuple[object, ...]:
        """What is tested against another thing. Two claims that ask the same have one test."""
        return self.better, than, self.kinds, self.less_on, self.agreement, self.within, self.costs

    @property
    def has_margin(self) -> bool:
        """Whether the interval alone decides, and not a test of no difference."""
        return self.within is not None or self.costs is not None


class Measured(_Fixed):
    """The test of a claim against one other thing.

    difference: positive if the claim is right. p: of no difference; of a claim with a margin, the level at which the interval decides.
    measured_in: its unit, such as points of a score in percent. n, unit: how many items or
    tasks. detectable: a true difference of this size is found in 80 % of studies like this one, at the corrected level.
    """

    than: str
    difference: float
    measured_in: str
    interval: tuple[float, float]
    level: float
    p: float
    p_holm: float
    n: int
    unit: str
    test: str
    detectable: float


class Here(_Fixed):
    """What becomes of a claim on these tasks alone: the test over their items that decided, and its verdict."""

    test: Measured
    verdict: Verdict


class Finding(_Fixed):
    """A claim with its tests, corrected for all tests that were measured (Holm), and its verdict.

    decided_by: the place of the test that decided. because: why the tests do not count, if they do not. here: of a claim that was tested
    over tasks, the same on these tasks alone.
    """

    claim: Claim
    tests: tuple[Measured, ...]
    verdict: Verdict
    decided_by: int = 0
    because: str = ""
    here: Here | None = None

    @property
    def deciding(self) -> Measured | None:
        """The test that decided, or that kept the claim from being confirmed. None if there was no test."""
        return self.tests[self.decided_by] if self.tests else None


def check_names(claims: Sequence[Claim], *, agreement: bool = False) -> None:
    """Raise UnmaskError if two claims of a study have one id, and if a claim needs one that does not stand before it.

    agreement: whether the study can test claims about agreement. If it cannot, such a claim is refused.
    """
    seen: list[str] = []
    for claim in claims:
        if claim.agreement and not agreement:
            raise UnmaskError(f"This study cannot test a claim about agreement. Leave `agreement` out of '{claim.id}'.")
        if claim.id in seen:
            raise UnmaskError(f"Two claims are called '{claim.id}'. Give each a name of its own.")
        for needed in claim.needs:
            if needed not in seen:
                raise unknown(f"claim before '{claim.id}', which needs it", needed, seen)
        seen.append(claim.id)


def findings(
    claims: Sequence[Claim],
    tests: Mapping[tuple[str, str], PairedTest],
    measured_in: Callable[[Claim], str],
    hold_here: Collection[str] = (),
) -> list[Finding]:
    """The verdict on each claim. tests: of a claim (id) against another thing (name), positive if the claim is right.

    measured_in: the unit of the differences of a claim. hold_here: ids of claims that are confirmed on the tasks of the run.
    """
    corrected = _as_one_family({claim.id: claim for claim in claims}, tests)
    found: dict[str, Finding] = {}
    for claim in claims:
        own = {than: corrected[claim.id, than] for than in claim.than if (claim.id, than) in tests}
        found[claim.id] = _with_what_it_needs(_finding(claim, own, measured_in(claim)), found, hold_here)
    return list(found.values())


def with_here(found: Sequence[Finding], here: Sequence[Finding]) -> list[Finding]:
    """Findings of tests over tasks, with those of the same claims over the items of these tasks."""
    return [
        one.model_copy(update={"here": Here(test=other.deciding, verdict=other.verdict)})
        if one.deciding and one.deciding.unit == "tasks" and other.deciding
        else one
        for one, other in zip(found, here, strict=True)
    ]


def _as_one_family(
    claims: Mapping[str, Claim], tests: Mapping[tuple[str, str], PairedTest]
) -> dict[tuple[str, str], PairedTest]:
    """The tests with Holm's correction. Of a claim with a margin, p and interval are about the margin and not about 0.

    A comparison that stands in several claims is one test.
    """
    asked = {
        claims[name].asks(than): _about_margin(claims[name], test) if claims[name].has_margin else test
        for (name, than), test in tests.items()
    }
    corrected = dict(zip(asked, with_holm(list(asked.values())), strict=True))
    found = {(name, than): corrected[claims[name].asks(than)] for name, than in tests}
    return {
        (name, than): replace(test, interval=test.bounds(test.level)) if claims[name].has_margin and test.bounds else test
        for (name, than), test in found.items()
    }


def _about_margin(claim: Claim, test: PairedTest) -> PairedTest:
    """The test of a claim with a margin: the interval decides, and no test of the difference 0 has a part in it.

    Over tasks it is the interval of t. With few tasks, the bootstrap interval confirms too much. A spread of 0 gives no t.
    """
    named = replace(test, test=f"interval over {test.unit}: {test.test}")
    if test.unit == "tasks" and test.changes is not None and np.ptp(test.changes) > NO_WIDTH:
        # as with the signed ranks, no p is below that of n tasks that all agree
        least = 2.0 ** (1 - test.n)
        named = replace(named, test="interval over tasks: t", bounds=partial(t_interval, test.changes), least=least)
    return replace(named, p=max(named.least, _p_of_margin(claim, named)))


def _p_of_margin(claim: Claim, test: PairedTest) -> float:
    """The smallest level at which the interval of the difference lies on one side of each bound of the margin."""

    def decides(level: float) -> bool:
        bounds = test.bounds(1 - level) if test.bounds else test.interval
        return any(_sides(replace(test, interval=bounds), claim))

    low, high = _LEAST, 1.0
    while high - low > 0.01 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def _with_what_it_needs(one: Finding, before: Mapping[str, Finding], hold_here: Collection[str]) -> Finding:
    open_ = [name for name in one.claim.needs if before[name].verdict != "confirmed" and name not in hold_here]
    if not open_ or one.verdict in ("not measured", "not testable here"):
        return one
    found = "not measured" if any(before[name].verdict == "not measured" for name in open_) else "not confirmed"
    because = f"Its tests say nothing, because this is {found}: {' '.join(before[name].claim.says for name in open_)}"
    return one.model_copy(update={"verdict": "undecided", "because": because})


def _finding(claim: Claim, tests: Mapping[str, PairedTest], unit: str) -> Finding:
    measured = tuple(_measured(claim, than, test, unit) for than, test in tests.items())
    sides = [_sides(test, claim) for test in tests.values()]
    return Finding(claim=claim, tests=measured, verdict=_verdict(claim, sides), decided_by=_deciding(measured, sides))


Sides = tuple[bool, bool]
"""Whether a test shows that the claim is right, and that it is wrong."""


def _verdict(claim: Claim, sides: Sequence[Sides]) -> Verdict:
    if claim.untestable:
        return "not testable here"
    if any(wrong for _, wrong in sides):
        return "refuted"
    if len(sides) < len(claim.than):
        return "not measured"
    return "confirmed" if all(right for right, _ in sides) else "undecided"


def _deciding(tests: Sequence[Measured], sides: Sequence[Sides]) -> int:
    """Of the tests that show the claim wrong, else of those that do not show it right, else of all: the least favourable one."""
    places = [place for place, (_, wrong) in enumerate(sides) if wrong]
    places = places or [place for place, (right, _) in enumerate(sides) if not right] or list(range(len(tests)))
    return min(places, key=lambda place: tests[place].difference, default=0)


def _sides(test: PairedTest, claim: Claim) -> Sides:
    low, high = test.interval
    if claim.has_margin and test.p_holm is not None and test.p_holm >= SIGNIFICANT:
        return False, False  # not significant after the correction
    if claim.within is not None:
        return -claim.within < low and high < claim.within, high < -claim.within or low > claim.within
    if claim.costs is not None:
        return low > -claim.costs, high < -claim.costs
    side = better_side(test)
    return side > 0, side < 0


def _measured(claim: Claim, than: str, test: PairedTest, measured_in: str) -> Measured:
    return Measured(
        than=than,
        difference=test.difference,
        measured_in=measured_in,
        interval=test.interval,
        level=test.level,
        p=test.p,
        p_holm=test.p if test.p_holm is None else test.p_holm,
        n=test.n,
        unit=test.unit,
        test=test.test,
        detectable=detectable(test, _POWER, by_interval=claim.has_margin),
    )
