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
    "claim names several rivals, the one that decided is shown. Detectable: a true difference of this size is found in 80 % of studies "
    "like this one."
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
            _p(one.deciding),
            _size(one.deciding),
            _detectable(one),
            one.verdict,
        )
        for one in found
    )
    columns = ("claim", "where", "compared here", "difference", "p", "n", "detectable", "verdict")
    return Sheet("Claims", columns, lines, _NOTE)


def short_sheet(found: Sequence[Finding]) -> Sheet:
    """The same for a terminal: claims by their ids."""
    lines = tuple((one.claim.id, _effect(one), _p(one.deciding), one.verdict) for one in found)
    return Sheet("Claims", ("", "difference", "p", "verdict"), lines, _NOTE)


def _compared(one: Finding) -> str:
    claim = one.claim
    if claim.untestable:
        return claim.untestable
    deciding = one.deciding
    than = deciding.than if deciding else ", ".join(claim.than)
    kinds = f" on {', '.join(claim.kinds)}" if claim.kinds else ""
    margin = f", within {claim.within:g}" if claim.within else f", at a cost of {claim.costs:g} at most" if claim.costs else ""
    more = f" {claim.how}" if claim.how else ""
    return f"{claim.better} against {than}{kinds}{margin}.{more}"


def _effect(one: Finding) -> str:
    deciding = one.deciding
    if deciding is None:
        return ""
    low, high = deciding.interval
    return f"{deciding.difference:+.3g} [{low:+.3g}, {high:+.3g}]"


def _p(test: Measured | None) -> str:
    return p_value(test.p_holm) if test else ""


def _size(test: Measured | None) -> str:
    if test is None:
        return ""
    return f"{test.n} {test.unit}{', several seeds' if 'seeds' in test.test else ''}"


def _detectable(one: Finding) -> str:
    return f"{one.deciding.detectable:.3g}" if one.deciding and one.verdict == "undecided" else ""
