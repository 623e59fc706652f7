"""Maps keep what two dimensions can keep; neighbours are those of all dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.proofs import ALL
from unmask.moe.atlas.maps import NEIGHBOURS, TextMap, same_label, shared_neighbours, text_map
from unmask.statistics.jackknife import jackknife_interval


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


def test_shared_neighbours() -> None:
    random = np.random.default_rng(0)
    one, other = text_map(random.normal(size=(200, 8))), text_map(random.normal(size=(200, 8)))
    same = shared_neighbours(one, one)
    assert same.value == 1 and same.interval == (1, 1)
    found = shared_neighbours(one, other)
    assert found.value == pytest.approx(found.chance, abs=0.02) and found.chance == pytest.approx(10 / 199)
    assert found.interval is not None and found.interval[0] < found.chance < found.interval[1]


@pytest.mark.parametrize("texts", [8, 11, 12, 40])
def test_each_text_is_left_out_with_the_other_places_as_they_are(texts: int) -> None:
    random = np.random.default_rng(texts)
    order = np.stack([np.stack([random.permutation(np.delete(np.arange(texts), text)) for text in range(texts)]) for _ in "ab"])
    codes, kept = random.integers(3, size=texts), [own[:, : NEIGHBOURS + 1] for own in order]
    one, other = (TextMap(np.zeros((texts, 2)), (0.0, 0.0), own) for own in kept)

    def shares(left_out: int | None) -> tuple[float, float]:
        own = [text for text in range(texts) if text != left_out]
        lists = [[[near for near in whole[text] if near != left_out][:NEIGHBOURS] for text in own] for whole in order]
        both = [len(set(some) & set(others)) / len(some) for some, others in zip(*lists, strict=True)]
        alike = [np.mean(codes[some] == codes[text]) for text, some in zip(own, lists[0], strict=True)]
        return float(np.mean(both)), float(np.mean(alike))

    expected = np.array([shares(text) for text in range(texts)])
    for measure, found in enumerate((shared_neighbours(one, other), same_label(one, codes))):
        assert found.value == pytest.approx(shares(None)[measure])
        assert found.interval == pytest.approx(jackknife_interval(found.value, expected[:, measure], most=1.0))


def test_intervals_cover_what_other_texts_show() -> None:
    """Both maps see the same texts, each with noise of its own."""
    found = []
    for seed in range(300 if ALL else 60):
        random = np.random.default_rng(seed)
        codes = random.integers(3, size=60)
        texts = random.normal(size=(60, 5)) + 2 * np.eye(5)[codes]
        one, other = (text_map(texts + random.normal(size=texts.shape)) for _ in range(2))
        found.append(
            [[share.value, *(share.interval or ())] for share in (shared_neighbours(one, other), same_label(one, codes))]
        )
    value, low, high = np.moveaxis(np.array(found), 2, 0)
    truth = value.mean(axis=0)
    assert (((low <= truth) & (truth <= high)).mean(axis=0) >= 0.88).all()
    assert ((high - low).mean(axis=0) < 6 * value.std(axis=0)).all(), "not wide for nothing"
