"""Domain differences: several models on the same items of several domains, compared item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.statistics.bootstrap import interval
from unmask.statistics.intervals import NO_WIDTH, Bounds, Estimate, difference_interval, mean_interval

_RESAMPLES = 2000
Values = Mapping[str, NDArray[np.float64]]
"""The value of each item (a negative log-likelihood, say), by domain."""


@dataclass(frozen=True)
class ModelScores:
    """One model: its mean in each domain and over all domains, and its difference to the reference model, with 95 % intervals.

    Every item of a domain has the same weight, and so has every domain.
    """

    model: str
    domains: dict[str, float]
    average: float
    differences: dict[str, tuple[float, float, float]]
    difference: tuple[float, float, float]


def compare_by_domain(values: Mapping[str, Values], against: str, seed: int = 0) -> list[ModelScores]:
    """Compare every model with one of them, by a paired bootstrap over the items of each domain (2 000 resamples).

    values: by model, then by domain, with the same order of items for all models.
    """
    reference = values[against]
    resamples = _resamples(reference, seed)
    rows = []
    for model, model_values in values.items():
        differences = {domain: model_values[domain] - reference[domain] for domain in reference}
        samples = {domain: differences[domain][resamples[domain]].mean(axis=1) for domain in reference}
        means = {domain: float(model_values[domain].mean()) for domain in reference}
        points = {domain: float(items.mean()) for domain, items in differences.items()}
        # a model against itself has no difference on any item
        shares = {domain for domain in reference if model != against and _are_percent(model_values[domain], reference[domain])}
        bounds = {
            domain: _bounds(points[domain], samples[domain], len(model_values[domain]), domain in shares)
            for domain in reference
        }
        mean, around = float(np.mean(list(points.values()))), interval(np.stack(list(samples.values())).mean(axis=0))
        if any(np.ptp(samples[domain]) <= NO_WIDTH for domain in shares):
            around = mean_interval(list(points.values()), list(bounds.values()))
        rows.append(
            ModelScores(
                model,
                means,
                float(np.mean(list(means.values()))),
                {domain: (points[domain], *bounds[domain]) for domain in reference},
                (mean, *around),
            )
        )
    return rows


def share_of_gain(start: Values, part: Values, full: Values, seed: int = 0) -> Estimate | None:
    """The share of the gain of `full` over `start` that `part` reaches: (start - part) / (start - full), as means over domains.

    The 95 % interval is the percentile interval of a paired bootstrap over the items of each domain. None if the interval of the gain
    of `full` is not above 0, since there may be no gain to have a share of.
    """
    resamples = _resamples(start, seed)
    points, samples = [], []
    for setting in (part, full):
        gains = {domain: start[domain] - setting[domain] for domain in start}
        points.append(float(np.mean([items.mean() for items in gains.values()])))
        samples.append(np.stack([gains[domain][resamples[domain]].mean(axis=1) for domain in start]).mean(axis=0))
    low, _ = interval(samples[1])
    return None if low <= 0 else Estimate(points[0] / points[1], interval(samples[0] / samples[1]))


def as_json(rows: Sequence[ModelScores], against: str, items: Mapping[str, int], unit: str) -> dict[str, Any]:
    """For `--json`: what is compared, on how many items, and by which test."""
    from dataclasses import asdict

    test = {"test": "paired bootstrap over items", "resamples": _RESAMPLES, "level": 0.95, "unit": unit}
    return {"against": against, "items": dict(items), **test, "models": [asdict(row) for row in rows]}


def _resamples(reference: Values, seed: int) -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    return {domain: random.integers(len(items), size=(_RESAMPLES, len(items))) for domain, items in reference.items()}


def _are_percent(values: NDArray[np.float64], reference: NDArray[np.float64]) -> bool:
    """Whether all items are right (100) or wrong (0)."""
    return bool(np.isin((values, reference), (0.0, 100.0)).all())


def _bounds(difference: float, samples: NDArray[np.float64], n: int, percent: bool) -> Bounds:
    """The interval of a domain. Two models that are right on the same items may still differ on others, so it then has a width."""
    if not percent:
        return interval(samples)
    low, high = difference_interval(samples / 100, difference / 100, n)
    return 100 * low, 100 * high
