"""The text queue: short texts go first, nothing waits for ever, a batch stays within its budget and wastes little."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.encoding.batching import BATCH_OVERHEAD, plan
from unmask.server.text_queue import AGEING, TextQueue, share_batch

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=40)


def add(queue: TextQueue, name: str, *lengths: int, group: str = "a") -> None:
    queue.add(name, group, [(length, f"{name}{place}") for place, length in enumerate(lengths)])


def values(queue: TextQueue, budget: int = 512) -> list[str]:
    """The next batch, by value."""
    return [text.value for text in queue.take(budget)]


def test_short_texts_that_come_later_go_before_a_long_one() -> None:
    queue = TextQueue()
    add(queue, "document", 500)
    for number in range(10):
        add(queue, f"query{number}-", 10)
    assert len(values(queue)) == 10
    assert values(queue) == ["document0"]


def test_a_small_request_goes_before_the_rest_of_a_large_one() -> None:
    queue = TextQueue()
    add(queue, "bulk", *[20] * 1000)
    values(queue, 200)
    add(queue, "query", 20)
    assert "query0" in values(queue, 200)


@pytest.mark.parametrize("tokens", [50, 300])
def test_a_long_text_lets_short_ones_go_first_for_a_bounded_time(tokens: int) -> None:
    """Short texts keep coming, twice as many as can be computed; from some time on, they come behind the long text."""
    queue, budget = TextQueue(), 100
    add(queue, "document", tokens)
    add(queue, "early", *[10] * 5)
    came = {f"early{number}": 0 for number in range(5)}
    overtaken_by: list[int] = []
    while "document0" not in (batch := values(queue, budget)):
        assert queue.clock < 4 * AGEING * tokens, "it starves"
        overtaken_by += [came[value] for value in batch]
        for number in range(20):
            add(queue, name := f"late{queue.clock}-{number}-", 10)
            came[f"{name}0"] = queue.clock
    assert max(overtaken_by, default=0) <= AGEING * tokens


def test_texts_of_two_groups_never_share_a_batch() -> None:
    queue = TextQueue()
    add(queue, "one", 10, 10)
    add(queue, "two", 10, group="b")
    assert values(queue) == ["one0", "one1"]
    assert values(queue) == ["two0"]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), LENGTHS), max_size=8), st.integers(1, 1000))
def test_batches_are_those_of_a_queue_that_never_had_what_was_removed(
    requests: list[tuple[bool, str, list[int]]], budget: int
) -> None:
    queue, without = TextQueue(), TextQueue()
    for number, (removed, group, lengths) in enumerate(requests):
        add(queue, f"{number}-", *lengths, group=group)
        if not removed:
            add(without, f"{number}-", *lengths, group=group)
    for number, (removed, _, _) in enumerate(requests):
        if removed:
            queue.remove(f"{number}-")
    while batch := values(queue, budget):
        assert batch == values(without, budget) and (len(queue), queue.tokens) == (len(without), without.tokens)
    assert len(without) == 0


def test_a_long_text_joins_no_short_ones_and_no_text_is_split() -> None:
    assert share_batch([10, 10, 300], 0, 2048) == (0, 2)
    assert share_batch([10, 10, 300], 2, 2048) == (2, 3)
    assert share_batch([700], 0, 512) == (0, 1)
    assert share_batch([700, 700], 0, 512) == (0, 1)
    assert share_batch([10, 12, 40, 44], 0, 2048)[0] == 0


def test_texts_whose_vectors_would_change_with_the_batch_share_none() -> None:
    """LongRoPE rotates by the longest text of a batch. A corpus is divided at the same lengths (`encoding.batching.plan`)."""
    assert share_batch([4090, 4096], 0, 32768) == (0, 2)
    assert share_batch([4090, 4096, 4097], 0, 32768) == (0, 2)
    assert share_batch([4090, 4096, 4097], 2, 32768) == (2, 3)


@given(LENGTHS, st.integers(1, 2048), st.data())
def test_a_batch_holds_its_first_text_and_stays_within_the_budget(lengths: list[int], budget: int, data: st.DataObject) -> None:
    lengths.sort()
    first = data.draw(st.integers(0, len(lengths) - 1))
    start, stop = share_batch(lengths, first, budget)
    assert start <= first < stop
    assert stop - start == 1 or lengths[stop - 1] * (stop - start) <= budget


@given(st.lists(st.tuples(st.sampled_from("ab"), LENGTHS), max_size=8), st.integers(1, 1000))
def test_every_text_is_taken_once(requests: list[tuple[str, list[int]]], budget: int) -> None:
    queue = TextQueue()
    for number, (group, lengths) in enumerate(requests):
        add(queue, f"{number}-", *lengths, group=group)
    taken = []
    while batch := queue.take(budget):
        assert len({text.group for text in batch}) == 1
        taken += [(text.request, text.position) for text in batch]
        assert queue.tokens == sum(text.tokens for text in queue._waiting)
    assert sorted(taken) == sorted((f"{n}-", place) for n, (_, lengths) in enumerate(requests) for place in range(len(lengths)))
    assert queue.tokens == len(queue) == 0


@settings(max_examples=50)
@given(st.integers(0, 10_000))
def test_batches_of_a_queue_cost_little_more_than_those_of_a_plan(seed: int) -> None:
    """600 texts, as in a corpus: most are sentences, some are abstracts. The plan knows all of them; the queue goes by turns."""
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
    offline = [[lengths[place] for place in batch] for batch in plan(lengths, 2048)]
    assert cost(online) < 1.15 * cost(offline)
