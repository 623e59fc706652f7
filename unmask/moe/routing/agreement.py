"""Agreement: whether two records of the same tokens show the same routing: two seeds, two configurations, two checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unmask.errors import UnmaskError
from unmask.moe.routing.measures import PointChoices, table_series
from unmask.moe.routing.record import RoutingRecord
from unmask.moe.routing.text_bootstrap import Draws, Measure, mean_of
from unmask.statistics.information import adjusted_mutual_information


@dataclass(frozen=True)
class Agreement:
    """AMI of the first choices of two records: the mean over routing points, and the value at each point."""

    folders: tuple[str, str]
    tokens: int
    ami: Measure
    by_point: tuple[float, ...]
    draws: Draws

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        measures = {"AMI": {**self.ami.as_json(), "by_point": self.by_point}}
        return {"folders": list(self.folders), "tokens": self.tokens, "draws": asdict(self.draws), "measures": measures}


def compare_records(first: RoutingRecord, second: RoutingRecord, draws: Draws | None = None) -> Agreement:
    """Compare the first choices of two records point by point.

    Raises UnmaskError for records of other tokens, or with another number of routing points.
    """
    draws = draws or Draws()
    if len(first.points) != len(second.points):
        raise UnmaskError(
            f"'{first.folder}' has {len(first.points)} routing points and '{second.folder}' {len(second.points)}. "
            "Compare models of one shape."
        )
    tokens = [record.choices() for record in (first, second)]
    if not all(np.array_equal(*(getattr(choices, name) for choices in tokens)) for name in ("texts", "positions", "ids")):
        raise UnmaskError(
            f"'{first.folder}' and '{second.folder}' are not of the same tokens. Record both on the same texts, with the same "
            "--sample and --seed."
        )
    series = []
    for index in range(len(first.points)):
        first_point, second_point = (PointChoices.of(record.choices([index])) for record in (first, second))
        measures = {"": adjusted_mutual_information}
        series.append(table_series(measures, first_point.first, first_point.experts, second_point, draws, shifts=0)[""])
    by_point = tuple(mean_of([of_point]).corrected for of_point in series)
    return Agreement((str(first.folder), str(second.folder)), first.settings.tokens, mean_of(series), by_point, draws)
