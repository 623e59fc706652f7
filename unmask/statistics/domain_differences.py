"""Domain differences: several models on the same items of several domains, compared item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.statistics.bootstrap import interval
from unmask.statistics.intervals import Estimate

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
    drawn = _resamples(reference, seed)
    rows = []
    for model, own in values.items():
        differences = {domain: own[domain] - reference[domain] for domain in reference}
        samples = {domain: differences[domain][drawn[domain]].mean(axis=1) for domain in reference}
        means = {domain: float(own[domain].mean()) for domain in reference}
        whole = np.stack(list(samples.values())).mean(axis=0)
        rows.append(
            ModelScores(
                model,
                means,
                float(np.mean(list(means.values()))),
                {domain: _interval(float(differences[domain].mean()), samples[domain]) for domain in reference},
                _interval(float(np.mean([items.mean() for items in differences.values()])), whole),
            )
        )
    return rows


def share_of_gain(start: Values, part: Values, whole: Values, seed: int = 0) -> Estimate | None:
    """The share of the gain of `whole` over `start` that `part` reaches, as means over domains, with its 95 % interval.

    (start - part) / (start - whole): 1 if part is as good as whole, 0 if it is no better than start, below 0 if it is worse. The interval
    is the percentile interval of a paired bootstrap over the items of each domain (2 000 resamples). None if the interval of the gain of
    `whole` is not above 0, since there may be no gain to have a share of.
    """
    drawn = _resamples(start, seed)
    points, samples = [], []
    for other in (part, whole):
        gains = {domain: start[domain] - other[domain] for domain in start}
        points.append(float(np.mean([items.mean() for items in gains.values()])))
        samples.append(np.stack([gains[domain][drawn[domain]].mean(axis=1) for domain in start]).mean(axis=0))
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


def _interval(value: float, samples: NDArray[np.float64]) -> tuple[float, float, float]:
    low, high = np.percentile(samples, [2.5, 97.5])
    return value, float(low), float(high)
