"""Replicas: several threads give the vectors of one, for every family and feature; what a copy would share is computed by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.families import EACH_KIND, FAMILIES
from tests.proofs import ALL
from unmask.embedder import Embedder
from unmask.encoding import batching, replicas

TEXTS = [f"{'A long text about guitars. ' * (place % 5)}Text {place}." for place in range(24)]

PREFIX = '"A prompt with a prefix that is long enough for its keys and values to be cached: {text}"'


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine of two cores, with texts enough to be worth it."""
    monkeypatch.setattr(replicas, "_cores", lambda: 2)
    monkeypatch.setattr(replicas, "_MIN_TOKENS", 1)
    monkeypatch.setattr(batching, "_MIN_BATCH", 64)


def threads_of(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that compute, noted while they do."""
    seen: set[str] = set()
    forward = type(embedder.backbone.model).forward

    def noting(self: Any, *given: Any, **named: Any) -> Any:
        seen.add(threading.current_thread().name)
        return forward(self, *given, **named)

    monkeypatch.setattr(type(embedder.backbone.model), "forward", noting)
    return seen


@pytest.mark.sample(6)
@pytest.mark.parametrize("family", FAMILIES if ALL else EACH_KIND)
def test_two_threads_give_the_vectors_of_one(
    family: str, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    embedder = pico("causal/plain/mean@all", family=family, batch_tokens=64)
    alone = embedder.encode(TEXTS)
    request.getfixturevalue("two_cores")
    seen = threads_of(embedder, monkeypatch)
    assert np.array_equal(embedder.encode(TEXTS), alone)
    assert seen and "MainThread" not in seen


@pytest.mark.parametrize("design", ["bidirectional/plain/mean", "causal/plain/last/routing", f"causal/{PREFIX}/last/concat"])
def test_attention_and_routing_are_those_of_the_model(
    design: str, pico: Callable[..., Embedder], request: pytest.FixtureRequest
) -> None:
    embedder = pico(design, family="olmoe", batch_tokens=64)
    alone = embedder.encode(TEXTS)
    request.getfixturevalue("two_cores")
    assert np.array_equal(embedder.encode(TEXTS), alone)


def test_replicas_hold_the_weights_of_the_model_and_buffers_of_their_own(pico: Callable[..., Embedder]) -> None:
    backbone = pico().backbone
    replica = replicas.replica(backbone)
    assert replica.model is not backbone.model
    ours, theirs = dict(backbone.model.named_parameters()), dict(replica.model.named_parameters())
    assert ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)
    ours, theirs = dict(backbone.model.named_buffers()), dict(replica.model.named_buffers())
    assert ours and all(ours[name].data_ptr() != theirs[name].data_ptr() for name in ours)  # LongRoPE writes into them
    assert replica.layers[0] is next(module for name, module in replica.model.named_modules() if name == "layers.0")


def test_a_model_with_hooks_is_computed_by_one_thread(
    two_cores: None, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = pico(batch_tokens=64)
    calls: list[nn.Module] = []
    with embedder.backbone.layers[0].register_forward_pre_hook(lambda module, _: calls.append(module)):
        seen = threads_of(embedder, monkeypatch)
        embedder.encode(TEXTS)
    assert seen == {"MainThread"} and set(calls) == {embedder.backbone.layers[0]}


def test_a_thread_that_starts_meanwhile_keeps_all_cores() -> None:
    seen: list[int] = []
    torch.set_num_threads(2)
    try:
        with replicas._one_core_each(2) as pool:
            computing = set(pool.map(lambda _: (torch.ones(9).sum(), torch.get_num_threads())[1], range(8)))
            other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            other.start()
            other.join()
        assert (computing, seen, torch.get_num_threads()) == ({1}, [2], 2)
    finally:
        torch.set_num_threads(1)


@pytest.mark.timeout(60)
def test_an_error_in_a_thread_reaches_the_caller(
    two_cores: None, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = pico(batch_tokens=64)
    failed = threading.Event()

    def failing(*_: Any, **__: Any) -> Any:
        if failed.is_set():
            time.sleep(0.3)  # at the end of the pool this thread computes
        failed.set()
        raise MemoryError("no more memory")

    monkeypatch.setattr(type(embedder.backbone.model), "forward", failing)
    with pytest.raises(MemoryError, match="no more memory"):
        embedder.encode(TEXTS)
    assert torch.get_num_threads() == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unmask-replica")]
