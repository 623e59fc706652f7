"""Rankings: the best rows, ties in the order of rows, and the sums of reciprocal ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unmask.search.fusion import Ranking, best, fuse


def ranking(*rows: int) -> Ranking:
    return Ranking(np.array(rows, np.int64), np.linspace(1, 0.5, len(rows)))


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 40))
def test_the_best_are_those_of_a_stable_sort(scores: list[int], number: int) -> None:
    rows = np.arange(len(scores), dtype=np.int64) * 3
    found = best(rows, np.array(scores, np.float32), number)
    expected = sorted(zip(scores, rows.tolist(), strict=True), key=lambda one: (-one[0], one[1]))[:number]
    assert list(zip(found.scores.tolist(), found.rows.tolist(), strict=True)) == expected


def test_rows_may_come_in_any_order() -> None:
    found = best(np.array([9, 2, 5], np.int64), np.array([1.0, 1.0, 2.0]), 2)
    assert found.rows.tolist() == [5, 2]


def test_fusion_adds_reciprocal_ranks() -> None:
    fused = fuse([ranking(7, 3), ranking(3, 5)], 3)
    assert fused.rows.tolist() == [3, 7, 5]
    assert fused.scores.tolist() == [1 / 62 + 1 / 61, 1 / 61, 1 / 62]


def test_fusing_one_ranking_keeps_its_order() -> None:
    assert fuse([ranking(4, 1, 8)], 10).rows.tolist() == [4, 1, 8]


def test_rankings_without_a_row_fuse_to_nothing() -> None:
    assert fuse([ranking(), ranking()], 10).rows.tolist() == []
