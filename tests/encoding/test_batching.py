"""Batching: every text once, within the budget, longest first; and masks that say what is padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.encoding.batching import collate, plan, share
from unmask.encoding.tokenization import TokenizedText

LENGTHS = st.lists(st.integers(1, 600), max_size=80)
BUDGETS = st.integers(1, 3000)


@st.composite
def tokenized(draw: st.DrawFn) -> TokenizedText:
    ids = draw(st.lists(st.integers(0, 511), min_size=1, max_size=9))
    return TokenizedText(tuple(ids), draw(st.integers(0, len(ids) - 1)))


@given(LENGTHS, BUDGETS)
def test_every_text_is_in_one_batch(lengths: list[int], budget: int) -> None:
    assert sorted(index for batch in plan(lengths, budget) for index in batch) == list(range(len(lengths)))


@given(LENGTHS, BUDGETS)
def test_a_batch_keeps_the_budget_unless_it_is_one_long_text(lengths: list[int], budget: int) -> None:
    for batch in plan(lengths, budget):
        assert len(batch) * max(lengths[index] for index in batch) <= budget or len(batch) == 1


@given(LENGTHS, BUDGETS)
def test_the_longest_come_first_and_equals_keep_their_order(lengths: list[int], budget: int) -> None:
    order = [index for batch in plan(lengths, budget) for index in batch]
    assert order == sorted(order, key=lambda index: (-lengths[index], index))


@given(LENGTHS, BUDGETS)
def test_padding_never_costs_more_than_a_batch_of_its_own(lengths: list[int], budget: int) -> None:
    for batch in plan(lengths, budget):
        longest = max(lengths[index] for index in batch)
        assert sum(longest - lengths[index] for index in batch) <= 64


@pytest.mark.parametrize(
    ("lengths", "budget", "batches"),
    [
        ([], 16, []),
        ([4, 4, 4, 4], 16, [[0, 1, 2, 3]]),
        ([4, 4, 4, 4], 15, [[0, 1, 2], [3]]),
        ([3, 8, 5], 16, [[1, 2], [0]]),
        ([90, 1, 1], 16, [[0], [1, 2]]),
        ([100, 36, 36], 4096, [[0, 1], [2]]),
        ([100, 35, 100], 4096, [[0, 2], [1]]),
        ([1024, 1025, 1026], 4096, [[2, 1], [0]]),
    ],
)
def test_plans_by_hand(lengths: list[int], budget: int, batches: list[list[int]]) -> None:
    assert plan(lengths, budget) == batches


@given(st.lists(tokenized(), min_size=1, max_size=6), st.integers(0, 511))
def test_the_masks_give_each_text_back(texts: list[TokenizedText], pad: int) -> None:
    batch = collate(texts, pad)
    assert batch.ids.dtype == torch.int64
    assert batch.ids.shape == batch.real.shape == batch.embed.shape == (len(texts), max(len(text.ids) for text in texts))
    assert [tuple(ids[real].tolist()) for ids, real in zip(batch.ids, batch.real, strict=True)] == [text.ids for text in texts]
    embedded = [tuple(ids[embed].tolist()) for ids, embed in zip(batch.ids, batch.embed, strict=True)]
    assert embedded == [text.ids[text.start :] for text in texts]
    assert (batch.ids[~batch.real] == pad).all()
    assert not (batch.embed & ~batch.real).any()


def test_masks_by_hand() -> None:
    batch = collate([TokenizedText((5, 6, 7), 1), TokenizedText((8,), 0)], pad_id=9)
    assert batch.ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch.real.tolist() == [[True, True, True], [True, False, False]]
    assert batch.embed.tolist() == [[False, True, True], [True, False, False]]


def test_threads_share_the_tokens() -> None:
    assert share(2048, 100_000, threads=1) == 2048
    assert share(2048, 100_000, threads=2) == 2048
    assert share(2048, 4000, threads=2) == 1000
    assert share(2048, 600, threads=2) == 512
    assert share(64, 600, threads=2) == 64
