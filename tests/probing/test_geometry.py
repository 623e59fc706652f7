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
from tests.proofs import ALL
from tests.tiny import labelled, write_rows
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.probing.geometry import (
    Pair,
    alignment,
    effective_rank,
    linked,
    mean_cosine,
    pair_cosines,
    probe_geometry,
    read_pairs,
    row_cosines,
    uniformity,
    without_each,
)
from unmask.statistics.intervals import jackknife_interval

AXES = np.eye(4, dtype=np.float32)
RANDOM = np.random.default_rng(0).normal(size=(2500, 32)).astype(np.float32)  # more rows than one block has


def test_alignment_by_hand() -> None:
    assert alignment(AXES, AXES) == 0
    assert alignment(AXES, -AXES) == pytest.approx(4)
    assert alignment(AXES[:2], AXES[[0, 2]]) == pytest.approx((0 + 2) / 2)


def test_uniformity_by_hand() -> None:
    assert uniformity(np.ones((5, 3))) == pytest.approx(0)
    assert uniformity(AXES) == pytest.approx(-4)  # |x - y|^2 = 2 for every pair
    pairs = [np.exp(-2 * 2.0), np.exp(-2 * 2.0), np.exp(-2 * 4.0)]
    assert uniformity(np.array([[1, 0], [0, 1], [-1, 0]])) == pytest.approx(np.log(np.mean([pairs[0], pairs[1], pairs[2]])))


def test_uniformity_in_blocks_is_that_of_all_pairs() -> None:
    wide = RANDOM.astype(np.float64)
    units = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    upper = np.triu_indices(len(units), 1)
    expected = np.log(np.exp(-2 * (2 - 2 * (units @ units.T)[upper])).mean())
    assert uniformity(RANDOM) == pytest.approx(expected, abs=1e-9)


def test_lower_is_more_uniform() -> None:
    assert uniformity(RANDOM) < uniformity(RANDOM + 1) < uniformity(RANDOM + 10) < 0


def test_mean_cosine_by_hand_and_by_all_pairs() -> None:
    assert mean_cosine(AXES) == pytest.approx(0)
    assert mean_cosine(np.array([[1, 0], [2, 0], [0, 3]])) == pytest.approx(1 / 3)
    units = RANDOM / np.linalg.norm(RANDOM, axis=1, keepdims=True)
    assert mean_cosine(RANDOM) == pytest.approx((units @ units.T)[np.triu_indices(len(units), 1)].mean(), abs=1e-5)


def test_effective_rank_by_hand() -> None:
    cross = np.concatenate([AXES, -AXES])  # centred, four equal singular values
    assert effective_rank(cross) == pytest.approx(4)
    assert effective_rank(cross * 7 + 3) == pytest.approx(4)
    assert effective_rank(np.outer(np.arange(5.0), np.ones(3))) == pytest.approx(1)
    values = np.array([3.0, 1.0]) / 4
    assert effective_rank(np.diag([3.0, 1.0])[[0, 0, 1, 1]] * [[1], [-1], [1], [-1]]) == pytest.approx(
        np.exp(-(values * np.log(values)).sum())
    )


@pytest.mark.parametrize("measure", [uniformity, mean_cosine, lambda one: alignment(one, one[::-1])])
def test_length_and_rotation_change_nothing(measure: Callable[[np.ndarray], float]) -> None:
    some = RANDOM[:100].astype(np.float64)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(32, 32)))[0]
    longer = some * np.random.default_rng(2).uniform(0.1, 9, size=(100, 1))
    assert measure(longer) == pytest.approx(measure(some)) == pytest.approx(measure(some @ rotation))


def test_groups_are_texts_that_pairs_link() -> None:
    assert linked([(0, 1), (2, 3), (3, 4)], 6).tolist() == [0, 0, 1, 1, 1, 2]


def test_each_group_is_left_out() -> None:
    some, groups = RANDOM[:1100], np.random.default_rng(3).integers(40, size=1100)  # more rows than one block has
    spread, close = without_each(some, groups)
    for group in (0, 7, 39):
        rest = some[groups != group]
        assert (spread[group], close[group]) == pytest.approx((uniformity(rest), mean_cosine(rest)), abs=1e-9)
    assert np.isnan(without_each(AXES, np.array([0, 0, 0, 1]))[0][0]), "one text is left"


