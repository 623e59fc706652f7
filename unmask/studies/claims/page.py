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
from unmask.studies.claims.claim import ClaimTest, Finding
from unmask.studies.claims.tables import HERE, MEANINGS, NOTE, compared, counts, difference, here_said, size
from unmask.studies.results import StudyResults, read_results

_FAR: Final = 2.5
"""An axis ends at so many times the reach of a usual difference; an interval that goes on beyond ends in an arrow."""
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

    def place(self, value: float) -> float:
        """Where a number stands, in percent of the width; at an end if it is beyond."""
        return round(100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low), 2)

    @property
    def labels(self) -> list[tuple[float, str]]:
        """The places of the ticks, and what is written there."""
        return [(self.place(tick), signed(tick)) for tick in self.ticks]


@dataclass(frozen=True)
class Plot:
    """The places of a plot. goes_on: whether the interval goes on beyond the axis, on the left and on the right.

    near: the zone of differences that are smaller than what could be detected. margins: where the claim allows a difference.
    """

    axis: Axis
    point: float
    interval: tuple[float, float]
    goes_on: tuple[bool, bool]
    near: tuple[float, float]
    margins: tuple[float, ...]


def signed(value: float) -> str:
    """A number on an axis, with its sign."""
    return f"{value:+.6g}".replace("-", MINUS) if value else "0"


def plots(found: Sequence[Finding]) -> list[Plot | None]:
    """A plot for each claim; None for a claim without a test. Claims of one unit have one axis."""
    tested: dict[str, list[Finding]] = {}
    for one in found:
        if one.deciding:
            tested.setdefault(one.deciding.measured_in, []).append(one)
    axes = {unit: _axis(of_unit) for unit, of_unit in tested.items()}
    return [_plot(one, one.deciding, axes[one.deciding.measured_in]) if one.deciding else None for one in found]


def _plot(one: Finding, test: ClaimTest, axis: Axis) -> Plot:
    low, high = test.interval
    return Plot(
        axis,
        axis.place(test.difference),
        (axis.place(low), axis.place(high)),
        (low < axis.low, high > axis.high),
        (axis.place(-test.detectable), axis.place(test.detectable)),
        tuple(axis.place(margin) for margin in _margins(one)),
    )


def _margins(one: Finding) -> tuple[float, ...]:
    if one.claim.within is not None:
        return -one.claim.within, one.claim.within
    return () if one.claim.costs is None else (-one.claim.costs,)


def _axis(of_unit: Iterable[Finding]) -> Axis:
    """The axis of all claims of a unit. A few intervals that are much wider than the others do not decide on it."""
    found = [(one, test) for one in of_unit if (test := one.deciding)]
    shown = [0.0, *(test.difference for _, test in found), *(margin for one, _ in found for margin in _margins(one))]
    reach = max(*map(abs, shown), median(max(map(abs, test.interval)) for _, test in found)) or 1.0
    low = max(min(*shown, *(test.interval[0] for _, test in found)), -_FAR * reach)
    high = min(max(*shown, *(test.interval[1] for _, test in found)), _FAR * reach)
    step = _step((high - low or reach) / _STEPS)
    first, last = min(math.floor(low / step), -1), max(math.ceil(high / step), 1)
    return Axis(tuple(place * step for place in range(first, last + 1)))


def _step(rough: float) -> float:
    """The next larger of 1, 2, 2.5, 5 and 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


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
    others: list[ClaimTest] = list(one.tests) if len(one.tests) > 1 else []
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
