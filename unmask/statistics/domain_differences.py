"""Comparison: several models on the same held-out responses, lesson by lesson."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2000
Values = Mapping[str, NDArray[np.float64]]
"""The negative log-likelihood of each lesson, by domain."""


@dataclass(frozen=True)
class ModelScores:
    """One model: its mean of each domain and of all domains, and how far it is from the first model there, with 95 % intervals.

    In nats a token, each lesson and then each domain weighing the same; below the first is better.
    """

    model: str
    domains: dict[str, float]
    average: float
    differences: dict[str, tuple[float, float, float]]
    difference: tuple[float, float, float]


def compare_by_domain(values: Mapping[str, Values], against: str, seed: int = 0) -> list[ModelScores]:
    """Every model against one of them, by a paired bootstrap over the lessons of each domain (2 000 resamples).

    values: by model, then by domain, in the same order of lessons for all.
    """
    reference = values[against]
    drawn = _draws(reference, seed)
    rows = []
    for model, found in values.items():
        differences = {domain: found[domain] - reference[domain] for domain in reference}
        samples = {domain: differences[domain][drawn[domain]].mean(axis=1) for domain in reference}
        means = {domain: float(found[domain].mean()) for domain in reference}
        whole = np.stack(list(samples.values())).mean(axis=0)
        rows.append(
            ModelScores(
                model,
                means,
                float(np.mean(list(means.values()))),
                {domain: _interval(float(differences[domain].mean()), samples[domain]) for domain in reference},
                _interval(float(np.mean([one.mean() for one in differences.values()])), whole),
            )
        )
    return rows


def as_json(rows: Sequence[ModelScores], against: str, items: Mapping[str, int], unit: str) -> dict[str, Any]:
    """For `--json`: what is compared, on how many lessons, and by which test."""
    from dataclasses import asdict

    test = {"test": "paired bootstrap over items", "resamples": _RESAMPLES, "level": 0.95, "unit": unit}
    return {"against": against, "items": dict(items), **test, "models": [asdict(row) for row in rows]}


def _draws(reference: Values, seed: int) -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    return {domain: random.integers(len(found), size=(_RESAMPLES, len(found))) for domain, found in reference.items()}


def _interval(value: float, samples: NDArray[np.float64]) -> tuple[float, float, float]:
    low, high = np.percentile(samples, [2.5, 97.5])
    return value, float(low), float(high)