def test_intervals_cover_what_other_texts_show() -> None:
    """Both texts of a pair lie near one centre, so they are no two draws."""
    values, bounds = [], []
    for seed in range(1000 if ALL else 100):
        random = np.random.default_rng(seed)
        centres = np.repeat(random.normal(0.4, 0.9, size=(40, 8)), 2, axis=0)
        texts = centres + random.normal(0, 0.4, size=centres.shape)
        values.append((uniformity(texts), mean_cosine(texts)))
        left_out = without_each(texts, np.arange(80) // 2)
        bounds.append([jackknife_interval(*both) or (0, 0) for both in zip(values[-1], left_out, strict=True)])
    (low, high), truth = np.moveaxis(np.array(bounds), 2, 0), np.mean(values, axis=0)
    covered = ((low <= truth) & (truth <= high)).mean(axis=0)
    assert (covered >= 0.88).all() and (covered <= 0.99).all()


def test_what_has_no_geometry_is_refused() -> None:
    with pytest.raises(UnmaskError, match="Vector 1 is zero"):
        uniformity(np.array([[1.0, 0.0], [0.0, 0.0]]))
    for measure in (uniformity, mean_cosine, effective_rank):
        with pytest.raises(UnmaskError, match="two texts or more, not 1"):
            measure(AXES[:1])
    with pytest.raises(UnmaskError, match="at least 1, not 4 and 2"):
        alignment(AXES, AXES[:2])
    with pytest.raises(UnmaskError, match="no effective rank"):
        effective_rank(np.ones((3, 2)))


def test_an_embedder_on_pairs(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    embedder = pico("bidirectional/plain/mean")
    scores = [5.0, 4.0, 3.9, 0]
    rows = [{"sentence1": TEXTS[k], "sentence2": TEXTS[k + 1], "score": score} for k, score in enumerate(scores)]
    pairs = read_pairs(write_rows(tmp_path / "pairs.jsonl", rows))
    found = probe_geometry(embedder, pairs)
    vectors = embedder.encode(TEXTS[:5])
    assert found.alignment == pytest.approx(alignment(vectors[:2], vectors[1:3]))
    assert found.uniformity == pytest.approx(uniformity(vectors))
    assert (found.positives, found.texts, found.groups, found.dim, found.positive_from) == (2, 5, 1, 64, 4.0)
    assert found.alignment_interval is found.uniformity_interval is found.mean_cosine_interval is None, "one group"
    assert probe_geometry(embedder, pairs, positive_from=0).positives == 4
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


def test_texts_count_once_and_pairs_without_a_score_are_paraphrases(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b"}, {"sentence1": "a", "sentence2": "c"}, {"sentence1": "a", "sentence2": "b"}]
    found = probe_geometry(pico(), read_pairs(write_rows(tmp_path / "pairs.csv", rows)))
    assert (found.positives, found.texts, found.positive_from) == (3, 3, None)


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


def test_no_paraphrase_at_all_is_refused(pico: Callable[..., Embedder]) -> None:
    with pytest.raises(UnmaskError, match="No pair has a score of 4 or more"):
        probe_geometry(pico(), [Pair("a", "b", 1.0)])


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


def test_a_zero_vector_is_like_nothing() -> None:
    assert row_cosines(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [1.0, 0.0]])) == pytest.approx([24 / 25, 0])


def test_a_limit_draws_pairs_from_the_whole_file_and_keeps_their_order(tmp_path: Path) -> None:
    """Files of pairs are sorted by their source or by their score."""
    rows = [{"sentence1": f"a{row:02d}", "sentence2": "b", "score": row / 10} for row in range(50)]
    file = write_rows(tmp_path / "pairs.jsonl", rows)
    everything = read_pairs(file)
    drawn = read_pairs(file, 20)
    assert len(drawn) == 20 and drawn == read_pairs(file, 20) and drawn != read_pairs(file, 20, seed=1)
    assert drawn == sorted(drawn, key=everything.index) and drawn != everything[:20]
    assert {pair.one for seed in range(20) for pair in read_pairs(file, 20, seed)} == {pair.one for pair in everything}
    assert read_pairs(file, 50) == read_pairs(file, 99) == everything
