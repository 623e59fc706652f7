"""The page of a study: one HTML file with the verdict on each claim, what was refuted or stays open first, and the tables below."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from unmask.io.files import atomic, check_output, refuse_foreign
from unmask.reporting.page import MINUS, breakable, p_value
from unmask.reporting.template import STYLE, fill
from unmask.studies.claims.carry import what_decides
from unmask.studies.claims.claim import Finding
from unmask.studies.claims.tables import (
    MEASURED_TASKS_NOTE,
    TABLE_NOTE,
    VERDICT_MEANINGS,
    comparison_text,
    counts_sentence,
    difference_text,
    measured_tasks_cell,
    sample_size,
    verdict_text,
    without_text,
)
from unmask.studies.results import StudyResults, read_results

_FAR: Final = 2.5
"""An axis ends at this multiple of a typical difference; a longer interval ends in an arrow."""
_STEPS: Final = 4
"""An axis has at most two more."""


@dataclass(frozen=True)
class Axis:
    """An axis from its first tick to its last."""

    ticks: tuple[float, ...]

    @property
    def low(self) -> float:
        """Its left end."""
        return self.ticks[0]

    @property
    def high(self) -> float:
        """Its right end."""
        return self.ticks[-1]

    def position(self, value: float) -> float:
        """The position of a number, in percent of the width; at an end if it lies beyond."""
        return round(100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low), 2)

    @property
    def labels(self) -> list[tuple[float, str]]:
        """The positions of the ticks, and their labels."""
        return [(self.position(tick), format_signed(tick)) for tick in self.ticks]


@dataclass(frozen=True)
class Plot:
    """The positions in a plot. is_clipped: whether the interval extends beyond the axis, on the left and on the right.

    near: the zone of differences below the detectable effect. margins: where the claim allows a difference.
    """

    axis: Axis
    point: float
    interval: tuple[float, float]
    is_clipped: tuple[bool, bool]
    near: tuple[float, float]
    margins: tuple[float, ...]


def format_signed(value: float) -> str:
    """A number on an axis, with its sign."""
    return f"{value:+.6g}".replace("-", MINUS) if value else "0"


def plots(findings: Sequence[Finding]) -> list[Plot | None]:
    """A plot for each claim; None for a claim without a test. Claims of one unit have one axis."""
    tested: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.deciding:
            tested.setdefault(finding.deciding.measured_in, []).append(finding)
    axes = {unit: _axis(of_unit) for unit, of_unit in tested.items()}
    drawn: list[Plot | None] = []
    for finding in findings:
        if (test := finding.deciding) is None:
            drawn.append(None)
            continue
        axis, (low, high) = axes[test.measured_in], test.interval
        drawn.append(
            Plot(
                axis,
                point=axis.position(test.difference),
                interval=(axis.position(low), axis.position(high)),
                is_clipped=(low < axis.low, high > axis.high),
                near=(axis.position(-test.detectable), axis.position(test.detectable)),
                margins=tuple(axis.position(margin) for margin in _margins(finding)),
            )
        )
    return drawn


def _margins(finding: Finding) -> tuple[float, ...]:
    if finding.claim.within is not None:
        return -finding.claim.within, finding.claim.within
    return () if finding.claim.costs is None else (-finding.claim.costs,)


def _axis(of_unit: Iterable[Finding]) -> Axis:
    """The axis shared by the claims of a unit. It is not stretched by a few intervals that are much wider than the others."""
    tested = [(finding, test) for finding in of_unit if (test := finding.deciding)]
    differences = [
        0.0,
        *(test.difference for _, test in tested),
        *(margin for finding, _ in tested for margin in _margins(finding)),
    ]
    reach = max(*map(abs, differences), median(max(map(abs, test.interval)) for _, test in tested)) or 1.0
    low = max(min(*differences, *(test.interval[0] for _, test in tested)), -_FAR * reach)
    high = min(max(*differences, *(test.interval[1] for _, test in tested)), _FAR * reach)
    rough = (high - low or reach) / _STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = min(math.floor(low / step), -1), max(math.ceil(high / step), 1)
    return Axis(tuple(tick * step for tick in range(first, last + 1)))


NAME: Final = "claims.html"
_OWN: Final = "unmask.studies.claims"
_MARK: Final = "<title>unmask claims"


def write_claims(folder: Path, output: Path) -> Path:
    """Write `claims.html` into `output`, from the results of a study on one base model; the page.

    Raises UnmaskError if the study has no results yet, or if a file that unmask did not write would be replaced.
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
    filters = {
        "breakable": breakable,
        "p": p_value,
        "minus": with_minus_signs,
        "difference": difference_text,
        "size": sample_size,
    }
    content = {
        "results": results,
        "counts": counts_sentence(results.claims),
        "note": TABLE_NOTE,
        "here": MEASURED_TASKS_NOTE if any(finding.here for finding in results.claims) else "",
        "groups": list(_groups(results.claims)),
        # what is bold at the beginning of a point in Markdown, and the rest
        "conclusion": [re.fullmatch(r"(?s)(?:\*\*(.+?)\*\*)?(.*)", point).groups("") for point in results.conclusion],  # type: ignore[union-attr]
    }
    return fill((_OWN, "claims.html"), (*STYLE, (_OWN, "claims.css")), "", filters, content)


def with_minus_signs(numbers: str) -> str:
    """Numbers in a text, with minus signs."""
    return re.sub(r"(?<!\w)-(?=[\d.])", MINUS, numbers)


def _groups(findings: Sequence[Finding]) -> Iterator[dict[str, Any]]:
    """The claims by verdict. What does not hold comes first."""
    claims: list[dict[str, Any]] = [
        {
            "finding": finding,
            "claim": finding.claim,
            "compared": comparison_text(finding),
            "plot": plot,
            "tests": finding.tests if len(finding.tests) > 1 else (),
            "missing": [rival for rival in finding.claim.than if rival not in {test.than for test in finding.tests}],
            "here": measured_tasks_cell(finding),
            "verdict": verdict_text(finding),
            "without": without_text(finding.deciding),
            "decision": what_decides(finding),
        }
        for finding, plot in zip(findings, plots(findings), strict=True)
    ]
    for verdict, meaning in VERDICT_MEANINGS.items():
        if of_verdict := [claim for claim in claims if claim["finding"].verdict == verdict]:
            yield {"verdict": verdict, "id": verdict.replace(" ", "-"), "meaning": meaning, "claims": of_verdict}
