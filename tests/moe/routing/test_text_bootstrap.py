"""The bootstrap draws texts, never tokens, and its intervals cover the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.moe.routing.test_formulas import routed
from tests.proofs import ALL
from unmask.moe.routing.formulas import joint_of_texts, normalised_information
from unmask.moe.routing.text_bootstrap import (
    Measure,
    bootstrap_texts,
    permute_labels,
    text_weights,
    with_interval,
)


def test_a_resample_is_as_many_texts_of_each_group() -> None:
    groups = np.array([0, 0, 0, 1, 1])
    weights = np.concatenate(list(text_weights(5, 50, 0, groups)))
    assert weights.shape == (50, 5)
    assert (weights[:, :3].sum(axis=1) == 3).all() and (weights[:, 3:].sum(axis=1) == 2).all()
    assert len(np.unique(weights, axis=0)) > 10
    assert (weights == np.concatenate(list(text_weights(5, 50, 0, groups)))).all(), "drawn by the seed"
    assert (np.concatenate(list(text_weights(5, 20, 0))).sum(axis=1) == 5).all()


def test_the_bootstrap_of_a_mean_has_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=400)
    samples = bootstrap_texts(lambda weights: weights @ values / weights.sum(axis=1), 400, resamples=4000)
    assert samples.std() == pytest.approx(values.std() / 20, rel=0.05)
    assert bootstrap_texts(lambda weights: weights @ values[:1], 1).shape == (0,)


def test_an_interval_lies_around_what_is_left_after_chance() -> None:
    samples = np.random.default_rng(0).normal(0.5, 0.09, size=5000)
    found = with_interval(0.4, samples, 0.1)
    assert found.corrected == pytest.approx(0.3 / 0.9)
    assert found.interval is not None
    assert found.interval == pytest.approx((0.3 / 0.9 - 0.196, 0.3 / 0.9 + 0.196), abs=0.02)
    expected = {"corrected": found.corrected, "value": 0.4, "chance": 0.1, "interval": found.interval, "most": 1.0}
    assert found.as_json() == expected
    assert with_interval(0.4, samples[:0]).interval is None


def _estimate(known: float, seed: int, texts: int) -> Measure:
    made = routed(known, texts, 20, seed)

    def statistic(weights: NDArray[np.float64], labels: NDArray[np.int64] = made.labels) -> NDArray[np.float64]:
        return normalised_information(joint_of_texts(made.shares, labels, weights))[:, 0]

    once = np.ones((1, texts))
    chance = np.mean([statistic(once, dealt)[0] for dealt in permute_labels(made.labels, 60, seed)])
    samples = bootstrap_texts(statistic, texts, resamples=300, seed=seed, strata=made.labels)
    return with_interval(statistic(once)[0], samples, float(chance))


@pytest.mark.sample(0)
@pytest.mark.parametrize(("known", "texts"), [(0.0, 24), (0.3, 80)])
def test_intervals_cover_the_truth(known: float, texts: int) -> None:
    share = np.full((4, 4), (1 - known) / 16) + np.eye(4) * known / 4
    truth = float(normalised_information(share))
    trials = 1000 if ALL else 100
    found = [_estimate(known, seed, texts) for seed in range(trials)]
    covered = [one.interval[0] <= truth <= one.interval[1] for one in found if one.interval]
    assert np.mean([one.corrected for one in found]) == pytest.approx(truth, abs=0.01)
    assert 0.88 <= np.mean(covered) <= 1.0
