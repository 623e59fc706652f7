"""A schedule is fixed by its seed; its batches come from one data set each, hold no text twice, and waste no example."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from unmask.errors import UnmaskError
from unmask.starter import reference_texts
from unmask.training.data import DataSet, DataSource, Example
from unmask.training.schedule import Neighbours, ScheduledExample, contrastive_schedule, language_schedule

BATCH = 8


def data_set(name: str, texts: Sequence[tuple[str, ...]], weight: float | None = None) -> DataSet:
    examples = [Example(line, text) for line, text in enumerate(texts, start=1)]
    return DataSet(name, ("anchor", "positive"), examples, DataSource(path=name, weight=weight), {})


def distinct(name: str, size: int, weight: float | None = None) -> DataSet:
    return data_set(name, [(f"{name} question {n}", f"{name} answer {n}") for n in range(size)], weight)


def batches(rows: list[ScheduledExample], batch: int = BATCH) -> list[list[ScheduledExample]]:
    return [rows[at : at + batch] for at in range(0, len(rows), batch)]


@pytest.mark.parametrize(("size", "weight"), [(60, None), (20, 60), (80, 60)])
def test_sets_are_drawn_in_proportion_to_their_sizes_or_weights(size: int, weight: float | None) -> None:
    rows = contrastive_schedule([distinct("small", 20), distinct("large", size, weight)], 400, BATCH, 0)
    assert all(len({row.data.name for row in batch}) == 1 for batch in batches(rows)), "every batch is of one data set"
    share = sum(batch[0].data.name == "large" for batch in batches(rows)) / 400
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 400) ** 0.5


@pytest.mark.parametrize("size", [16, 20])
def test_every_example_is_used_once_in_a_pass(size: int) -> None:
    """Also where a pass ends inside a batch."""
    rows = contrastive_schedule([distinct("a", size)], 3 * size // BATCH, BATCH, 0)
    used = [row.example.row for row in rows]
    # an example that the next pass repeats within the batch waits, so a pass may end a few places later
    for passed in range(1, 3):
        counts = Counter(used[: passed * size])
        assert sum(abs(counts[line] - passed) for line in range(1, size + 1)) <= (0 if size % BATCH == 0 else 2 * BATCH)
    assert max(Counter(used).values()) - min(Counter(used).values()) <= (0 if size % BATCH == 0 else 1)


def test_copies_that_differ_in_case_spaces_or_punctuation_are_one_text() -> None:
    """Also where a copy is the answer of another question."""
    copies = [("Who is it", "first answer"), ("second question", "WHO  is\nit?")]
    rows = contrastive_schedule([data_set("a", copies + [(f"question {n}", f"reply {n}") for n in range(10)])], 40, BATCH, 0)
    found = [{1, 2} & {row.example.row for row in batch} for batch in batches(rows)]
    assert {1} in found and {2} in found and {1, 2} not in found
    with pytest.raises(UnmaskError, match="cannot fill a batch of 2"):
        contrastive_schedule([data_set("a", copies)], 1, 2, 0)


@pytest.mark.parametrize("similar", [1, 4])
def test_a_longer_schedule_begins_with_the_shorter_one(similar: int) -> None:
    sets = [by_topic(64), distinct("b", 50)]
    longer = contrastive_schedule(sets, 40, BATCH, 3, similar)
    assert contrastive_schedule(sets, 7, BATCH, 3, similar) == longer[: 7 * BATCH]


def test_a_schedule_is_a_function_of_its_seed() -> None:
    sets = [distinct("a", 30), distinct("b", 50)]
    assert contrastive_schedule(sets, 9, BATCH, 1) == contrastive_schedule(sets, 9, BATCH, 1)
    assert contrastive_schedule(sets, 9, BATCH, 1) != contrastive_schedule(sets, 9, BATCH, 2)
    assert language_schedule(range(1, 50), 9, BATCH, 1) == language_schedule(range(1, 50), 9, BATCH, 1)
    assert language_schedule(range(1, 50), 9, BATCH, 1) != language_schedule(range(1, 50), 9, BATCH, 2)


TOPICS = ["guitar drum choir", "goal race medal", "court judge law", "flour oven bread"]


def by_topic(size: int) -> DataSet:
    """Texts of four topics in turn: those of one topic share three words, those of two topics share none."""
    return data_set("a", [(f"{TOPICS[n % 4]} w{n}", f"answer {n}") for n in range(size)])


def topics(rows: Sequence[ScheduledExample]) -> list[int]:
    return [(row.example.row - 1) % 4 for row in rows]


@pytest.mark.parametrize("group", [2, 8])
def test_similar_examples_come_in_groups(group: int) -> None:
    rows = contrastive_schedule([by_topic(64)], 8, BATCH, 0, group)
    for at in range(0, 64, group):
        assert len(set(topics(rows[at : at + group]))) == 1
    assert len({tuple(topics(rows)[at : at + group]) for at in range(0, 64, group)}) == 4, "groups come in a random order"
    assert sorted(row.example.row for row in rows) == list(range(1, 65)), "each example once in a pass"
    alone = contrastive_schedule([by_topic(64)], 8, BATCH, 0)
    assert max(Counter(topics(alone[:BATCH])).values()) < BATCH, "without groups a batch has several topics"


def test_a_set_that_cannot_fill_a_batch_is_refused() -> None:
    with pytest.raises(UnmaskError, match="'a' has 7 examples, fewer than one batch of 8: lower the batch"):
        contrastive_schedule([distinct("a", 7)], 1, BATCH, 0)
    with pytest.raises(UnmaskError, match="'a' cannot fill a batch of 8 without repeating a text"):
        contrastive_schedule([data_set("a", [("same", f"answer {n}") for n in range(20)])], 1, BATCH, 0)


@pytest.mark.parametrize(("chunks", "steps", "batch"), [(256, 32, 8), (256, 64, 8), (300, 40, 5), (3, 4, 8)])
def test_every_chunk_is_used_equally_often(chunks: int, steps: int, batch: int) -> None:
    order = language_schedule([1 + n % 17 for n in range(chunks)], steps, batch, 0)
    counts = Counter(order)
    assert len(order) == steps * batch
    assert max(counts.values()) - min(counts[index] for index in range(chunks)) <= (steps * batch % chunks != 0)


def test_chunks_of_similar_length_come_together() -> None:
    lengths = [1 + (n * 7919) % 100 for n in range(256)]
    order = language_schedule(lengths, 32, BATCH, 0)
    spread = [
        max(lengths[i] for i in order[at : at + BATCH]) - min(lengths[i] for i in order[at : at + BATCH])
        for at in range(0, 256, 8)
    ]
    assert max(spread) <= 6
    longest = [max(lengths[i] for i in order[at : at + BATCH]) for at in range(0, 256, 8)]
    assert longest != sorted(longest), "a run that goes from short to long learns in that order"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_examples_that_wait_come_first_and_in_their_order(pairs: list[tuple[int, int]], seed: int) -> None:
    """The plain way: in every batch, each example that waits is tried again, in order, and then those of the pass."""
    data = data_set("a", [(f"q{question}", f"a{answer}") for question, answer in pairs])
    try:
        found = [row.example for row in contrastive_schedule([data], 12, 3, seed)]
    except UnmaskError:
        return
    generator = random.Random(f"{seed}:a")
    order = (place for _ in repeat(None) for place in generator.sample(range(len(pairs)), len(pairs)))
    expected: list[Example] = []
    waiting: list[Example] = []
    for _ in range(12):
        batch: list[Example] = []
        texts: set[str] = set()
        tried, left, waiting = 0, waiting, []
        while len(batch) < 3:
            example = left.pop(0) if left else data.examples[next(order)]
            if texts.isdisjoint(example.texts):
                batch.append(example)
                texts.update(example.texts)
            elif tried < 4 * len(pairs):
                waiting.append(example)
            tried += 1
        expected += batch
        waiting += left
    assert found == expected


# neighbours

TEXTS = reference_texts()[:60]


def test_neighbours_are_the_nearest_by_the_plain_formula() -> None:
    place = 7
    vectors = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True).fit_transform(TEXTS).toarray()
    cosines = vectors @ vectors[place]
    free = np.ones(len(TEXTS), dtype=np.bool_)
    free[[place, 3, 20]] = False
    found = Neighbours(TEXTS).nearest(place, 5, free)
    expected = sorted((other for other in np.flatnonzero(free) if cosines[other] > 0), key=lambda other: -cosines[other])[:5]
    assert [cosines[other] for other in found] == pytest.approx([cosines[other] for other in expected], abs=1e-6)
    assert not {place, 3, 20} & set(found) and len(set(found)) == 5


def test_a_word_of_many_texts_makes_no_neighbours() -> None:
    """Here "the" is in all of 3000 texts, and each number in 150, a twentieth."""
    texts = [f"the {number % 20}" for number in range(3000)]
    free = np.ones(3000, dtype=np.bool_)
    found = Neighbours(texts).nearest(5, 3000, free)
    assert found == [place for place in range(3000) if place % 20 == 5]
    same = Neighbours(["the same"] * 3000)
    assert same.nearest(0, 5, free) == [], "no word tells two of them apart"
