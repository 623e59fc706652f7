"""A probe reads labels that are there, on texts that it has not seen, and none that are not."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import adjusted_mutual_info_score

from unmask.moe.routing.readouts import clusters, probe_correct

RANDOM = np.random.default_rng(0)
LABELS = np.arange(90) % 3


def test_labels_that_can_be_read() -> None:
    told = np.eye(3)[LABELS] + RANDOM.normal(0, 0.1, size=(90, 3))
    correct = probe_correct(told, LABELS)
    assert correct is not None and correct.mean() > 0.95
    assert adjusted_mutual_info_score(LABELS, clusters(told, 3)) > 0.9


def test_labels_that_cannot() -> None:
    noise = RANDOM.normal(size=(90, 60))
    correct = probe_correct(noise, LABELS)
    assert correct is not None and correct.mean() < 0.55, "held out: 60 dimensions fit 90 labels, and predict none"
    assert abs(adjusted_mutual_info_score(LABELS, clusters(noise, 3))) < 0.1
