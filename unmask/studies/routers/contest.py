"""The contest: our own structure against the configuration with the most distinct routing, on seeds that chose neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.statistics.paired import PairedTest, with_holm
from unmask.studies.routers.analysis import Bases, Row, differences, tests_as_json
from unmask.studies.routers.cell import Cell
from unmask.studies.routers.configurations import CONFIGURATIONS, OWN, Yardstick
from unmask.studies.routers.contrast import SeedNoise


@dataclass(frozen=True)
class Contest:
    """best: the other configuration. tests: of our own structure against it, by yardstick, corrected for their number (Holm)."""

    best: str
    seeds: int
    tests: dict[Yardstick, PairedTest]

    def as_json(self) -> dict[str, Any]:
        """For the results."""
        return {"best": self.best, "seeds": self.seeds, "tests": tests_as_json(self.tests)}


def most_distinct(rows: Iterable[Row]) -> str | None:
    """The trained configuration with the highest I(D;E) among those with the domains of our own structure, which is left out."""
    domains = CONFIGURATIONS[OWN].domains
    rivals = [
        row
        for row in rows
        if row.information is not None and row.name != OWN
        if CONFIGURATIONS[row.name].domains == domains and not CONFIGURATIONS[row.name].untrained
    ]
    return max(rivals, key=lambda row: row.information or 0.0).name if rivals else None


def decide(best: str, fresh: Mapping[str, Mapping[int, Cell]], bases: Bases, noise: SeedNoise) -> Contest:
    """The contest, from cells of both on fresh seeds. noise: of the study, since two configurations say little of it."""
    tests = differences(OWN, best, fresh, bases, noise)
    corrected = dict(zip(tests, with_holm(list(tests.values())), strict=True))
    return Contest(best, len(fresh[OWN]), corrected)
