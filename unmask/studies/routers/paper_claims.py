"""What becomes of the claims that papers make of router configurations. The claims are in the plan.

What the study cannot carry is left out: finer experts of DeepSeekMoE are smaller experts, and its shared expert learns with the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from unmask.studies.claims.claim import Claim, Finding, findings
from unmask.studies.routers.analysis import Bases, Cells, differences, noise_of
from unmask.studies.routers.configurations import UNITS


def verdicts(claims: Sequence[Claim], cells: Cells, bases: Bases) -> list[Finding]:
    """The verdict on every claim, each by a yardstick (`kinds`). They were planned, so they are a family of their own (Holm)."""
    noise = noise_of(cells, bases)
    compared = {
        (claim.id, than): differences(claim.better, than, cells, bases, noise).get(claim.kinds[0])  # type: ignore[call-overload]
        for claim in claims
        for than in claim.than
        if claim.better in cells and than in cells
    }
    measured = {names: test for names, test in compared.items() if test is not None}
    return findings(claims, measured, lambda claim: UNITS[claim.kinds[0]])  # type: ignore[index]
