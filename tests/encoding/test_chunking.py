"""Chunks: whatever the text and the tokenizer, no character is lost or cut, no chunk is too long, and cuts prefer ends of sentences.

The oracle needs no offsets: a byte-level token spells its bytes, so their running sum says where each token ends.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import cases
from tests.encoding.test_tokenization import ANY, BOS, BUILDERS, HARD, edges, kinds
from unmask.encoding.chunking import Chunking, split
from unmask.encoding.tokenization import PromptTokenizer, Span
from unmask.errors import UnmaskError
from unmask.io.unicode import without_surrogates

LONG = st.lists(ANY | st.sampled_from([*HARD, "word ", "A sentence. ", "\n\n", "今日は。"]), max_size=30).map("".join)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {name: build() for name, build in BUILDERS.items()}


def letters(text: str) -> list[Span]:
    """A tokenizer of letters."""
    return [(place, place + 1) for place in range(len(text))]


def parts(text: str, size: int, overlap: int = 0) -> list[str]:
    return [text[start:end] for start, end in split(text, letters(text), size, overlap)]


def inner_edges(tokenizer: Any, kind: str, text: str) -> list[int]:
    """Where tokens of a text begin, in bytes of the text, without those that the tokenizer puts around it."""
    ids = tokenizer(text)["input_ids"]
    ids = ids[bool(BOS[kind]) : len(ids) - (kind == "bos-eos")]
    return edges(tokenizer, tuple(ids))


# --- what holds for any text -----------------------------------------------------------------------------------------


@kinds
@given(text=LONG, size=st.integers(1, 40), share=st.floats(0, 0.5))
def test_chunks_hold_every_character_and_are_not_too_long(
    tokenizers: dict[str, Any], kind: str, text: str, size: int, share: float
) -> None:
    overlap = int(size * share)
    chunks = Chunking(size, overlap).split(tokenizers[kind], text)
    assert chunks[0][0] == 0 and chunks[-1][1] == len(text)
    at = inner_edges(tokenizers[kind], kind, without_surrogates(text))

    def tokens(start: int, end: int) -> int:
        first, last = (len(without_surrogates(text)[:place].encode()) for place in (start, end))
        assert first in at and last in at, "a cut inside a token"
        return sum(first <= place < last for place in at)

    for start, end in chunks:
        assert tokens(start, end) <= size or end - start == 1, "only a character of many tokens may be longer"
        assert start < end or not text
    for (start, end), (next_start, next_end) in pairwise(chunks):
        assert start < next_start <= end < next_end
        assert tokens(next_start, end) <= overlap


def test_a_character_of_many_tokens_is_not_cut() -> None:
    text, offsets = "ab🙂c", [(0, 1), (1, 2), *[(2, 3)] * 4, (3, 4)]
    assert split(text, offsets, 3, 0) == [(0, 2), (2, 3), (3, 4)]
    assert split(text, offsets, 3, 1) == [(0, 2), (2, 3), (3, 4)]  # no room for an overlap beside it
    assert split(text, offsets, 5, 2) == [(0, 2), (1, 3), (3, 4)]
    assert split(text, offsets, 5, 0) == [(0, 2), (2, 4)]


def test_a_token_without_characters_begins_no_chunk() -> None:
    assert split("abcd", [(0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 4)], 2, 0) == [(0, 1), (1, 2), (2, 3), (3, 4)]


# --- where is cut ----------------------------------------------------------------------------------------------------


def test_a_cut_prefers_the_end_of_a_sentence_then_of_a_word() -> None:
    assert parts("Wide. The x y", 8) == ["Wide. ", "The x y"]
    assert parts("Wide, The x y", 8) == ["Wide, ", "The x y"]
    assert parts("Wid. Th xyzab", 8) == ["Wid. Th ", "xyzab"], "a sentence that ends before the last quarter is no border"
    assert parts("aaaa 3.14159", 8) == ["aaaa 3.1", "4159"], "a full stop inside a number ends no sentence"


@pytest.mark.parametrize(
    ("endings", "ends"),
    [
        ([". ", "! ", "? ", ".\n", '." ', "?) ", "\n", "\n\n", "。", "\uff01", "\u2026 ", ".\u2019 ", " .  "], True),
        ([", ", ": ", "- ", "e. g "], False),
    ],
)
def test_what_ends_a_sentence(endings: list[str], ends: bool) -> None:
    for ending in endings:
        first = "a" * (16 - len(ending)) + ending
        assert (parts(f"{first}b cd ef gh ij kl mn", 20)[0] == first) == ends, ending


def test_an_overlap_begins_with_a_sentence_or_a_word() -> None:
    assert parts("abc, e. Xyz abc defghijkl", 14, 8)[:2] == ["abc, e. Xyz ", " Xyz abc defgh"], "the sentence"
    assert parts("abc, ef Xyz abc defghijkl", 14, 8)[:2] == ["abc, ef Xyz ", " ef Xyz abc "], "the word"
    assert parts("abcdefghXyz abcdefghijkl", 14, 8)[:2] == ["abcdefghXyz ", "efghXyz abcdef"], "neither"


# --- mistakes --------------------------------------------------------------------------------------------------------


@kinds
@cases("prompt", ["eol", "echo", "instruction", "chat:eol"])
def test_the_size_leaves_room_for_the_prompt(tokenizers: dict[str, Any], kind: str, prompt: str) -> None:
    instruction = "Find it" if prompt == "instruction" else None
    limited = PromptTokenizer(tokenizers[kind], prompt, 100)
    room = limited.room(instruction)
    copies = 2 if prompt == "echo" else 1
    [text] = limited.tokenize([" a" * room], instruction)
    assert not text.truncated and 100 - copies <= len(text.ids) <= 100
    Chunking(room).require_room(limited, instruction)
    with pytest.raises(UnmaskError, match=f"Chunks of {room + 1} tokens do not fit: max_length 100 leaves {room} tokens"):
        Chunking(room + 1).require_room(limited, instruction)
