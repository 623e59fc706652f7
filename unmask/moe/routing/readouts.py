"""Readouts: what a linear probe and a grouping read off the routing weights of texts, beside what they read off hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.moe.routing.point_measures import Draws
from unmask.moe.routing.statistics.readout import chance_accuracy, clusters, probe_correct
from unmask.moe.routing.statistics.text_bootstrap import Measured, bootstrap_texts, measured
from unmask.statistics.information import adjusted_mutual_information

_READ = 2000


@dataclass(frozen=True)
class Readout:
    """Accuracy of a linear probe on texts that it has not seen, and AMI of as many clusters as there are labels.

    probes, groups: by "routing" and "hidden". difference: routing minus hidden, paired by text. majority: always the most frequent label.
    probes is empty if a label has fewer than five texts.
    """

    texts: int
    majority: float
    probes: dict[str, Measured]
    difference: Measured | None
    groups: dict[str, Measured]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "texts": self.texts,
            "majority": self.majority,
            "probes": {name: probe.as_json() for name, probe in self.probes.items()},
            "difference": self.difference.as_json() if self.difference else None,
            "groups": {name: group.as_json() for name, group in self.groups.items()},
        }


def texts_to_read(number: int, seed: int) -> NDArray[np.int64]:
    """The places of the texts that probes are fitted on: all, or a sample of 2 000."""
    if number <= _READ:
        return np.arange(number)
    return np.sort(np.random.default_rng(seed).choice(number, _READ, replace=False))


def read_out(routing: NDArray[np.float32], hidden: NDArray[np.float32], labels: NDArray[np.int64], draws: Draws) -> Readout:
    """Read the labels of texts off two vectors of each. routing, hidden: (text, dim)."""
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    vectors = {"routing": routing, "hidden": hidden}
    correct = {name: probe_correct(some, labels, draws.seed) for name, some in vectors.items()}
    known = {name: told for name, told in correct.items() if told is not None}
    groups = {
        name: _agreement(clusters(some, int(labels.max()) + 1, draws.seed), labels, draws) for name, some in vectors.items()
    }
    return Readout(
        len(labels),
        chance_accuracy(labels),
        {name: _mean(told, draws) for name, told in known.items()},
        _mean(known["routing"] - known["hidden"], draws) if known else None,
        groups,
    )


def _mean(values: NDArray[np.float64], draws: Draws) -> Measured:
    samples = bootstrap_texts(
        lambda weights: weights @ values / len(values), len(values), resamples=draws.resamples, seed=draws.seed
    )
    return measured(float(values.mean()), samples)


def _agreement(groups: NDArray[np.int64], labels: NDArray[np.int64], draws: Draws) -> Measured:
    """AMI, and its resamples with the clusters as they are."""
    size = int(max(groups.max(), labels.max())) + 1

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        tables = [np.bincount(groups * size + labels, row, minlength=size * size).reshape(size, size) for row in weights]
        return np.array([adjusted_mutual_information(table) for table in tables])

    samples = bootstrap_texts(statistic, len(labels), resamples=draws.token_resamples, seed=draws.seed)
    return measured(float(statistic(np.ones((1, len(labels))))[0]), samples)
