"""Geometry: values by hand, invariances, and one embedder on one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TEXTS
from tests.probing.models import pico_model
from tests.tiny import labelled, write_rows
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.probing.geometry import alignment, effective_rank, group_linked, probe_geometry, spread
from unmask.probing.inputs import Pair, pair_cosines, read_pairs

AXES = np.eye(4, dtype=np.float32)
RANDOM = np.random.default_rng(0).normal(size=(2500, 32)).astype(np.float32)  # more rows than one block has


def test_alignment_by_hand() -> None:
    assert alignment(AXES, AXES).tolist() == [0] * 4
    assert alignment(AXES, -3 * AXES) == pytest.approx([4] * 4)
    assert alignment(AXES[:2], AXES[[0, 2]]) == pytest.approx([0, 2])


def by_all_pairs(vectors: Any) -> tuple[float, float]:
    """Uniformity and mean cosine."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (units @ units.T)[np.triu_indices(len(units), 1)]
    return float(np.log(np.exp(-2 * (2 - 2 * cosines)).mean())), float(cosines.mean())


def test_spread_is_that_of_all_pairs_and_without_each_group() -> None:
    wide, groups = 5 * RANDOM.astype(np.float64), np.random.default_rng(3).integers(40, size=len(RANDOM))
    found = spread(wide, groups)
    assert (found.uniformity, found.mean_cosine) == pytest.approx(by_all_pairs(wide), abs=1e-9)
    for group in (0, 39):
        without = (found.uniformity_without[group], found.mean_cosine_without[group])
        assert without == pytest.approx(by_all_pairs(wide[groups != group]), abs=1e-9)
    axes = spread(AXES, np.array([0, 0, 0, 1]))  # |x - y|^2 = 2 for every pair
    assert (axes.uniformity, axes.mean_cosine) == pytest.approx((-4, 0))
    assert np.isnan(axes.uniformity_without[0]), "one text is left"
    with pytest.raises(UnmaskError, match="Vector 1 is zero"):
        spread(np.array([[1.0, 0.0], [0.0, 0.0]]), np.zeros(2, np.int64))
    with pytest.raises(UnmaskError, match="two texts or more, not 1"):
        spread(AXES[:1], np.zeros(1, np.int64))


def test_effective_rank_by_hand() -> None:
    cross = np.concatenate([AXES, -AXES])  # centred, four equal singular values
    assert effective_rank(cross) == pytest.approx(4)
    assert effective_rank(cross * 7 + 3) == pytest.approx(4)
    assert effective_rank(np.outer(np.arange(5.0), np.ones(3))) == pytest.approx(1)
    values = np.array([3.0, 1.0]) / 4
    assert effective_rank(np.diag([3.0, 1.0])[[0, 0, 1, 1]] * [[1], [-1], [1], [-1]]) == pytest.approx(
        np.exp(-(values * np.log(values)).sum())
    )


def test_groups_are_texts_that_pairs_link() -> None:
    assert group_linked([0, 2, 3], [1, 3, 4], 6).tolist() == [0, 0, 1, 1, 1, 2]


def test_an_embedder_on_pairs(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    embedder = pico("bidirectional/plain/mean")
    scores = [5.0, 4.0, 3.9, 0]
    rows = [{"sentence1": TEXTS[k], "sentence2": TEXTS[k + 1], "score": score} for k, score in enumerate(scores)]
    pairs = read_pairs(write_rows(tmp_path / "pairs.jsonl", rows))
    found = probe_geometry(embedder, pairs)
    vectors = embedder.encode(TEXTS[:5])
    assert found.alignment == pytest.approx(alignment(vectors[:2], vectors[1:3]).mean())
    assert found.uniformity == pytest.approx(by_all_pairs(vectors)[0], abs=1e-6)
    assert (found.positives, found.texts, found.groups, found.dim, found.positive_from) == (2, 5, 1, 64, 4.0)
    assert found.alignment_interval is found.uniformity_interval is found.mean_cosine_interval is None, "one group"
    assert probe_geometry(embedder, pairs, positive_from=0).positives == 4
    with pytest.raises(UnmaskError, match="No pair has a score of 9 or more"):
        probe_geometry(embedder, pairs, positive_from=9)
    content = json.loads(json.dumps(found.as_json()))
    assert content["better"]["uniformity"] == "lower" and content["provenance"]["design"] == "bidirectional/plain/mean"


def test_intervals_lie_around_the_numbers(pico: Callable[..., Embedder]) -> None:
    texts = [row["text"] for row in labelled(0, 16)]
    found = probe_geometry(
        pico("bidirectional/plain/mean"), [Pair(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
    )
    assert found.groups == len(set(texts)) // 2 == 8
    for name in ("alignment", "uniformity", "mean_cosine"):
        low, high = getattr(found, f"{name}_interval")
        assert low < getattr(found, name) < high


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"sentence1": "a", "score": 1}], "column 'sentence2'"),
        ([{"sentence1": "a", "sentence2": "b", "score": "x"}], "line 1, column 'score': 'x' is not a number"),
        ([{"sentence1": "a", "sentence2": "b", "score": 1}, {"sentence1": "a", "sentence2": "b"}], "some have none"),
    ],
)
def test_a_bad_file_of_pairs_is_refused(rows: list[dict[str, object]], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=message):
        read_pairs(write_rows(tmp_path / "pairs.jsonl", rows))


def test_similarities_are_cosines_of_the_pairs(tokenizer: Any) -> None:
    model = pico_model(tokenizer, "causal")
    designs = [Design.parse("bidirectional/plain/mean"), Design.parse("causal/eol/last")]
    pairs = [Pair(TEXTS[0], TEXTS[1]), Pair(TEXTS[1], TEXTS[4]), Pair(TEXTS[2], TEXTS[2])]
    found = pair_cosines(model, designs, pairs)
    vectors = model.encode(TEXTS, model.fit(designs, TEXTS))
    for place, design in enumerate(designs):
        rows = vectors[design]
        assert found[:, place] == pytest.approx(np.diag(Embedder.similarity(rows[[0, 1, 2]], rows[[1, 4, 2]])), abs=1e-5)
    assert found[2] == pytest.approx([1, 1])


def test_a_limit_draws_pairs_from_the_whole_file_and_keeps_their_order(tmp_path: Path) -> None:
    """Files of pairs are sorted by their source or by their score."""
    rows = [{"sentence1": f"a{row:02d}", "sentence2": "b", "score": row / 10} for row in range(50)]
    file = write_rows(tmp_path / "pairs.jsonl", rows)
    everything = read_pairs(file)
    drawn = read_pairs(file, 20)
    assert len(drawn) == 20 and drawn == read_pairs(file, 20) and drawn != read_pairs(file, 20, seed=1)
    assert drawn == sorted(drawn, key=everything.index) and drawn != everything[:20]
    assert {pair.first for seed in range(20) for pair in read_pairs(file, 20, seed)} == {pair.first for pair in everything}
    assert read_pairs(file, 50) == read_pairs(file, 99) == everything
