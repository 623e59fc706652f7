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
            "measures": {name: {**found.as_json(), "by_point": self.by_point[name]} for name, found in self.measures.items()},
        }


def check_same_tokens(first: RoutingRecord, second: RoutingRecord) -> None:
    """Raise UnmaskError unless two records are of the same tokens and of as many routing points."""
    if len(first.points) != len(second.points):
        raise UnmaskError(
            f"'{first.folder}' has {len(first.points)} routing points and '{second.folder}' {len(second.points)}. "
            "Compare models of one shape."
        )
    one, other = first.choices(), second.choices()
    for name in ("texts", "positions", "ids"):
        if not np.array_equal(getattr(one, name), getattr(other, name)):
            raise UnmaskError(
                f"'{first.folder}' and '{second.folder}' are not of the same tokens. Record both on the same texts, with the same "
                "--sample and --seed."
            )


def compare_records(first: RoutingRecord, second: RoutingRecord, draws: Draws | None = None) -> Agreement:
    """Compare the choices of two records point by point. The second is the last checkpoint, for saturation. Raises UnmaskError."""
    check_same_tokens(first, second)
    draws = draws or Draws()
    series: dict[str, list[Series]] = defaultdict(list)
    for place in range(len(first.points)):
        one, other = (PointChoices.of(record.choices([place])) for record in (first, second))
        for name, found in _at(one, other, draws).items():
            series[name].append(found)
    return Agreement(
        (str(first.folder), str(second.folder)),
        first.settings.tokens,
        {name: mean_of(some) for name, some in series.items()},
        {name: tuple(mean_of([one]).corrected for one in some) for name, some in series.items()},
        draws,
    )


def _at(one: PointChoices, other: PointChoices, draws: Draws) -> dict[str, Series]:
    codes, size = one.first * other.experts + other.first, one.experts * other.experts
    measures: dict[str, Callable[[NDArray[np.float64]], float]] = {"AMI": adjusted_mutual_information}
    if one.experts == other.experts:
        measures = {"kappa": kappa, **measures}

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        flat = (np.bincount(codes, row[one.texts], minlength=size).astype(np.float64) for row in weights)
        tables = (table.reshape(one.experts, other.experts) for table in flat)
        return np.array([[measure(table) for measure in measures.values()] for table in tables])

    values = statistic(np.ones((1, one.number)))[0]
    samples = bootstrap_texts(statistic, one.number, resamples=draws.token_resamples, seed=draws.seed)
    found: dict[str, Series] = {name: (float(values[at]), samples[:, at], 0.0) for at, name in enumerate(measures)}
    if one.experts == other.experts:
        found["saturation"] = _saturation(one, other, draws)
    return found


def _saturation(one: PointChoices, last: PointChoices, draws: Draws) -> Series:
    sums = np.bincount(one.texts, overlap(one.chosen, last.chosen), minlength=one.number)
    share = one.load.sum(axis=0) @ last.load.sum(axis=0) / (len(one.texts) * last.load.sum())  # of unrelated choices

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(weights @ sums / (weights @ one.sizes))

    samples = bootstrap_texts(statistic, one.number, resamples=draws.resamples, seed=draws.seed)
    return float(statistic(np.ones((1, one.number)))[0]), samples, float(share)
