"""What papers say of router configurations, each as a comparison that the study makes.

A verdict is "holds here" or "does not hold here" only if the test tells the two configurations apart. Everything else is undecided.
What the study cannot carry is left out: finer experts of DeepSeekMoE are smaller experts, and its shared expert learns with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from unmask.statistics.paired import PairedTest, told_apart, with_holm
from unmask.studies.routers.analysis import Bases, Cells, Row, Yardstick, differences
from unmask.studies.routers.configurations import STANDARD, reference_of


@dataclass(frozen=True)
class PaperClaim:
    """A claim: a configuration has more (sign 1) or less (sign -1) of a yardstick than another one."""

    paper: str
    says: str
    configuration: str
    yardstick: Yardstick
    sign: Literal[1, -1]
    against: str = STANDARD


CLAIMS: Final = (
    PaperClaim(
        "arXiv 2501.11873, abstract", "A balance loss within each batch of a device keeps experts from specialising in domains.",
        "balance pass 1", "information", -1,
    ),
    PaperClaim(
        "arXiv 2501.11873, abstract", "A balance loss over the global batch leaves more room for domains than one within each pass.",
        "balance step 1", "information", 1, "balance pass 1",
    ),
    PaperClaim(
        "arXiv 2501.11873, abstract", "A model with a balance loss over the global batch predicts better than with one within each pass.",
        "balance step 1", "gain", 1, "balance pass 1",
    ),
    PaperClaim(
        "Self-MoE (2406.12034), table 3", "A shared router is better than a router for each layer.", "layer routers", "gain", -1
    ),
    PaperClaim("Self-MoE (2406.12034), table 3", "A random choice of experts is worse than the router's.", "random", "gain", -1),
    PaperClaim(
        "Self-MoE (2406.12034), table 3", "Experts that learn with the router are worse than experts that learned alone.", "joint top-1",
        "gain", -1, "trained top-1",
    ),
    PaperClaim(
        "Self-MoE (2406.12034), section 4", "Experts that learn with the router have no domain of their own.", "joint top-1",
        "information", -1, "trained top-1",
    ),
    PaperClaim("Self-MoE (2406.12034), table 3", "All experts together are worse than the best one alone.", "soft", "gain", -1,
        "renormalised",
    ),
)  # fmt: skip


Verdict = Literal["holds here", "does not hold here", "undecided"]


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with the test that it rests on, and what follows."""

    claim: PaperClaim
    test: PairedTest
    verdict: Verdict


def verdicts(cells: Cells, bases: Bases, rows: Mapping[str, Row]) -> list[ClaimVerdict]:
    """The verdict on every claim whose configurations were measured with two seeds.

    Where a table compares the same two, its test is used, with its correction. The other claims are a family of their own (Holm).
    """
    of_tables = {
        claim: rows[claim.configuration].tests.get(claim.yardstick)
        for claim in CLAIMS
        if claim.against == reference_of(claim.configuration) and claim.configuration in rows
    }
    others = {
        claim: test
        for claim in CLAIMS
        if claim.against != reference_of(claim.configuration) and claim.configuration in cells and claim.against in cells
        if (test := differences(claim.configuration, claim.against, cells, bases).get(claim.yardstick)) is not None
    }
    corrected = dict(zip(others, with_holm(list(others.values())), strict=True))
    tests = {claim: test for claim, test in {**of_tables, **corrected}.items() if test is not None}
    return [ClaimVerdict(claim, tests[claim], _verdict(claim, tests[claim])) for claim in CLAIMS if claim in tests]


def _verdict(claim: PaperClaim, test: PairedTest) -> Verdict:
    if not told_apart(test):
        return "undecided"
    return "holds here" if test.difference * claim.sign > 0 else "does not hold here"
