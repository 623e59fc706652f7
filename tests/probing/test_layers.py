"""Layers: cosines by hand, scores that `score_designs` gives as well, and which layers are not told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TEXTS
from tests.probing.models import pico_model
from tests.tiny import write_task
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.evaluation.results import ResultStore
from unmask.evaluation.scoring import ScoringPlan, score_designs
from unmask.models.loading import Source
from unmask.probing.layers import (
    cosine_between_layers,
    intrinsic_dimension,
    layer_designs,
    next_layers,
    probe_layers,
    score_layers,
)
from unmask.saving.load_model import load_encoder
from unmask.tasks.find import find_task

MEAN = Design("causal", "plain", "mean")


def test_cosines_by_hand() -> None:
    """Two texts in two layers: cosines 1 and 0.6 across; layer against itself 1."""
    stack = np.array([[[3.0, 4.0], [1.0, 0.0]], [[6.0, 8.0], [3.0, 4.0]]])
    np.testing.assert_allclose(cosine_between_layers(stack), [[1, 0.8], [0.8, 1]])
    assert [one.value for one in next_layers(stack)] == pytest.approx([0.8])


def test_the_intrinsic_dimension_is_that_of_the_space_in_which_vectors_lie() -> None:
    generator = np.random.default_rng(0)
    plane = generator.normal(size=(2000, 4)) @ generator.normal(size=(4, 50))
    assert intrinsic_dimension(plane) == pytest.approx(4, rel=0.1)


def test_layers_of_a_model_are_those_of_an_embedder(tokenizer: Any, pico: Callable[..., Embedder]) -> None:
    found = probe_layers(pico_model(tokenizer, "causal"), MEAN, TEXTS)
    distinct = list(dict.fromkeys(TEXTS))
    vectors = [pico(f"causal/plain/mean@{layer}").encode(distinct) for layer in (1, 2, 3)]
    expected = cosine_between_layers(np.stack(vectors).astype(np.float64))
    np.testing.assert_allclose(found.cosine, expected, atol=1e-5)
    np.testing.assert_allclose(vectors[2], pico("causal/plain/mean").encode(distinct), atol=1e-6)  # after the final norm
    assert [one.value for one in found.next_cosine] == pytest.approx([expected[0, 1], expected[1, 2]], abs=1e-5)
    centred = np.stack(vectors).astype(np.float64)
    centred -= centred.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(found.centred, cosine_between_layers(centred), atol=1e-5)
    for estimate in found.next_centred:
        assert estimate.interval[0] <= estimate.value <= estimate.interval[1]
    assert (found.texts, found.scores) == (len(distinct), ())
    assert json.loads(json.dumps(found.as_json()))["provenance"]["design"] == MEAN.name


@pytest.mark.parametrize("kind", ["sts", "clustering"])
def test_scores_are_those_that_compare_gives(kind: str, pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    task, source = find_task(str(write_task(tmp_path / "task", kind))), Source(str(pico_folder("llama")), dtype="float32")
    designs = layer_designs(MEAN, 3)
    found = score_layers(load_encoder(source, "causal"), designs, task)
    expected = score_designs(
        ScoringPlan(source, {one.name: one for one in designs}, [task], 512, []), ResultStore(tmp_path / "report")
    )
    assert found.scores == pytest.approx([result.main_score for result in expected])
    assert found.intervals is not None
    for own, result in zip(found.intervals, expected, strict=True):
        assert own == pytest.approx(result.interval)
    assert found.scores[found.best - 1] == max(found.scores) and found.best in found.level


def test_a_layer_that_is_worse_is_told_from_the_best(tokenizer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Layer 2 knows the words of a text, layers 1 and 3 know nothing."""
    from tests.tiny import encode_words

    class Told:
        def __init__(self, *_: Any) -> None:
            self.noise = {place: np.random.default_rng(place) for place in (1, 3)}

        def get(self, design: Any, texts: Any, _: Any) -> Any:
            vectors = encode_words(texts) if design.layer == 2 else self.noise[design.layer].normal(size=(len(texts), 16))
            return vectors.astype(np.float32)

    monkeypatch.setattr("unmask.probing.layers.CachedPass", Told)
    task = find_task(str(write_task(tmp_path / "task", "sts")))
    found = score_layers(pico_model(tokenizer, "causal"), layer_designs(MEAN, 3), task)
    assert (found.best, found.level, found.metric, found.n) == (2, (2,), "cosine_spearman", 24)


@pytest.mark.parametrize(
    "name", ["causal/plain/mean@2", "causal/plain/mean@all", "causal/plain/mean/routing", "causal/eos/layer-attention"]
)
def test_a_design_that_has_no_layer_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(UnmaskError, match="without '@layer'"):
        layer_designs(Design.parse(name), 3)
