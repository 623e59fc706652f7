"""What becomes of the paper's claims. The claims are in the plan; each compares two rows of the tables, on all domains or on some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from unmask.statistics.paired import FEWEST_TASKS, PairedTest, wilcoxon
from unmask.studies.claims.claim import Claim, Finding, findings
from unmask.studies.self_moe.measurements import Values

Rows = Mapping[str, Values]
"""Nats per token of held-out lessons, by row and domain."""


def verdicts(claims: Sequence[Claim], rows: Rows) -> list[Finding]:
    """The verdict on every claim. A difference is in nats per token, positive if the claim is right.

    The test is Wilcoxon's signed-rank test over lessons. It is about these mixtures: the study has one seed.
    """
    tests = {
        (claim.id, than): _test(rows[claim.better], rows[than], claim.kinds)
        for claim in claims
        for than in claim.than
        if claim.better in rows and than in rows
    }
    return findings(claims, {names: test for names, test in tests.items() if test is not None})


def _test(better: Values, than: Values, domains: Sequence[str]) -> PairedTest | None:
    """None for fewer lessons than a test needs, and for a domain that was not measured."""
    chosen = [name for name in better if not domains or name in domains]
    if not chosen or not set(chosen) <= set(than) or set(domains) - set(chosen):
        return None
    own, other = (np.concatenate([values[name] for name in chosen]) for values in (better, than))
    return replace(wilcoxon(other, own), unit="items") if len(own) >= FEWEST_TASKS else None
