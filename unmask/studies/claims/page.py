"""Claims in tables and sentences, and the page that is generated from the results of several studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unmask.evaluation.verdict import counted
from unmask.reporting.page import p_value
from unmask.studies.claims.claim import VERDICTS, Finding, Measured, Verdict
from unmask.studies.sheet import Sheet

_NOTE: Final = (
    "A difference is positive if the claim is right. Its interval has the correction of p (Holm, over all claims of the study). Where a "
    "claim names several rivals, the nearest one is shown. A claim is confirmed or refuted only if the tests tell the two apart. "
    "Detectable: a true difference of this size is found in 80 % of studies like this one, before correction."
)


def summary(found: Sequence[Finding]) -> str:
    """Sentences: how many claims there are of each verdict, and which were refuted or are open."""
    groups = {verdict: [one.claim.says for one in found if one.verdict == verdict] for verdict in VERDICTS}
    counts = ", ".join(f"{len(said)} {verdict}" for verdict, said in groups.items() if said)
    lines = [f"{counted(len(found), 'claim')}: {counts}."]
    lines += [f"- {_HEADS[verdict]}: {said}" for verdict in _HEADS for said in groups[verdict]]
    return "\n".join(lines)


_HEADS: Final[dict[Verdict, str]] = {
    "refuted": "Refuted", "undecided": "Undecided", "not measured": "Not measured", "not testable here": "Not testable here",
}  # fmt: skip


def claims_sheet(found: Sequence[Finding]) -> Sheet:
    """A line for each claim."""
    lines = tuple(
        (
            one.claim.says,
            one.claim.where,
            _compared(one),
            _effect(one),
            _p(one.weakest),
            _size(one.weakest),
            _detectable(one),
            one.verdict,
        )
        for one in found
    )
    columns = ("claim", "where", "compared here", "difference", "p", "n", "detectable", "verdict")
    return Sheet("Claims", columns, lines, _NOTE)


def short_sheet(found: Sequence[Finding]) -> Sheet:
    """The same for a terminal: claims by their ids."""
    lines = tuple((one.claim.id, _effect(one), _p(one.weakest), one.verdict) for one in found)
    return Sheet("Claims", ("", "difference", "p", "verdict"), lines, _NOTE)


def _compared(one: Finding) -> str:
    claim = one.claim
    if claim.untestable:
        return claim.untestable
    weakest = one.weakest
    than = weakest.than if weakest else ", ".join(claim.than)
    kinds = f" on {', '.join(claim.kinds)}" if claim.kinds else ""
    margin = f", within {claim.within:g}" if claim.within else ""
    more = f" {claim.how}" if claim.how else ""
    return f"{claim.better} against {than}{kinds}{margin}.{more}"


def _effect(one: Finding) -> str:
    weakest = one.weakest
    if weakest is None:
        return ""
    low, high = weakest.interval
    return f"{weakest.difference:+.3g} [{low:+.3g}, {high:+.3g}]"


def _p(test: Measured | None) -> str:
    return p_value(test.p_holm) if test else ""


def _size(test: Measured | None) -> str:
    return f"{test.n} {test.unit}" if test else ""


def _detectable(one: Finding) -> str:
    return f"{one.weakest.detectable:.3g}" if one.weakest and one.verdict == "undecided" else ""
