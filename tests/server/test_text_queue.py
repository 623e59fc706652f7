"""The text queue: short texts go first, nothing starves, a batch stays within its budget and wastes little."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.encoding.batching import BATCH_OVERHEAD, plan
from unmask.server.text_queue import AGEING, TextQueue

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=40)
REQUESTS = st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), LENGTHS), max_size=8)


def add(queue: TextQueue, name: str, *lengths: int, group: str = "a") -> None:
    queue.add(name, group, [(length, f"{name}{position}") for position, length in enumerate(lengths)])


def values(queue: TextQueue, budget: int = 512) -> list[str]:
    """The next batch, by value."""
    return [text.value for text in queue.take(budget)]


def test_short_texts_and_small_requests_overtake() -> None:
    queue = TextQueue()
    add(queue, "document", 500)
    for number in range(10):
        add(queue, f"query{number}-", 10)
    assert len(values(queue)) == 10
    assert values(queue) == ["document0"]
    add(queue, "bulk", *[20] * 1000)
    values(queue, 200)
    add(queue, "query", 20)
    assert "query0" in values(queue, 200)


@pytest.mark.parametrize("tokens", [50, 300])
def test_a_long_text_is_overtaken_for_a_bounded_time(tokens: int) -> None:
    """Short texts keep arriving, twice as many as can be computed; eventually they queue behind the long text."""
    queue = TextQueue()
    add(queue, "document", tokens)
    arrived: dict[str, int] = {}
    overtaken_by: list[int] = []
    while "document0" not in (batch := values(queue, 100)):
        assert queue.clock < 4 * AGEING * tokens, "it starves"
        overtaken_by += [arrived[value] for value in batch]
        for number in range(20):
            add(queue, name := f"late{queue.clock}-{number}-", 10)
            arrived[f"{name}0"] = queue.clock
    assert max(overtaken_by, default=0) <= AGEING * tokens


def test_texts_whose_vectors_would_change_with_the_batch_do_not_share_it() -> None:
    """LongRoPE rotates by the longest text of a batch. A corpus is divided at the same lengths (`encoding.batching.plan`)."""
    queue = TextQueue()
    add(queue, "t", 4090, 4096, 4097)
    assert [values(queue, 32768), values(queue, 32768)] == [["t0", "t1"], ["t2"]]


@given(REQUESTS, st.integers(1, 1000))
def test_every_text_that_was_not_removed_is_taken_once_within_the_budget(
    requests: list[tuple[bool, str, list[int]]], budget: int
) -> None:
    queue = TextQueue()
    names = [f"{number}-" for number in range(len(requests))]
    for name, (_, group, lengths) in zip(names, requests, strict=True):
        add(queue, name, *lengths, group=group)
    for name, (removed, *_) in zip(names, requests, strict=True):
        if removed:
            queue.remove(name)
    taken = []
    while batch := queue.take(budget):
        assert len({text.group for text in batch}) == 1
        assert len(batch) == 1 or max(text.tokens for text in batch) * len(batch) <= budget
        taken += [(text.request, text.position) for text in batch]
        assert queue.tokens == sum(text.tokens for text in queue._waiting)
    assert sorted(taken) == sorted(
        (name, position)
        for name, (removed, _, lengths) in zip(names, requests, strict=True)
        if not removed
        for position in range(len(lengths))
    )


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_batches_of_a_queue_cost_little_more_than_those_of_a_plan(seed: int) -> None:
    """600 texts, as in a corpus: most are sentences, some are abstracts. The plan sees all of them; the queue goes by deadline."""
    draw = random.Random(seed)
    lengths = [
        max(2, int(draw.gauss(14, 5))) if draw.random() < 0.75 else max(60, int(draw.gauss(300, 90))) for _ in range(600)
    ]

    def cost(batches: list[list[int]]) -> int:
        return sum(max(batch) * len(batch) + BATCH_OVERHEAD for batch in batches)

    queue = TextQueue()
    add(queue, "all", *lengths)
    online = []
    while batch := queue.take(2048):
        online.append([text.tokens for text in batch])
    offline = [[lengths[index] for index in batch] for batch in plan(lengths, 2048)]
    assert cost(online) < 1.15 * cost(offline)
