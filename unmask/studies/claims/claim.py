"""A claim of a paper, and the verdict on it.

A claim says that one thing is better than another, or than several others. The verdict follows from the tests alone:

- confirmed: the tests tell it apart from all others, in the direction of the claim;
- refuted: a test tells it apart from another, in the other direction;
- not measured: the study had no task that carries the claim;
- undecided: anything else. The result then says how large a difference the test would have found.

A claim of the form "costs little" has a margin. It is confirmed if the whole interval is inside of the margin, and refuted if the whole
interval is outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from unmask.statistics.paired import SIGNIFICANT, PairedTest, told_apart, with_holm

Verdict = Literal["confirmed", "refuted", "undecided", "not measured", "not testable here"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
_POWER = 0.8


class _Fixed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Claim(_Fixed):
    """A claim of a paper.

    id: unique in its study. where: section or table of the paper. says: the claim, in our words. how: how it is tested here, if the
    comparison does not say it. better, than: what is compared. kinds: kinds of task, or the yardstick of a study that has several; none
    means all of them. within: the margin of "costs little". untestable: why this study cannot carry the claim; then nothing is compared.
    """

    id: str
    where: str
    says: str
    how: str = ""
    better: str = ""
    than: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    within: float | None = Field(default=None, gt=0)
    untestable: str = ""

    @model_validator(mode="after")
    def _testable_or_not(self) -> Claim:
        if bool(self.untestable) == bool(self.better and self.than):
            raise ValueError(f"claim '{self.id}' needs `better` and `than`, or `untestable`")
        return self


class Measured(_Fixed):
    """The test of a claim against one other thing.

    difference: in percent, or in the unit of the yardstick; positive if the claim is right. detectable: a true difference of this size is
    found in 80 % of studies like this one.
    """

    than: str
    difference: float
    interval: tuple[float, float]
    level: float
    p: float
    p_holm: float
    n: int
    unit: str
    test: str
    detectable: float


class Finding(_Fixed):
    """A claim with its tests, corrected for all tests of the study (Holm), and its verdict."""

    claim: Claim
    tests: tuple[Measured, ...]
    verdict: Verdict

    @property
    def weakest(self) -> Measured | None:
        """The test that supports the claim least. None if the claim could not be tested."""
        return min(self.tests, key=lambda test: test.difference) if self.tests else None


def findings(claims: Sequence[Claim], tests: Mapping[tuple[str, str], PairedTest]) -> list[Finding]:
    """The verdict on each claim. tests: of a claim (id) against another thing (name), positive if the claim is right."""
    corrected = dict(zip(tests, with_holm(list(tests.values())), strict=True))
    return [
        _finding(claim, {than: corrected[claim.id, than] for than in claim.than if (claim.id, than) in tests})
        for claim in claims
    ]


def _finding(claim: Claim, tests: Mapping[str, PairedTest]) -> Finding:
    measured = tuple(_measured(than, test) for than, test in tests.items())
    return Finding(claim=claim, tests=measured, verdict=_verdict(claim, tests))


def _verdict(claim: Claim, tests: Mapping[str, PairedTest]) -> Verdict:
    if claim.untestable:
        return "not testable here"
    if len(tests) < len(claim.than):
        return "not measured"
    right, wrong = zip(*(_sides(test, claim.within) for test in tests.values()), strict=True)
    return "confirmed" if all(right) else "refuted" if any(wrong) else "undecided"


def _sides(test: PairedTest, within: float | None) -> tuple[bool, bool]:
    """Whether a test shows that the claim is right, and that it is wrong."""
    if within is not None:
        low, high = test.interval
        return -within < low and high < within, high < -within or low > within
    return told_apart(test) and test.difference > 0, told_apart(test) and test.difference < 0


def _measured(than: str, test: PairedTest) -> Measured:
    return Measured(
        than=than,
        difference=test.difference,
        interval=test.interval,
        level=test.level,
        p=test.p,
        p_holm=test.p if test.p_holm is None else test.p_holm,
        n=test.n,
        unit=test.unit,
        test=test.test,
        detectable=detectable(test),
    )


def detectable(test: PairedTest) -> float:
    """The true difference that a single test at 0.05 finds with a power of 80 %: (z(0.975) + z(0.8)) standard errors.

    The standard error is that of the 95 % interval, read as a normal one.
    """
    low, high = test.bounds(1 - SIGNIFICANT) if test.bounds else test.interval
    wide = NormalDist().inv_cdf(1 - SIGNIFICANT / 2)
    return (wide + NormalDist().inv_cdf(_POWER)) * (high - low) / (2 * wide)
