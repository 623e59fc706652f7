"""What the study found: the measured cells, and the numbers that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.statistics.rank_correlation import RankCorrelation
from unmask.studies.claims.claim import Claim, Finding
from unmask.studies.routers.analysis import Row, distinct_and_good, rows_of, tests_as_json
from unmask.studies.routers.anchor import Anchor
from unmask.studies.routers.cell import Cell
from unmask.studies.routers.conclusion import conclusion
from unmask.studies.routers.configurations import CONFIGURATIONS, STANDARD
from unmask.studies.routers.contest import Contest
from unmask.studies.routers.paper_claims import verdicts


@dataclass
class Measured:
    """The cells so far.

    anchor: the layer that anchored routers read. bases: the base model by set of domains. contest: on fresh seeds, at the end.
    """

    anchor: Anchor
    bases: dict[str, Cell] = field(default_factory=dict)
    cells: dict[str, dict[int, Cell]] = field(default_factory=dict)
    contest: Contest | None = None

    @property
    def base_score(self) -> float:
        """The mean score of the base model's hidden states, in percent."""
        scores = self.bases[CONFIGURATIONS[STANDARD].domains].scores["hidden"]
        return 100 * sum(scores.values()) / len(scores)


@dataclass(frozen=True)
class Findings:
    """The numbers of the report. They take seconds to compute.

    rows: configurations in the order of the tables. correlations: what goes with distinct routing. papers: what becomes of their claims.
    """

    measured: Measured
    rows: Mapping[str, Row]
    correlations: Mapping[str, RankCorrelation]
    papers: list[Finding]

    @property
    def conclusion(self) -> list[str]:
        """The conclusion in sentences."""
        return conclusion(self.rows, self.correlations, self.measured.contest, self.papers)

    def as_json(self) -> dict[str, Any]:
        """Every number of the report, and the measures of each cell."""
        measured = self.measured
        return {
            "anchor": measured.anchor.as_json(),
            "base": {name: {"scores": cell.scores} for name, cell in measured.bases.items()},
            "configurations": [{**vars(row), "tests": tests_as_json(row.tests)} for row in self.rows.values()],
            "correlations": {name: value.as_json() for name, value in self.correlations.items()},
            "contest": measured.contest and measured.contest.as_json(),
            "conclusion": self.conclusion,
            "cells": {
                name: {str(seed): {"routing": cell.routing, "scores": cell.scores} for seed, cell in seeds.items()}
                for name, seeds in measured.cells.items()
            },
        }


def findings_of(measured: Measured, claims: Sequence[Claim]) -> Findings:
    """The numbers that follow from what was measured so far. claims: of papers."""
    known = {name: measured.cells[name] for name in CONFIGURATIONS if name in measured.cells}
    rows = {row.name: row for row in rows_of(known, measured.bases)}
    return Findings(measured, rows, distinct_and_good(rows.values()), verdicts(claims, measured.cells, measured.bases))
