"""The page of a study: one HTML file with the verdict on each claim, what was refuted or stays open first, and the tables below."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from unmask.io.files import atomic, check_output, refuse_foreign
from unmask.reporting.page import MINUS, breakable, p_value
from unmask.reporting.template import STYLE, fill
from unmask.studies.claims.claim import Finding, Measured
from unmask.studies.claims.forest import Plot, plots
from unmask.studies.claims.page import HERE, MEANINGS, NOTE, compared, counts, difference, here_said, size
from unmask.studies.results import StudyResults, read_results

NAME: Final = "claims.html"
_OWN: Final = "unmask.studies.claims"
_MARK: Final = "<title>unmask claims"


def write_claims(folder: Path, output: Path) -> Path:
    """Write `claims.html` into `output`, from the results of a study on one base model; the page.

    Raises UnmaskError if the study has no results yet, and where a file of somebody else would be replaced.
    """
    results = read_results(folder)
    page = output / NAME
    check_output(output, folder=True)
    refuse_foreign(page, [_MARK])
    with atomic(page) as scratch:
        scratch.write_text(render(results), encoding="utf-8")
    return page


def render(results: StudyResults) -> str:
    """The page of a study."""
    filters = {"breakable": breakable, "p": p_value, "minus": minus, "difference": difference, "size": size}
    content = {
        "results": results,
        "counts": counts(results.claims),
        "note": NOTE,
        "here": HERE if any(one.here for one in results.claims) else "",
        "groups": list(_groups(results.claims)),
        "conclusion": [_parted(point) for point in results.conclusion],
    }
    return fill((_OWN, "claims.html"), (*STYLE, (_OWN, "claims.css")), "", filters, content)


def minus(numbers: str) -> str:
    """Numbers in a text, with minus signs."""
    return re.sub(r"(?<!\w)-(?=[\d.])", MINUS, numbers)


def _parted(point: str) -> tuple[str, str]:
    """A point in Markdown as what is bold at its beginning, and the rest."""
    if bold := re.match(r"\*\*(.+?)\*\*", point):
        return bold[1], point[bold.end() :]
    return "", point


def _groups(found: Sequence[Finding]) -> Iterator[dict[str, Any]]:
    """The claims by verdict. What does not hold comes first."""
    lines = [_line(one, plot) for one, plot in zip(found, plots(found), strict=True)]
    for verdict, meaning in MEANINGS.items():
        of_verdict = [line for line in lines if line["finding"].verdict == verdict]
        if of_verdict:
            yield {"verdict": verdict, "id": verdict.replace(" ", "-"), "meaning": meaning, "claims": of_verdict}


def _line(one: Finding, plot: Plot | None) -> dict[str, Any]:
    others: list[Measured] = list(one.tests) if len(one.tests) > 1 else []
    missing = [than for than in one.claim.than if than not in {test.than for test in one.tests}]
    return {
        "finding": one,
        "claim": one.claim,
        "compared": compared(one),
        "plot": plot,
        "tests": others,
        "missing": missing,
        "here": here_said(one),
    }
