"""What becomes of the paper's claims. The claims are in the plan; each compares two rows of the tables, on all domains or on some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unmask.statistics.bootstrap import Items, score
from unmask.statistics.paired import PairedTest, bootstrap_tasks, difference_test, task_changes
from unmask.studies.claims.claim import Claim, Finding, findings
from unmask.studies.self_moe.measurements import Values

Rows = Mapping[str, Values]
"""Nats per token, by row and domain or test."""


def verdicts(claims: Sequence[Claim], rows: Rows) -> list[Finding]:
    """The verdict on every claim. A difference is in nats per token, the mean over domains, and positive if the claim is right.

    The test is a paired one over lessons, domain by domain. It is about these mixtures: the study has one seed.
    """
    pairs = [(claim, than) for claim in claims for than in claim.than if claim.better in rows and than in rows]
    tests = {
        (claim.id, than): _test(rows[claim.better], rows[than], claim.kinds, max(2000, 100 * len(pairs)))
        for claim, than in pairs
    }
    return findings(claims, {names: test for names, test in tests.items() if test is not None}, lambda _: "nats per token")


def _test(better: Values, than: Values, domains: Sequence[str], resamples: int) -> PairedTest | None:
    """None for a domain that was not measured, and for fewer than two lessons of one."""
    chosen = [name for name in better if not domains or name in domains]
    if not chosen or not set(chosen) <= set(than) or set(domains) - set(chosen):
        return None
    if min(len(better[name]) for name in chosen) < 2:
        return None
    own, other = ([Items("mean", {"value": values[name]}) for name in chosen] for values in (better, than))
    samples = [bootstrap_tasks(side, resamples) for side in (other, own)]
    points = [[score(items) for items in side] for side in (other, own)]
    return difference_test(
        samples[0], samples[1], points[0], points[1], sum(items.n for items in own),
        smallest=min(items.n for items in own), changes=task_changes([[one] for one in other], [[one] for one in own]),
    )  # fmt: skip
