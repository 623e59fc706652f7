"""A claim of a paper, and the verdict on it.

A claim says that one thing is better than another, or than several others. The verdict follows from the tests alone:

- confirmed: the tests show it to be better than all others;
- refuted: a test shows another to be better;
- not measured: nothing in the run carries the claim, because tasks or embedders were left out;
- undecided: anything else. The result then says how large a difference the test would have found.

Two forms of claim have a margin. `within` says that two things are about as good: the whole interval must be inside of the margin.
`costs` says that something is lost, but no more than the margin: the whole interval must be above minus the margin. Both are refuted if
the whole interval is outside. Their p is the smallest level at which the interval decides, so that they are corrected with all others.

A claim may need others, without which its tests say nothing: that a training had an effect at all, for example. It is enough that they
hold on the tasks of the run. If one of them is not confirmed, the claim is undecided, whatever its tests say, and the finding says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from unmask.statistics.intervals import NO_WIDTH, t_interval
from unmask.statistics.paired import SIGNIFICANT, PairedTest, with_holm
from unmask.statistics.power import detectable

Verdict = Literal["confirmed", "refuted", "undecided", "not measured", "not wired"]
Agreement = Literal["prompts", "clusters", "clusters under one prompt"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
POWER: Final = 0.8
"""Of the difference that a study can detect."""
_LEAST: Final = 1e-12
_OWN: Final = ("our question", "question of reviewers")
"""How `where` begins if no paper claims it."""


class _FrozenModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Claim(_FrozenModel):
    """A claim of a paper."""

    id: str
    """Unique in its study."""
    where: str
    """Section or table of the paper."""
    says: str
    """The claim, in our words."""
    how: str = ""
    """How it is tested here, if the comparison does not say it."""
    better: str = ""
    than: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """Kinds of task, or the yardstick of a study that has several; none means all of them."""
    less_on: tuple[str, ...] = ()
    """Kinds of task on which the difference is smaller; then the difference of both differences is tested, an interaction."""
    agreement: Agreement | None = None
    """What is compared, if it is not a score: how far similarities of pairs agree under several prompts, or clusters of texts under several
    prompts and of two embedders. Such a claim has no `kinds`."""
    within: float | None = Field(default=None, gt=0)
    """The margin of a claim that two things are about as good."""
    costs: float | None = Field(default=None, gt=0)
    """The margin of a claim that not more than this is lost."""
    needs: tuple[str, ...] = ()
    """Ids of earlier claims, without which its tests say nothing."""
    untestable: str = ""
    """Why this study does not test the claim, and the command that measures it; then nothing is compared."""

    @model_validator(mode="after")
    def _check_testable(self) -> Claim:
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

    def question(self, rival: str) -> tuple[object, ...]:
        """What is tested against another thing. Two claims with the same question have one test."""
        return self.better, rival, self.kinds, self.less_on, self.agreement, self.within, self.costs

    @property
    def has_margin(self) -> bool:
        """Whether the interval alone decides, and not a test of no difference."""
        return self.within is not None or self.costs is not None


class Basis(_FrozenModel):
    """What a difference rests on."""

    tasks: int
    """How many tasks or domains it is a mean over."""
    unit: Literal["task", "domain"] = "task"
    seeds: int
    """Trainings of the side that was trained least often; 0 if neither side was trained."""
    seed_share: float | None = None
    """The share of the seeds in the variance of the difference. None if it is not known."""
    most_influential: str = ""
    """The task whose removal moves the difference the most towards 0, or across it. Empty for one task."""
    without: float | None = None
    """The difference without that task."""


class ClaimTest(_FrozenModel):
    """The test of a claim against one other thing."""

    than: str
    difference: float
    """Positive if the claim is right."""
    measured_in: str
    """The unit of the difference, such as points of a score in percent."""
    interval: tuple[float, float]
    level: float
    p: float
    """Of no difference; of a claim with a margin, the level at which the interval decides."""
    p_holm: float
    n: int
    """How many items or tasks."""
    unit: str
    test: str
    detectable: float
    """A true difference of this size is found in 80 % of studies like this one, at the corrected level."""
    basis: Basis | None = None

    @classmethod
    def of(cls, claim: Claim, rival: str, test: PairedTest, measured_in: str) -> ClaimTest:
        """The corrected test of a claim."""
        return cls(
            than=rival,
            difference=test.difference,
            measured_in=measured_in,
            interval=test.interval,
            level=test.level,
            p=test.p,
            p_holm=test.corrected_p,
            n=test.n,
            unit=test.unit,
            test=test.test,
            detectable=detectable(test, POWER, by_interval=claim.has_margin),
        )


class ItemVerdict(_FrozenModel):
    """The verdict on a claim for the measured tasks alone, and the test over their items that decided it."""

    test: ClaimTest
    verdict: Verdict


class Finding(_FrozenModel):
    """A claim with its tests, corrected for all tests that were measured (Holm), and its verdict."""

    claim: Claim
    tests: tuple[ClaimTest, ...]
    verdict: Verdict
    decided_by: int = 0
    """The index of the test that decided."""
    because: str = ""
    """Why the tests do not count, if they do not."""
    here: ItemVerdict | None = None
    """Of a claim that was tested over tasks: the verdict for these tasks alone."""

    @property
    def deciding(self) -> ClaimTest | None:
        """The test that decided, or that kept the claim from being confirmed. None without a test."""
        return self.tests[self.decided_by] if self.tests else None


def findings(
    claims: Sequence[Claim],
    tests: Mapping[tuple[str, str], PairedTest],
    measured_in: Callable[[Claim], str],
    confirmed_on_items: Collection[str] = (),
) -> list[Finding]:
    """The verdict on each claim. tests: of a claim (id) against another thing (name), positive if the claim is right.

    measured_in: the unit of the differences of a claim. confirmed_on_items: ids of claims that the
    tests over items confirm, for the tasks of the run alone.
    """
    corrected = _correct({claim.id: claim for claim in claims}, tests)
    by_id: dict[str, Finding] = {}
    for claim in claims:
        of_claim = {rival: corrected[claim.id, rival] for rival in claim.than if (claim.id, rival) in tests}
        finding = _finding(claim, of_claim, measured_in(claim))
        lacking = [name for name in claim.needs if by_id[name].verdict != "confirmed" and name not in confirmed_on_items]
        if lacking and finding.verdict not in ("not measured", "not wired"):
            unmeasured = any(by_id[name].verdict == "not measured" for name in lacking)
            because = f"Its tests say nothing, because this is {'not measured' if unmeasured else 'not confirmed'}: "
            because += " ".join(by_id[name].claim.says for name in lacking)
            finding = finding.model_copy(update={"verdict": "undecided", "because": because})
        by_id[claim.id] = finding
    return list(by_id.values())


def add_item_verdicts(general: Sequence[Finding], item_findings: Sequence[Finding]) -> list[Finding]:
    """Findings of tests over tasks, with the verdicts on the same claims over the items of these tasks."""
    return [
        finding.model_copy(update={"here": ItemVerdict(test=on_items.deciding, verdict=on_items.verdict)})
        if finding.deciding and finding.deciding.unit == "tasks" and on_items.deciding
        else finding
        for finding, on_items in zip(general, item_findings, strict=True)
    ]


def _correct(claims: Mapping[str, Claim], tests: Mapping[tuple[str, str], PairedTest]) -> dict[tuple[str, str], PairedTest]:
    """The tests with Holm's correction. Of a claim with a margin, p and interval are about the margin and not about 0.

    A comparison that several claims make is one test.
    """
    questions = {
        claims[name].question(rival): _about_margin(claims[name], test) if claims[name].has_margin else test
        for (name, rival), test in tests.items()
    }
    corrected = dict(zip(questions, with_holm(list(questions.values())), strict=True))
    family = {(name, rival): corrected[claims[name].question(rival)] for name, rival in tests}
    return {
        (name, rival): replace(test, interval=test.bounds(test.level)) if claims[name].has_margin and test.bounds else test
        for (name, rival), test in family.items()
    }


def _about_margin(claim: Claim, test: PairedTest) -> PairedTest:
    """The test of a claim with a margin: the interval decides, and no test of the difference 0 has a part in it.

    Over tasks it is the interval of t. With few tasks, the bootstrap interval confirms too much. A spread of 0 gives no t.
    """
    margin_test = replace(test, test=f"interval over {test.unit}: {test.test}")
    if test.unit == "tasks" and test.changes is not None and np.ptp(test.changes) > NO_WIDTH:
        # as with signed ranks, p is bounded below by the p-value for n tasks that agree
        least = 2.0 ** (1 - test.n)
        margin_test = replace(margin_test, test="interval over tasks: t", bounds=partial(t_interval, test.changes), least=least)

    def decides(level: float) -> bool:
        bounds = margin_test.bounds(1 - level) if margin_test.bounds else margin_test.interval
        return any(_right_and_wrong(replace(margin_test, interval=bounds), claim))

    # the smallest level at which the interval is on one side of each bound of the margin
    low, high = _LEAST, 1.0
    while high - low > 0.01 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if decides(middle) else (middle, high)
    return replace(margin_test, p=max(margin_test.least, high))


def turns_on_one_task(claim: Claim, test: ClaimTest) -> bool:
    """Whether a test shows something only with its most influential task. Without it, the interval moves with the difference."""
    if test.basis is None or test.basis.without is None:
        return False
    low, high = test.interval
    moved = test.basis.without - test.difference

    def sides(interval: tuple[float, float]) -> tuple[bool, bool]:
        return _sides_of_margin(interval, claim) if claim.has_margin else (interval[0] > 0, interval[1] < 0)

    before = sides((low, high))
    return any(before) and before != sides((low + moved, high + moved))


def _finding(claim: Claim, tests: Mapping[str, PairedTest], unit: str) -> Finding:
    measured = tuple(ClaimTest.of(claim, rival, test, unit) for rival, test in tests.items())
    sides = [_right_and_wrong(test, claim) for test in tests.values()]
    # the least favourable test: among those that refute the claim, else those that do not confirm it, else any
    refuting = [index for index, (_, wrong) in enumerate(sides) if wrong]
    deciding = refuting or [index for index, (right, _) in enumerate(sides) if not right] or list(range(len(sides)))
    verdict: Verdict = "confirmed" if all(right for right, _ in sides) else "undecided"
    if claim.untestable:
        verdict = "not wired"
    elif refuting:
        verdict = "refuted"
    elif len(sides) < len(claim.than):
        verdict = "not measured"
    decided_by = min(deciding, key=lambda index: measured[index].difference, default=0)
    return Finding(claim=claim, tests=measured, verdict=verdict, decided_by=decided_by)


def _right_and_wrong(test: PairedTest, claim: Claim) -> tuple[bool, bool]:
    """Whether a test shows that the claim is right, and whether it shows that it is wrong."""
    if claim.has_margin and test.p_holm is not None and test.p_holm >= SIGNIFICANT:
        return False, False  # not significant after the correction
    return _sides_of_margin(test.interval, claim) if claim.has_margin else (test.winner == "a", test.winner == "b")


def _sides_of_margin(interval: tuple[float, float], claim: Claim) -> tuple[bool, bool]:
    low, high = interval
    if claim.within is not None:
        return -claim.within < low and high < claim.within, high < -claim.within or low > claim.within
    assert claim.costs is not None
    return low > -claim.costs, high < -claim.costs
