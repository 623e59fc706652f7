"""Maps keep what two dimensions can keep; neighbours are those of all dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.reporting.atlas.maps import NEIGHBOURS, same_label, shared_neighbours, text_map


def test_points_of_a_plane_keep_their_distances() -> None:
    random = np.random.default_rng(0)
    plane = random.normal(size=(40, 2))
    plane = (plane - plane.mean(0)) / plane.std(0)
    found = text_map(np.concatenate([plane, plane[:, :1]], axis=1))  # a third dimension that says nothing new
    assert sum(found.explained) == pytest.approx(1.0)
    wide = np.concatenate([plane, plane[:, :1]], axis=1)
    before, after = (np.linalg.norm(some[:, None] - some, axis=2) for some in (wide, found.places))
    assert np.allclose(after / after.max(), before / before.max())
    assert found.places.min() >= 0 and found.places.max() <= 1


def test_it_is_the_analysis_of_scikit_learn() -> None:
    from sklearn.decomposition import PCA
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import StandardScaler

    vectors = np.random.default_rng(1).normal(size=(60, 30)) @ np.random.default_rng(2).normal(size=(30, 30))
    standard = StandardScaler().fit_transform(vectors)
    found, expected = text_map(vectors.astype(np.float32)), PCA(2).fit(standard)
    assert found.explained == pytest.approx(tuple(expected.explained_variance_ratio_), abs=1e-5)
    projected = expected.transform(standard)
    for axis in range(2):
        assert abs(np.corrcoef(found.places[:, axis], projected[:, axis])[0, 1]) == pytest.approx(1.0, abs=1e-4)
    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(standard).kneighbors(return_distance=False)
    assert (np.sort(found.neighbours) == np.sort(near)).mean() > 0.99


def test_a_large_dimension_is_not_the_whole_map_and_a_constant_one_is_left_out() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 5))
    scaled = vectors * [1, 1, 1000, 1, 1] + [0, 0, 0, 0, 7]
    constant = np.concatenate([scaled, np.ones((30, 1))], axis=1)
    assert np.allclose(text_map(vectors).places, text_map(constant).places)


def test_shared_neighbours() -> None:
    random = np.random.default_rng(0)
    one, other = text_map(random.normal(size=(200, 8))), text_map(random.normal(size=(200, 8)))
    assert shared_neighbours(one, one)[0] == 1
    found, chance = shared_neighbours(one, other)
    assert found == pytest.approx(chance, abs=0.02) and chance == pytest.approx(10 / 199)


def test_neighbours_of_one_label() -> None:
    codes = np.arange(80) % 4
    apart = np.eye(4)[codes] * 10 + np.random.default_rng(0).normal(size=(80, 4))
    found, chance = same_label(text_map(apart).neighbours, codes)
    assert found == 1 and chance == pytest.approx(19 / 79)
    found, chance = same_label(text_map(np.random.default_rng(1).normal(size=(80, 4))).neighbours, codes)
    assert found == pytest.approx(chance, abs=0.08)


@pytest.mark.parametrize("texts", [3, 5])
def test_few_texts_have_few_neighbours(texts: int) -> None:
    found = text_map(np.random.default_rng(0).normal(size=(texts, 6)))
    assert found.neighbours.shape == (texts, texts - 1)
    assert np.isfinite(found.places).all()


def test_texts_that_are_all_alike_lie_on_one_place() -> None:
    found = text_map(np.ones((5, 3)))
    assert np.isfinite(found.places).all() and found.explained == (0.0, 0.0)
