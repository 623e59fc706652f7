"""Claims in tables and sentences, for every report and page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from unmask.io.terminal import counted
from unmask.reporting.page import p_value
from unmask.studies.claims.claim import VERDICTS, ClaimTest, Finding, Verdict
from unmask.studies.sheet import Sheet

TABLE_NOTES: Final = (
    "Difference: positive if the result agrees with the claim; its confidence interval is in brackets. An interval that ends at 0 was "
    "extended to 0, because p is not significant. If a claim names several rivals, the row shows the comparison that decided the verdict.",
    "p: p-values and intervals are corrected for all measured tests of the study (Holm). A difference is significant if p is below 0.05.",
    "Margin: a claim with a margin ('within 2', 'at a cost of 1 at most') is decided by its interval, which must lie entirely within the "
    "margin.",
    "Detectable: the true difference that 80 % of studies like this one would find. Smaller differences may be missed.",
)
"""How to read the table of claims."""
TABLE_NOTE: Final = " ".join(TABLE_NOTES)
MEASURED_TASKS_NOTE: Final = (
    "On the measured tasks: a second, narrower verdict. The main verdict of such a row comes from a test over tasks, so it is about tasks "
    "of these kinds in general. The verdict in this column comes from a test over the items of the measured tasks (and over seeds, if "
    "there are several), with a separate correction, so it is about these tasks only. If the column is empty or missing, the main verdict "
    "is already about the measured tasks only. If a model was trained with one seed, the verdict is about that training."
)
"""Explains the column "on the measured tasks"."""
VERDICT_MEANINGS: Final[dict[Verdict, str]] = {
    "refuted": "A test shows the opposite for at least one rival.",
    "undecided": (
        "The tests show neither the claim nor its opposite: a true difference may be too small to detect here, or the claim depends on "
        "another claim that is not confirmed."
    ),
    "confirmed": "The tests show the claim for every rival that it names.",
    "not measured": "The run left out models or tasks that the claim needs.",
    "not testable here": "No run of the study can test the claim. Its row says why.",
}
"""What each verdict means. What does not hold comes first."""
_TESTS: Final = {
    "Wilcoxon": "Wilcoxon",
    "paired bootstrap": "bootstrap",
    "exact sign-flip": "sign-flip",
    "t over": "t",
    "interval over": "interval",
}
"""How the name of a test begins, and a word for it."""
_SENTENCE_END: Final = re.compile(r"(?<=\.) ")


def summary(findings: Sequence[Finding]) -> str:
    """Sentences: how many claims there are of each verdict, which are refuted, and which stay undecided."""
    verdicts: tuple[Verdict, ...] = ("refuted", "undecided")
    lines = [
        f"- {verdict.capitalize()}: {finding.claim.says}"
        for verdict in verdicts
        for finding in findings
        if finding.verdict == verdict
    ]
    return "\n".join([counts_sentence(findings), *lines])


def counts_sentence(findings: Sequence[Finding]) -> str:
    """A sentence: how many claims there are of each verdict."""
    totals = ", ".join(f"{number} {verdict}" for verdict, number in verdict_counts(findings).items() if number)
    return f"{counted(len(findings), 'claim')}: {totals}." if findings else "No claim is tested."


def verdict_counts(findings: Sequence[Finding]) -> dict[Verdict, int]:
    """How many claims there are of each verdict."""
    return {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in VERDICTS}


def claims_sheet(findings: Sequence[Finding]) -> Sheet:
    """A line for each claim, those that do not hold first. Text common to every test is printed once, below the table."""
    of_all = common_method_note(findings)
    some_here = any(finding.here for finding in findings)
    lines = tuple(
        (
            finding.claim.says,
            finding.verdict,
            finding.claim.where,
            comparison_text(finding).removesuffix(of_all).rstrip(),
            _effect(finding),
            _p(finding.deciding),
            f"{name_of_test(finding.deciding)}, {sample_size(finding.deciding)}" if finding.deciding else "",
            f"{finding.deciding.detectable:.3g}" if finding.deciding and finding.verdict == "undecided" else "",
            *([measured_tasks_cell(finding)] if some_here else []),
        )
        for finding in sorted(findings, key=lambda finding: list(VERDICT_MEANINGS).index(finding.verdict))
    )
    item_column = ["on the measured tasks"] if some_here else []
    columns = ("claim", "verdict", "where", "compared here", "difference", "p", "test, n", "detectable", *item_column)
    note = f"{of_all} {TABLE_NOTE} {MEASURED_TASKS_NOTE if some_here else ''}".strip()
    return Sheet("Claims", columns, lines, note)


def common_method_note(findings: Sequence[Finding]) -> str:
    """Trailing sentences that all testable claims share in `how`; empty for a single claim."""
    endings = [
        reversed(_SENTENCE_END.split(finding.claim.how))
        for finding in findings
        if not finding.claim.untestable and not finding.because
    ]
    same = takewhile(lambda sentences: len(set(sentences)) == 1, zip(*endings, strict=False)) if len(endings) > 1 else ()
    return " ".join(reversed([sentences[0] for sentences in same]))


def short_sheet(findings: Sequence[Finding]) -> Sheet:
    """The same for a terminal: claims by their ids."""
    lines = tuple((finding.claim.id, _effect(finding), _p(finding.deciding), finding.verdict) for finding in findings)
    return Sheet("Claims", ("", "difference", "p", "verdict"), lines, TABLE_NOTE)


def comparison_text(finding: Finding) -> str:
    """The compared models, or the reason why there is no comparison."""
    claim = finding.claim
    if claim.untestable:
        return claim.untestable
    deciding = finding.deciding
    rivals = ", ".join(_quoted(name) for name in ([deciding.than] if deciding else claim.than))
    kinds = f" on {', '.join(claim.kinds)}" if claim.kinds else ""
    kinds += f" more than on {', '.join(claim.less_on)}" if claim.less_on else ""
    margin = f", within {claim.within:g}" if claim.within else f", at a cost of {claim.costs:g} at most" if claim.costs else ""
    details = "".join(f" {sentence}" for sentence in (claim.how, finding.because) if sentence)
    return f"{_quoted(claim.better)} against {rivals}{kinds}{margin}.{details}"


def _quoted(name: str) -> str:
    return f"'{name}'"  # names may hold a comma


def _effect(finding: Finding) -> str:
    return f"{difference_text(finding.deciding)} {finding.deciding.measured_in}" if finding.deciding else ""


def difference_text(test: ClaimTest) -> str:
    """A difference with its interval."""
    low, high = test.interval
    return f"{test.difference:+.3g} [{low:+.3g}, {high:+.3g}]"


def measured_tasks_cell(finding: Finding) -> str:
    """The verdict restricted to the measured tasks; empty if the main test already is."""
    if finding.here is None:
        return ""
    test = finding.here.test
    rival = f" (against {test.than})" if finding.deciding and test.than != finding.deciding.than else ""
    return f"{finding.here.verdict}{rival}, {difference_text(test)}"


def name_of_test(test: ClaimTest) -> str:
    """The name of a test in a word."""
    return next(name for start, name in _TESTS.items() if test.test.startswith(start))


def _p(test: ClaimTest | None) -> str:
    return p_value(test.p_holm) if test else ""


def sample_size(test: ClaimTest) -> str:
    """How much was measured: items or tasks, and seeds and prompts where there are several."""
    several = [f"several {unit}" for unit in ("seeds", "prompts") if unit in test.test]
    return ", ".join([f"{test.n} {test.unit}", *several])
