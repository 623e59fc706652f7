"""Layer attribution: the attention of a head over layers, read back from an embedder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from unmask.embedder import Embedder
from unmask.encoding.heads import build_head
from unmask.errors import UnmaskError
from unmask.probing.attribution import attribute_layers
from unmask.reporting.probe_figures import draw_attribution

Pico = Callable[..., Embedder]


@pytest.fixture
def embedder(pico: Pico) -> Embedder:
    bare = pico("causal/plain/mean").backbone
    hidden, depth = bare.model.config.hidden_size, bare.depth
    return pico("causal/eos/layer-attention", head=build_head("layer-attention", hidden, depth))


def test_a_head_that_looks_at_one_layer_is_said_to(embedder: Embedder) -> None:
    head: Any = embedder.backbone.head
    with torch.no_grad():  # a key that is huge in the direction of every query
        even = attribute_layers(embedder, TEXTS)
        head.layers.mul_(0)
        head.layers[0] += 1000 * torch.randn(head.layers.shape[1])
    told = attribute_layers(embedder, TEXTS)
    assert not np.allclose(even.shares, told.shares)
    for found in (even, told):
        assert sum(found.shares) == pytest.approx(1, abs=1e-5)
        assert all(low <= high for low, high in zip(found.low, found.high, strict=True))


def test_shares_are_means_over_texts_whatever_their_batches(embedder: Embedder) -> None:
    together = np.array(attribute_layers(embedder, TEXTS).shares)
    apart = np.mean([attribute_layers(embedder, [text]).shares for text in TEXTS], axis=0)
    np.testing.assert_allclose(together, apart, atol=1e-5)
    found = attribute_layers(embedder, [*TEXTS, "One more text"])
    for share, bounds in zip(found.shares, found.intervals, strict=True):
        assert bounds is not None and bounds[0] <= share <= bounds[1] and bounds[0] < bounds[1]
    assert set(attribute_layers(embedder, TEXTS[:4]).intervals) == {None}


def test_a_figure_replaces_no_file_of_somebody_else_and_needs_an_ending(embedder: Embedder, tmp_path: Path) -> None:
    result = attribute_layers(embedder, TEXTS)
    (tmp_path / "mine.png").write_bytes(b"my own figure")
    with pytest.raises(
        UnmaskError, match=r"mine\.png' was not written by unmask, so it is not overwritten: give another file\."
    ):
        draw_attribution(result, tmp_path / "mine.png")
    assert (tmp_path / "mine.png").read_bytes() == b"my own figure"
    for name in ("layers.txt", "layers"):
        with pytest.raises(UnmaskError, match=f"A figure is written as png, svg, pdf: .* not '{name}'"):
            draw_attribution(result, tmp_path / name)
