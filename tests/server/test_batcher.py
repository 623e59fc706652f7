"""The batcher: answers are complete and in order, a text fails alone, cancelled texts are not computed, nothing is lost at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import pytest

from unmask.server.batcher import Batcher, Closed, Full


class Model:
    """A model whose vector of a text is the text, doubled. It records its batches, and waits while `gate` is closed."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def __call__(self, worker: int, group: Hashable, values: Sequence[str]) -> list[str]:
        self.batches.append(list(values))
        self.entered.set()
        assert self.gate.wait(10)
        if "bad" in values:
            raise RuntimeError("bad")
        return [value * 2 for value in values]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def observed() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def batcher(model: Model, observed: list[tuple[int, int]]) -> Iterator[Batcher]:
    batcher = Batcher(model, budget=100, capacity=1000, observe=lambda texts, tokens, seconds: observed.append((texts, tokens)))
    yield batcher
    model.gate.set()
    batcher.close(10)


def texts(*values: str, tokens: int = 10) -> list[tuple[int, str]]:
    return [(tokens, value) for value in values]


@contextmanager
def busy(batcher: Batcher, model: Model) -> Iterator[Future[list[Any]]]:
    """While the model computes a batch, and what is submitted has to wait."""
    model.gate.clear()
    model.entered.clear()
    first = batcher.submit("other", texts("first"))
    assert model.entered.wait(10)
    yield first
    model.gate.set()


def test_requests_of_several_workers(model: Model) -> None:
    seen: set[int] = set()

    def compute(worker: int, group: Hashable, values: Sequence[str]) -> list[str]:
        seen.add(worker)
        time.sleep(0.002)
        return model(worker, group, values)

    batcher = Batcher(compute, budget=40, capacity=10**6, workers=3)
    futures = [(batcher.submit(n % 2, texts(*(f"{n}.{index}" for index in range(n)))), n) for n in range(1, 40)]
    for future, n in futures:
        assert future.result(10) == [f"{n}.{index}" * 2 for index in range(n)]
    assert seen == {0, 1, 2}
    batcher.close(10)
    assert not batcher.alive


def test_texts_of_several_requests_share_a_batch(batcher: Batcher, model: Model, observed: list[tuple[int, int]]) -> None:
    with busy(batcher, model):
        futures = [batcher.submit("a", texts(f"t{number}")) for number in range(8)]
    wait(futures, 10)
    assert model.batches == [["first"], [f"t{number}" for number in range(8)]]
    assert observed == [(1, 10), (8, 80)]


def test_the_failure_of_a_text_is_that_of_its_request_alone(batcher: Batcher, model: Model) -> None:
    with busy(batcher, model):
        good = [batcher.submit("a", texts(f"good{number}")) for number in range(4)]
        bad = batcher.submit("a", texts("fine", "bad"))
    assert [future.result(10) for future in good] == [[f"good{number}" * 2] for number in range(4)]
    with pytest.raises(RuntimeError, match="bad"):
        bad.result(10)
    assert batcher.submit("a", texts("next")).result(10) == ["nextnext"]


def test_a_cancelled_request_is_not_computed(batcher: Batcher, model: Model) -> None:
    with busy(batcher, model):
        gone = batcher.submit("a", texts("gone", "gone too"))
        stays = batcher.submit("a", texts("stays"))
        assert batcher.waiting == (3, 30)
        assert gone.cancel()
        assert batcher.waiting == (1, 10)
    assert stays.result(10) == ["staysstays"]
    assert model.batches == [["first"], ["stays"]]


def test_a_full_queue_refuses(batcher: Batcher, model: Model) -> None:
    with busy(batcher, model):
        waiting = [batcher.submit("a", [(1500, "x")])]  # an empty queue accepts any request
        with pytest.raises(Full):
            batcher.submit("a", [(1, "z")])
    wait(waiting, 10)
    assert batcher.submit("a", texts("again")).result(10) == ["againagain"]


def test_closing_computes_what_was_accepted_and_refuses_what_is_new(batcher: Batcher, model: Model) -> None:
    with busy(batcher, model) as first:
        accepted = batcher.submit("a", texts("accepted"))
        closing = threading.Thread(target=batcher.close)
        closing.start()
        time.sleep(0.05)
        with pytest.raises(Closed):
            batcher.submit("a", texts("late"))
    closing.join(10)
    assert (first.result(0), accepted.result(0)) == (["firstfirst"], ["acceptedaccepted"])
    assert not batcher.alive


def test_texts_that_are_not_computed_before_the_timeout_fail(batcher: Batcher, model: Model) -> None:
    with busy(batcher, model):
        waiting = batcher.submit("a", texts("waiting", "too"))
        batcher.close(0.05)
        with pytest.raises(Closed):
            waiting.result(1)
