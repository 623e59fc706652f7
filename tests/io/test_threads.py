"""A loaded model and a tokenizer may be shared, by embedders and by threads, and each call gets its own vectors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS, make_tokenizer
from tests.families import FAMILIES
from tests.proofs import ALL
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.heads import HEADS, build_head
from unmask.errors import AttentionError
from unmask.io.threads import FairLock, lock_of

MANY = [f"Text {number} says " + " ".join(TEXTS[4].split()[: number % 9]) for number in range(400 if ALL else 120)]
Pico = Callable[..., Embedder]


def headed(kind: str) -> Embedder:
    model = FAMILIES["llama"].build()
    torch.manual_seed(3)
    return Embedder.from_model(model, make_tokenizer(), f"causal/plain/{kind}", head=build_head(kind, 64, 3))


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """The results of calls that all begin at the same moment, each in a thread of its own."""
    ready = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        ready.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(run, call) for call in calls]]


# ---- one embedder, many threads -------------------------------------------------------------------------------------

DESIGNS = [
    ("llama", "causal/eol/last"),
    ("llama", "bidirectional/plain/mean@2"),
    ("llama", "causal/plain/mean@all"),
    ("olmoe", "causal/plain/last/routing"),
    ("olmoe", "causal/eol/last/sum:0.5"),
]
HEADS_TRIED = ["cross-attention", "layer-attention"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("family", "design"), [*DESIGNS, *(("head", kind) for kind in HEADS_TRIED)])
def test_texts_from_8_threads_are_those_of_one_call(pico: Pico, family: str, design: str) -> None:
    embedder = headed(design) if family == "head" else pico(design, family=family)
    expected = embedder.encode(MANY)
    parts = at_once([partial(embedder.encode, MANY[start::8]) for start in range(8)])
    # each thread makes other batches than the one call does, and sums of another shape are rounded otherwise
    for start, part in enumerate(parts):
        np.testing.assert_allclose(part, expected[start::8], rtol=1e-5, atol=1e-5)


def test_threads_with_the_same_texts_get_the_same_bits(pico: Pico) -> None:
    embedder = pico("causal/plain/mean@2")
    expected = embedder.encode(MANY[:100])
    for found in at_once([lambda: embedder.encode(MANY[:100])] * 4):
        assert np.array_equal(found, expected)


def test_what_has_to_be_fitted_is_fitted_once(pico: Pico, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, fits, fit = pico("causal/plain/mean/zscore"), [], Embedder.fit

    def slow(self: Embedder, texts: Any) -> Embedder:
        fits.append(len(texts))
        time.sleep(0.05)
        return fit(self, texts[:20])

    monkeypatch.setattr(Embedder, "fit", slow)
    found = at_once([lambda: embedder.encode(TEXTS)] * 6)
    assert len(fits) == 1
    assert all(np.array_equal(one, found[0]) for one in found)


def test_a_tokenizer_that_was_saved_with_truncation_serves_threads() -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(max_length=4)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    embedder = Embedder.from_model(FAMILIES["llama"].build(), tokenizer, "causal/plain/mean@1")
    parts = at_once([partial(embedder.encode, MANY[start::8]) for start in range(8)])
    expected = Embedder.from_model(embedder.backbone.model, make_tokenizer(), "causal/plain/mean@1").encode(MANY)
    for start, part in enumerate(parts):
        np.testing.assert_allclose(part, expected[start::8], rtol=1e-5, atol=1e-5)


# ---- several embedders, one model -----------------------------------------------------------------------------------


def together(embedder: Embedder, design: str, **options: Any) -> Embedder:
    """Another embedder of the same loaded model."""
    return Embedder.from_model(embedder.backbone.model, embedder.tokenizer, design, **options)


def on_one_backbone(embedder: Embedder, design: str, **options: Any) -> Embedder:
    """Another embedder of the same backbone."""
    head = options.pop("head", None)
    encoder = embedder.encoder if head is None else embedder.encoder.with_head(head)
    return Embedder(encoder, Design.parse(design), **options)


def repeated(embedder: Embedder) -> list[Any]:
    return [embedder.encode(TEXTS) for _ in range(5)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("another", [together, on_one_backbone])
@pytest.mark.parametrize("family", ["llama", "olmoe"])
def test_each_embedder_of_a_model_gives_its_own_vectors(pico: Pico, family: str, another: Callable[..., Embedder]) -> None:
    designs = ["causal/plain/mean", "bidirectional/plain/mean", "causal/eol/last@2", "bidirectional/plain/last@all"]
    expected = [pico(design, family=family).encode(TEXTS) for design in designs]
    first = pico(designs[0], family=family)
    embedders = [first, *(another(first, design) for design in designs[1:])]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [1, 1, 0, 3]):
        for place in order:
            assert np.array_equal(embedders[place].encode(TEXTS), expected[place]), designs[place]
    found = at_once([partial(repeated, one) for one in [*embedders, *embedders]])
    for place, several in enumerate(found):
        assert all(np.array_equal(one, expected[place % 4]) for one in several), designs[place % 4]
    assert [one.backbone.proof.attention for one in embedders] == [Design.parse(one).attention for one in designs]


@pytest.mark.parametrize("another", [together, on_one_backbone])
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_its_own_embedders(kind: str, another: Callable[..., Embedder], pico: Pico) -> None:
    plain = pico("causal/plain/mean")
    expected = plain.encode(TEXTS)
    torch.manual_seed(1)
    heads = [build_head(kind, 64, 3) for _ in range(2)]
    one, other = (another(plain, f"causal/plain/{kind}", head=head) for head in heads)
    before = one.encode(TEXTS)
    assert not np.allclose(before, other.encode(TEXTS))
    assert np.array_equal(one.encode(TEXTS), before)
    assert plain.backbone.head is None and np.array_equal(plain.encode(TEXTS), expected)


@pytest.mark.parametrize("saved", [0, 1])
def test_an_embedder_is_saved_with_its_own_attention(pico: Pico, saved: int, tmp_path: Path) -> None:
    from transformers import AutoConfig

    first = pico("causal/plain/mean")
    embedders = [first, together(first, "bidirectional/plain/mean")]
    embedders[saved].save_pretrained(tmp_path / "saved")
    assert AutoConfig.from_pretrained(tmp_path / "saved").is_causal == (saved == 0)
    assert np.array_equal(Embedder.from_pretrained(tmp_path / "saved").encode(TEXTS), embedders[saved].encode(TEXTS))


def test_an_attention_that_is_refused_leaves_the_model_as_it_was(pico: Pico) -> None:
    embedder = pico("causal/plain/mean", family="mamba")
    before = dict(vars(embedder.backbone.model.config))
    with pytest.raises(AttentionError):
        embedder.backbone.set_attention("bidirectional")
    assert vars(embedder.backbone.model.config) == before and embedder.backbone.attention == "causal"


# ---- the lock -------------------------------------------------------------------------------------------------------


def test_whoever_waits_is_next() -> None:
    lock, turns, done = FairLock(), [0], threading.Event()

    def hog() -> None:
        while not done.is_set():
            with lock:
                turns[0] += 1
                time.sleep(0.001)

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        for _ in range(20):
            before = turns[0]
            with lock:
                assert turns[0] - before <= 2
    finally:
        done.set()
        thread.join()


def test_a_lock_may_be_taken_again_and_is_let_go_on_errors() -> None:
    lock = FairLock()
    with pytest.raises(ValueError, match="stop"), lock, lock:
        raise ValueError("stop")
    assert at_once([lambda: lock.__enter__() or lock.__exit__(None, None, None)]) == [None]  # type: ignore[func-returns-value]


def test_a_lock_belongs_to_an_object_as_long_as_it_lives() -> None:
    class Thing:
        pass

    one, other = Thing(), Thing()
    assert lock_of(one) is lock_of(one) and lock_of(one) is not lock_of(other)
