"""Agreement: whether two records of the same tokens show the same routing: two seeds, two configurations, two checkpoints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError
from unmask.moe.routing.formulas import kappa, overlap
from unmask.moe.routing.measures import PointChoices, Series
from unmask.moe.routing.record import RoutingRecord
from unmask.moe.routing.text_bootstrap import Draws, Measured, bootstrap_texts, mean_of
from unmask.statistics.information import adjusted_mutual_information


@dataclass(frozen=True)
class Agreement:
    """Agreement of two records, the mean over routing points, and each point's values.

    If the numbers of experts differ, there is AMI only: experts cannot be matched one to one.
    """

    folders: tuple[str, str]
    tokens: int
    measures: dict[str, Measured]
    by_point: dict[str, tuple[float, ...]]
    draws: Draws

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "folders": list(self.folders),
            "tokens": self.tokens,
            "draws": asdict(self.draws),
            "measures": {
                name: {**measure.as_json(), "by_point": self.by_point[name]} for name, measure in self.measures.items()
            },
        }


def check_same_tokens(first: RoutingRecord, second: RoutingRecord) -> None:
    """Raise UnmaskError unless two records are of the same tokens and of as many routing points."""
    if len(first.points) != len(second.points):
        raise UnmaskError(
            f"'{first.folder}' has {len(first.points)} routing points and '{second.folder}' {len(second.points)}. "
            "Compare models of one shape."
        )
    first_choices, second_choices = first.choices(), second.choices()
    for name in ("texts", "positions", "ids"):
        if not np.array_equal(getattr(first_choices, name), getattr(second_choices, name)):
            raise UnmaskError(
                f"'{first.folder}' and '{second.folder}' are not of the same tokens. Record both on the same texts, with the same "
                "--sample and --seed."
            )


def compare_records(first: RoutingRecord, second: RoutingRecord, draws: Draws | None = None) -> Agreement:
    """Compare the choices of two records point by point. The second is the last checkpoint, for saturation. Raises UnmaskError."""
    check_same_tokens(first, second)
    draws = draws or Draws()
    series: dict[str, list[Series]] = defaultdict(list)
    for index in range(len(first.points)):
        first_point, second_point = (PointChoices.of(record.choices([index])) for record in (first, second))
        for name, point_series in _at(first_point, second_point, draws).items():
            series[name].append(point_series)
    return Agreement(
        (str(first.folder), str(second.folder)),
        first.settings.tokens,
        {name: mean_of(points) for name, points in series.items()},
        {name: tuple(mean_of([first_point]).corrected for first_point in points) for name, points in series.items()},
        draws,
    )


def _at(first: PointChoices, second: PointChoices, draws: Draws) -> dict[str, Series]:
    codes, size = first.first * second.experts + second.first, first.experts * second.experts
    measures: dict[str, Callable[[NDArray[np.float64]], float]] = {"AMI": adjusted_mutual_information}
    if first.experts == second.experts:
        measures = {"kappa": kappa, **measures}

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        flat = (np.bincount(codes, row[first.texts], minlength=size).astype(np.float64) for row in weights)
        tables = (table.reshape(first.experts, second.experts) for table in flat)
        return np.array([[measure(table) for measure in measures.values()] for table in tables])

    values = statistic(np.ones((1, first.number)))[0]
    samples = bootstrap_texts(statistic, first.number, resamples=draws.token_resamples, seed=draws.seed)
    series: dict[str, Series] = {name: (float(values[column]), samples[:, column], 0.0) for column, name in enumerate(measures)}
    if first.experts == second.experts:
        series["saturation"] = _saturation(first, second, draws)
    return series


def _saturation(first: PointChoices, last: PointChoices, draws: Draws) -> Series:
    sums = np.bincount(first.texts, overlap(first.chosen, last.chosen), minlength=first.number)
    share = first.load.sum(axis=0) @ last.load.sum(axis=0) / (len(first.texts) * last.load.sum())  # of unrelated choices

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(weights @ sums / (weights @ first.sizes))

    samples = bootstrap_texts(statistic, first.number, resamples=draws.resamples, seed=draws.seed)
    return float(statistic(np.ones((1, first.number)))[0]), samples, float(share)
