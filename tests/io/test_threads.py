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

from tests.conftest import TEXTS
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.encoder import Encoder
from unmask.io.threads import FairLock, lock_of

MANY = [f"Text {number} says " + " ".join(TEXTS[4].split()[: number % 9]) for number in range(120)]
Pico = Callable[..., Embedder]


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
    ("llama", "bidirectional/plain/mean@2"),
    ("olmoe", "causal/eol/last/sum:0.5"),
]


@pytest.mark.parametrize(("family", "design"), DESIGNS)
def test_texts_from_8_threads_are_those_of_one_call(pico: Pico, family: str, design: str) -> None:
    embedder = pico(design, family=family)
    expected = embedder.encode(MANY)
    parts = at_once([partial(embedder.encode, MANY[start::8]) for start in range(8)])
    # each thread makes other batches than the one call does, and sums of another shape are rounded otherwise
    for start, part in enumerate(parts):
        np.testing.assert_allclose(part, expected[start::8], rtol=1e-5, atol=1e-5)


def test_what_has_to_be_fitted_is_fitted_once(pico: Pico, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, fits, fit = pico("causal/plain/mean/zscore"), [], Encoder.fit

    def slow(self: Encoder, designs: Any, texts: Any) -> Any:
        fits.append(len(texts))
        time.sleep(0.05)
        return fit(self, designs, texts[:20])

    monkeypatch.setattr(Encoder, "fit", slow)
    found = at_once([lambda: embedder.encode(TEXTS)] * 6)
    assert len(fits) == 1
    assert all(np.array_equal(one, found[0]) for one in found)


# ---- several embedders, one model -----------------------------------------------------------------------------------


def together(embedder: Embedder, design: str, **options: Any) -> Embedder:
    """Another embedder of the same loaded model."""
    return Embedder.from_model(embedder.backbone.model, embedder.tokenizer, design, **options)


def on_one_backbone(embedder: Embedder, design: str, **options: Any) -> Embedder:
    """Another embedder of the same backbone."""
    return Embedder(embedder.encoder, Design.parse(design), **options)


def repeated(embedder: Embedder) -> list[Any]:
    return [embedder.encode(TEXTS) for _ in range(5)]


@pytest.mark.parametrize(("another", "family"), [(together, "llama"), (on_one_backbone, "olmoe")])
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


def test_an_embedder_is_saved_with_its_own_attention(pico: Pico, tmp_path: Path) -> None:
    from transformers import AutoConfig

    first = pico("causal/plain/mean")
    embedders = [first, together(first, "bidirectional/plain/mean")]
    embedders[0].save_pretrained(tmp_path / "saved")
    assert AutoConfig.from_pretrained(tmp_path / "saved").is_causal is True
    assert np.array_equal(Embedder.from_pretrained(tmp_path / "saved").encode(TEXTS), embedders[0].encode(TEXTS))


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
