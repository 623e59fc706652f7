"""Claims in tables and sentences, for every report and page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from string import ascii_lowercase
from typing import Final

from unmask.io.terminal import counted
from unmask.reporting.page import p_value
from unmask.studies.claims.carry import what_decides
from unmask.studies.claims.claim import VERDICTS, ClaimTest, Finding, Verdict, turns_on_one_task
from unmask.studies.sheet import Sheet

TABLE_NOTES: Final = (
    "Difference: positive if the result agrees with the claim; its confidence interval is in brackets. An interval that ends at 0 was "
    "extended to 0, because p is not significant. If a claim names several rivals, the row shows the comparison that decided the verdict.",
    "p: p-values and intervals are corrected for all measured tests of the study (Holm). A difference is significant if p is below 0.05.",
    "Margin: a claim with a margin ('within 2', 'at a cost of 1 at most') is decided by its interval, which must lie entirely within the "
    "margin.",
    "n: tests over tasks are Wilcoxon's (with several seeds, also t); tests over items are bootstraps (with several seeds, t).",
    "Without one task: the difference without the task (or domain, in brackets) whose removal moves it most towards 0. A verdict turns on "
    "that task if the interval, moved with the difference, no longer shows it.",
    "Decided by: what 80 % of studies would need to decide the claim, if the observed difference is the true one: so many tasks, items or "
    "seeds in all, the cheapest of these. Rows are in the order of that cost. 'Over 100 times': the work of this study.",
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
    "not wired": "The study does not test the claim, but a command measures it: see its row.",
}
"""What each verdict means. What does not hold comes first."""
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


def claims_sheet(findings: Sequence[Finding], title: str = "Claims") -> Sheet:
    """A line for each claim, those that do not hold first, and of the undecided ones those first that cost least to decide.

    Sentences that many claims share are printed once, below the table. A column without content is left out.
    """
    of_all = common_method_note(findings)
    common = _repeated_sentences(findings, of_all)
    only_own = all(finding.claim.is_own for finding in findings)
    tests = [finding.deciding for finding in findings if finding.deciding]
    [(unit, _)] = Counter(test.measured_in for test in tests).most_common(1) or [("", 0)]
    one_seed = bool(tests) and all(test.basis and test.basis.seeds <= 1 for test in tests)
    order = list(VERDICT_MEANINGS)
    ranked = sorted(
        findings,
        key=lambda finding: (order.index(finding.verdict), decision.cost if (decision := what_decides(finding)) else 0),
    )
    lines = [
        (
            finding.claim.says,
            verdict_text(finding),
            _source_of_own(finding.claim.where) if only_own else finding.claim.where,
            _with_marks(comparison_text(finding).removesuffix(of_all).rstrip(), common),
            _effect(finding, unit),
            _p(finding.deciding),
            sample_size(finding.deciding).replace(", 1 seed", "" if one_seed else ", 1 seed") if finding.deciding else "",
            without_text(finding.deciding),
            decision.text if (decision := what_decides(finding)) else "",
            measured_tasks_cell(finding),
        )
        for finding in ranked
    ]
    columns = (
        "claim", "verdict", "where", "compared here", f"difference ({unit})" if unit else "difference", "p",
        "n (1 seed)" if one_seed else "n", "without one task", "decided by", "on the measured tasks",
    )  # fmt: skip
    filled = [index for index, _ in enumerate(columns) if not lines or any(line[index] for line in lines)]
    marks = " ".join(f"({mark}) {sentence}" for sentence, mark in common.items())
    note = f"{marks} {of_all} {TABLE_NOTE} {MEASURED_TASKS_NOTE if any(finding.here for finding in findings) else ''}".strip()
    return Sheet(
        title, tuple(columns[index] for index in filled), tuple(tuple(line[index] for index in filled) for line in lines), note
    )


def _source_of_own(where: str) -> str:
    return where.removeprefix("our question").removeprefix(", after ").removeprefix("question of ")


def method_notes(findings: Sequence[Finding]) -> str:
    """The sentences that `claims_sheet` prints below its table instead of in every row."""
    of_all = common_method_note(findings)
    marks = [f"({mark}) {sentence}" for sentence, mark in _repeated_sentences(findings, of_all).items()]
    return " ".join([*marks, of_all]).strip()


def _repeated_sentences(findings: Sequence[Finding], of_all: str) -> dict[str, str]:
    """Sentences of `how` that several claims share, each with a letter."""
    hows = [finding.claim.how.removesuffix(of_all).strip() for finding in findings if not finding.claim.untestable]
    counts = Counter(sentence for how in hows for sentence in _SENTENCE_END.split(how) if sentence)
    return dict(zip((sentence for sentence, number in counts.items() if number > 1), ascii_lowercase, strict=False))


def _with_marks(text: str, common: Mapping[str, str]) -> str:
    for sentence, mark in common.items():
        text = text.replace(f" {sentence}", f" ({mark})")
    return text


def common_method_note(findings: Sequence[Finding]) -> str:
    """Trailing sentences that all testable claims share in `how`; empty for a single claim."""
    endings = [
        reversed(_SENTENCE_END.split(finding.claim.how))
        for finding in findings
        if not finding.claim.untestable and not finding.because
    ]
    same = takewhile(lambda sentences: len(set(sentences)) == 1, zip(*endings, strict=False)) if len(endings) > 1 else ()
    return " ".join(reversed([sentences[0] for sentences in same]))


def verdict_text(finding: Finding) -> str:
    """The verdict, and the task that it turns on, if it does."""
    test = finding.deciding
    if test and test.basis and finding.verdict in ("confirmed", "refuted") and turns_on_one_task(finding.claim, test):
        return f"{finding.verdict} (turns on {test.basis.most_influential})"
    return finding.verdict


def without_text(test: ClaimTest | None) -> str:
    """The difference without its most influential task, and that task. Empty for a difference on one task."""
    basis = test.basis if test else None
    return f"{basis.without:+.3g} ({basis.most_influential})" if basis and basis.without is not None else ""


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


def _effect(finding: Finding, unit: str = "") -> str:
    """The difference with its interval, and with its unit if that is another one."""
    if (test := finding.deciding) is None:
        return ""
    return difference_text(test) + ("" if test.measured_in == unit else f" {test.measured_in}")


def difference_text(test: ClaimTest) -> str:
    """A difference with its interval."""
    return f"{test.difference:+.3g} {interval_text(test)}"


def interval_text(test: ClaimTest) -> str:
    """The interval of a difference."""
    low, high = test.interval
    return f"[{low:+.3g}, {high:+.3g}]"


def measured_tasks_cell(finding: Finding) -> str:
    """The verdict restricted to the measured tasks; empty if the main test already is."""
    if finding.here is None:
        return ""
    test = finding.here.test
    rival = f" (against {test.than})" if finding.deciding and test.than != finding.deciding.than else ""
    turns = finding.here.verdict in ("confirmed", "refuted") and test.basis and turns_on_one_task(finding.claim, test)
    on = f", turns on {test.basis.most_influential}" if turns and test.basis else ""
    same = finding.deciding and f"{test.difference:+.3g}" == f"{finding.deciding.difference:+.3g}"
    shown = interval_text(test) if same else difference_text(test)
    return f"{finding.here.verdict}{rival}, {shown}{on}"


def _p(test: ClaimTest | None) -> str:
    return p_value(test.p_holm) if test else ""


def sample_size(test: ClaimTest) -> str:
    """How much was measured: items or tasks, and seeds and prompts where there are several."""
    basis = test.basis
    tasks = f" of {basis.tasks} tasks" if basis and basis.tasks > 1 and (test.unit, basis.unit) == ("items", "task") else ""
    seeds = (
        [counted(basis.seeds, "seed")]
        if basis and basis.seeds
        else ["several seeds"]
        if not basis and "seeds" in test.test
        else []
    )
    prompts = ["several prompts"] if "prompts" in test.test else []
    return ", ".join([f"{test.n} {test.unit}{tasks}", *seeds, *prompts])
