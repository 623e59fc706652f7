"""The workbench: vectors are those of `encode`, passes are shared, and the work can be ended between batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conftest import TEXTS
from unmask.designs.design import parse_designs
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.ui.work import Stop, Stopped
from unmask.ui.workbench import Workbench

NAMES = ["mean", "last", "prompteol", "bidirectional-mean", "causal/plain/mean/zscore"]


def test_vectors_are_those_of_encode(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean")
    for one in Workbench(embedder, parse_designs("mean")).embed(NAMES, TEXTS, lambda _: None):
        expected = embedder.with_design(one.design).encode(TEXTS, normalize=True)
        assert np.allclose(one.vectors, expected, atol=2e-5), one.name


def test_the_same_design_twice_is_computed_once(pico: Callable[..., Embedder]) -> None:
    embedder, passes = pico("causal/plain/mean"), []
    workbench = Workbench(embedder, parse_designs("mean,last"))
    hook = embedder.backbone.model.register_forward_pre_hook(lambda *_: passes.append(1))
    first, second, third = workbench.embed(["mean", "causal/plain/mean", "last"], TEXTS[:2], lambda _: None)
    hook.remove()
    assert len(passes) == 1
    assert np.array_equal(first.vectors, second.vectors) and not np.array_equal(first.vectors, third.vectors)
    assert [first.name, second.name] == ["mean", "causal/plain/mean"]


def test_texts_that_are_cut_are_named(pico: Callable[..., Embedder]) -> None:
    workbench = Workbench(pico("causal/plain/mean", max_length=8), parse_designs("mean"))
    (found,) = workbench.embed(["mean"], ["short", "guitar " * 20, "x"], lambda _: None)
    assert found.cut == (1,)


def test_work_ends_at_the_next_batch(pico: Callable[..., Embedder]) -> None:
    workbench, stop, steps = Workbench(pico("causal/plain/mean", batch_tokens=8), parse_designs("mean")), Stop(), []

    def progress(done: int) -> None:
        steps.append(done)
        if len(steps) == 3:
            stop.set()
        stop(done)

    with pytest.raises(Stopped):
        workbench.embed(["mean"], TEXTS, progress)
    assert len(steps) == 3
    workbench.embed(["mean"], TEXTS, lambda _: None)  # and the model works on


def test_designs_that_were_not_used_for_long_are_forgotten_but_not_the_first(pico: Callable[..., Embedder]) -> None:
    workbench = Workbench(pico("causal/plain/mean"), parse_designs("mean"))
    kept = workbench.embedder("mean")
    for layer in (1, 2, 3):
        for pooling in ("mean", "last", "max", "first"):
            workbench.embedder(f"causal/plain/{pooling}@{layer}")
    assert workbench.embedder("mean") is kept
    assert len(workbench._embedders) < 12


def test_a_design_that_needs_a_head_is_refused(pico: Callable[..., Embedder]) -> None:
    workbench = Workbench(pico("causal/plain/mean"), parse_designs("mean"))
    with pytest.raises(UnmaskError, match="needs a trained head"):
        workbench.embedder("nv-embed")


def test_a_design_that_the_model_cannot_serve_is_refused_at_once(pico: Callable[..., Embedder]) -> None:
    designs: Any = parse_designs("routing")
    with pytest.raises(UnmaskError, match="routing weights"):
        Workbench(pico("causal/plain/mean"), designs)
