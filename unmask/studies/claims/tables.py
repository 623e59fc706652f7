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

NOTES: Final = (
    "Difference: a positive one speaks for the claim. In brackets is its interval. An interval that ends at 0 was widened to 0, since p "
    "does not show a difference. If a claim names several rivals, the rival that decided is shown.",
    "p: p and intervals are corrected for all tests of the study that were measured (Holm). A difference is shown if p is below 0.05.",
    "Margin: a claim with a margin ('within 2', 'at a cost of 1 at most') is decided by its interval. All of it has to lie inside the "
    "margin.",
    "Detectable: 80 % of studies like this one find a true difference of this size. They may miss a smaller one.",
)
"""How to read the table of claims."""
NOTE: Final = " ".join(NOTES)
HERE: Final = (
    "On these tasks: the claim about the measured tasks alone. A row with this column has two tests. The test of its verdict is over "
    "tasks, so the verdict is about tasks of these kinds in general. The test of this column is over the items of the measured tasks, and "
    "over seeds where there are several. It has a correction of its own. If the column is empty or missing, the verdict itself is about "
    "the measured tasks. If a model was trained with one seed, the verdict is about that training."
)
"""What the verdict on these tasks alone means."""
MEANINGS: Final[dict[Verdict, str]] = {
    "refuted": "A test shows the opposite, against one rival at least.",
    "undecided": (
        "The tests do not decide. A true difference may be too small to be detected here. Or the claim depends on another claim that is "
        "not confirmed."
    ),
    "confirmed": "The tests show it against every rival that the claim names.",
    "not measured": "The run left out what the claim is about.",
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


def summary(found: Sequence[Finding]) -> str:
    """Sentences: how many claims there are of each verdict, which are refuted, and which stay undecided."""
    shown: tuple[Verdict, ...] = ("refuted", "undecided")
    lines = [f"- {verdict.capitalize()}: {one.claim.says}" for verdict in shown for one in found if one.verdict == verdict]
    return "\n".join([counts(found), *lines])


def counts(found: Sequence[Finding]) -> str:
    """A sentence: how many claims there are of each verdict."""
    said = ", ".join(f"{number} {verdict}" for verdict, number in verdict_counts(found).items() if number)
    return f"{counted(len(found), 'claim')}: {said}." if found else "No claim is tested."


def verdict_counts(found: Sequence[Finding]) -> dict[Verdict, int]:
    """How many claims there are of each verdict."""
    return {verdict: sum(one.verdict == verdict for one in found) for verdict in VERDICTS}


def claims_sheet(found: Sequence[Finding]) -> Sheet:
    """A line for each claim, what does not hold first. What is said of all tests stands below the table, once."""
    of_all = said_of_all(found)
    some_here = any(one.here for one in found)
    lines = tuple(
        (
            one.claim.says,
            one.verdict,
            one.claim.where,
            compared(one).removesuffix(of_all).rstrip(),
            _effect(one),
            _p(one.deciding),
            f"{name_of_test(one.deciding)}, {size(one.deciding)}" if one.deciding else "",
            f"{one.deciding.detectable:.3g}" if one.deciding and one.verdict == "undecided" else "",
            *([here_said(one)] if some_here else []),
        )
        for one in sorted(found, key=lambda one: list(MEANINGS).index(one.verdict))
    )
    here = ["on these tasks"] if some_here else []
    columns = ("claim", "verdict", "where", "compared here", "difference", "p", "test, n", "detectable", *here)
    note = f"{of_all} {NOTE} {HERE if some_here else ''}".strip()
    return Sheet("Claims", columns, lines, note)


def said_of_all(found: Sequence[Finding]) -> str:
    """The sentences that end what every testable claim says of its test; none if there is one such claim or no common end."""
    told = [reversed(_SENTENCE_END.split(one.claim.how)) for one in found if not one.claim.untestable and not one.because]
    same = takewhile(lambda sentences: len(set(sentences)) == 1, zip(*told, strict=False)) if len(told) > 1 else ()
    return " ".join(reversed([sentences[0] for sentences in same]))


def short_sheet(found: Sequence[Finding]) -> Sheet:
    """The same for a terminal: claims by their ids."""
    lines = tuple((one.claim.id, _effect(one), _p(one.deciding), one.verdict) for one in found)
    return Sheet("Claims", ("", "difference", "p", "verdict"), lines, NOTE)


def compared(one: Finding) -> str:
    """What is compared with what, or why nothing is."""
    claim = one.claim
    if claim.untestable:
        return claim.untestable
    deciding = one.deciding
    than = ", ".join(_quoted(name) for name in ([deciding.than] if deciding else claim.than))
    kinds = f" on {', '.join(claim.kinds)}" if claim.kinds else ""
    kinds += f" more than on {', '.join(claim.less_on)}" if claim.less_on else ""
    margin = f", within {claim.within:g}" if claim.within else f", at a cost of {claim.costs:g} at most" if claim.costs else ""
    more = "".join(f" {sentence}" for sentence in (claim.how, one.because) if sentence)
    return f"{_quoted(claim.better)} against {than}{kinds}{margin}.{more}"


def _quoted(name: str) -> str:
    return f"'{name}'"  # names may hold a comma


def _effect(one: Finding) -> str:
    return f"{difference(one.deciding)} {one.deciding.measured_in}" if one.deciding else ""


def difference(test: ClaimTest) -> str:
    """A difference with its interval."""
    low, high = test.interval
    return f"{test.difference:+.3g} [{low:+.3g}, {high:+.3g}]"


def here_said(one: Finding) -> str:
    """What becomes of a claim on these tasks alone; empty if its own test is about that."""
    if one.here is None:
        return ""
    test = one.here.test
    rival = f" (against {test.than})" if one.deciding and test.than != one.deciding.than else ""
    return f"{one.here.verdict}{rival}, {difference(test)}"


def name_of_test(test: ClaimTest) -> str:
    """The name of a test in a word."""
    return next(name for start, name in _TESTS.items() if test.test.startswith(start))


def _p(test: ClaimTest | None) -> str:
    return p_value(test.p_holm) if test else ""


def size(test: ClaimTest) -> str:
    """How much was measured: items or tasks, and seeds and prompts where there are several."""
    several = [f"several {what}" for what in ("seeds", "prompts") if what in test.test]
    return ", ".join([f"{test.n} {test.unit}", *several])
