"""Batching: every text once, within the budget, longest first; masks that say what is padding; equal texts computed once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.encoding.batching import BATCH_OVERHEAD, collate, plan, share
from unmask.encoding.dedup import UniqueTexts
from unmask.encoding.tokenization import TokenizedText


@st.composite
def tokenized(draw: st.DrawFn) -> TokenizedText:
    ids = draw(st.lists(st.integers(0, 511), min_size=1, max_size=9))
    return TokenizedText(tuple(ids), draw(st.integers(0, len(ids) - 1)))


@given(st.lists(st.integers(1, 600), max_size=80), st.integers(1, 3000))
def test_a_plan_has_every_text_once_longest_first_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan(lengths, budget)
    order = [index for batch in batches for index in batch]
    assert order == sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) * longest <= budget or len(batch) == 1
        assert sum(longest - lengths[index] for index in batch) <= BATCH_OVERHEAD


@pytest.mark.parametrize(
    ("lengths", "budget", "batches"),
    [
        ([4, 4, 4, 4], 16, [[0, 1, 2, 3]]),
        ([3, 8, 5], 16, [[1, 2], [0]]),
        ([100, 36, 36], 4096, [[0, 1], [2]]),
        ([1024, 1025, 1026], 4096, [[2, 1], [0]]),
    ],
    ids=["full batch", "budget", "padding costs more than a batch", "border of LongRoPE"],
)
def test_plans_by_hand(lengths: list[int], budget: int, batches: list[list[int]]) -> None:
    assert plan(lengths, budget) == batches


@given(st.lists(tokenized(), min_size=1, max_size=6), st.integers(0, 511))
def test_the_masks_give_each_text_back(texts: list[TokenizedText], pad: int) -> None:
    batch = collate(texts, pad)
    assert batch.ids.shape == (len(texts), max(len(text.ids) for text in texts))
    assert [tuple(ids[real].tolist()) for ids, real in zip(batch.ids, batch.attention_mask, strict=True)] == [
        text.ids for text in texts
    ]
    embedded = [tuple(ids[embed].tolist()) for ids, embed in zip(batch.ids, batch.pooling_mask, strict=True)]
    assert embedded == [text.ids[text.start :] for text in texts]
    assert (batch.ids[~batch.attention_mask] == pad).all()
    assert torch.equal(batch.attention_mask, batch.attention_mask.cummin(dim=1).values), "padding is on the right"


def test_threads_share_the_tokens() -> None:
    assert share(2048, 100_000, threads=1) == share(2048, 100_000, threads=2) == 2048
    assert share(2048, 4000, threads=2) == 1000
    assert share(2048, 600, threads=2) == 512 and share(64, 600, threads=2) == 64


def test_vectors_of_distinct_texts_are_expanded_to_all_texts() -> None:
    def text(*ids: int, spans: tuple[tuple[int, int], ...] = (), words: str = "") -> TokenizedText:
        return TokenizedText(ids, 0, spans=spans, text=words)

    spans = ((0, 1), (1, 2))
    distinct = UniqueTexts([text(5), text(6, 7, spans=spans), text(5), text(6, 7), text(6, 7, spans=spans)])
    assert [len(text.spans) for text in distinct.texts] == [0, 2, 0] and distinct.rows == 4
    assert distinct.expand(np.array([0, 11, 12, 20])).tolist() == [0, 11, 12, 0, 20, 11, 12]
    same_tokens = [text(5, words="a"), text(5, words="b")]
    assert len(UniqueTexts(same_tokens).texts) == 1 and len(UniqueTexts(same_tokens, by_words=True).texts) == 2
