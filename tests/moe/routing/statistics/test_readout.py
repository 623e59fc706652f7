"""A probe reads labels that are there, on texts that it has not seen, and none that are not."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import adjusted_mutual_info_score

from unmask.moe.routing.readouts import chance_accuracy, clusters, probe_correct

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
    assert chance_accuracy(LABELS) == 1 / 3


def test_too_few_texts_of_a_label() -> None:
    assert probe_correct(RANDOM.normal(size=(8, 2)), np.array([0] * 4 + [1] * 4)) is None
    assert probe_correct(RANDOM.normal(size=(8, 2)), np.zeros(8, np.int64)) is None
