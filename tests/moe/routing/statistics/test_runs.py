"""Agreement of two runs does not depend on what the experts are called."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score, cohen_kappa_score

from tests.moe.routing.statistics.made_routing import routed
from tests.moe.routing.statistics.test_choices import table
from unmask.moe.routing.formulas import kappa, match, overlap
from unmask.statistics.information import adjusted_mutual_information

ONE, OTHER = routed(texts=200).first, routed(texts=200, seed=1).first
ORDER = np.array([2, 0, 3, 1])


def test_the_same_router_with_other_names() -> None:
    found = table(ONE, ORDER[ONE])
    assert match(found).tolist() == ORDER.tolist()
    assert kappa(found) == pytest.approx(1) and adjusted_mutual_information(found) == pytest.approx(1)


def test_unrelated_runs() -> None:
    found = table(ONE, OTHER)
    assert abs(kappa(found)) < 0.05 and abs(adjusted_mutual_information(found)) < 0.01


def test_runs_that_agree_in_part() -> None:
    mixed = np.where(np.arange(len(ONE)) % 2, ONE, OTHER)
    found = table(ONE, ORDER[mixed])
    assert kappa(found) == pytest.approx(cohen_kappa_score(ONE, mixed))
    assert adjusted_mutual_information(found) == pytest.approx(adjusted_mutual_info_score(ONE, ORDER[mixed]))
    assert adjusted_mutual_information(found.T) == pytest.approx(adjusted_mutual_information(found))


def test_saturation() -> None:
    last = np.array([[0, 1], [2, 3], [1, -1]])
    assert overlap(last[:, ::-1], last).tolist() == [1, 1, 1], "their order does not matter"
    assert overlap(np.array([[0, 3], [0, 1], [-1, -1]]), last).tolist() == [0.5, 0, 0]
