"""Chunking: long documents are split by tokens into chunks that may overlap. Every chunk is an exact range of characters.

A chunk ends at the last end of a sentence or line in its last quarter; else at the last border of a word there; else after its last token.
The next chunk begins within the overlap, by the same preference. A cut never falls inside a character, even if the character is several
tokens. Tokens are those of the whole document without a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.several_prompts import DesignTokenizer
from unmask.encoding.tokenization import tokenize_bare
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
"""Start and end of a chunk: the characters document[start:end]."""

_FULL_WIDTH = "\u3002\uff01\uff1f"  # the full stop and marks of Chinese and Japanese, which no space follows
_SENTENCE_END = re.compile(rf"[.!?\u2026{_FULL_WIDTH}][\"'\u201d\u2019\u00bb)\]]*\s*$|\n\s*$")
_SEEN = 40  # characters before a cut that say whether a sentence ends there


@dataclass(frozen=True)
class Chunking:
    """How documents are split and embedded.

    size: most tokens of a chunk. overlap: most tokens that a chunk shares with the one before. late: the model reads the whole document
    once, and each chunk is pooled from its own tokens (arXiv 2409.04701). Raises UnmaskError for sizes that do not work.
    """

    size: int
    overlap: int = 0
    late: bool = False

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.size < 1:
            raise UnmaskError(f"A chunk needs at least 1 token, not {self.size}.")
        if not 0 <= self.overlap <= self.size // 2:
            raise UnmaskError(
                f"Chunks of {self.size} tokens overlap by 0 to {self.size // 2} tokens (half a chunk), not {self.overlap}."
            )

    def require_room(self, tokenizer: DesignTokenizer, instruction: str | None = None) -> None:
        """Raise UnmaskError unless a whole chunk fits into the limit of tokens, beside the prompt."""
        room = tokenizer.room(instruction)
        if self.size > room:
            raise UnmaskError(
                f"Chunks of {self.size} tokens do not fit: max_length {tokenizer.max_length} leaves {max(room, 0)} tokens beside the "
                f"prompt '{tokenizer.name}'. Use smaller chunks, or a larger max_length (--max-length)."
            )

    def split(self, tokenizer: PreTrainedTokenizerBase, document: str) -> list[Span]:
        """The chunks of a document, in order. Together they hold every character. An empty document is one empty chunk."""
        tokens = tokenize_bare(tokenizer, document)
        own = [offset for offset, special in zip(tokens.offsets, tokens.special, strict=True) if not special]
        return split(document, own, self.size, self.overlap)


def split(document: str, offsets: Sequence[Span], size: int, overlap: int) -> list[Span]:
    """Chunks of a document whose tokens hold these characters. A character of more than `size` tokens is a chunk of its own."""
    tokens, places = _cuts(offsets, len(document))
    final = len(tokens) - 1
    chunks: list[Span] = []
    first = 0
    while True:
        last = _end(document, tokens, places, first, size)
        chunks.append((int(places[first]), int(places[last])))
        if last == final:
            return chunks
        first = _next_start(document, tokens, places, last, size, overlap)


def _cuts(offsets: Sequence[Span], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where a document may be cut, its start and its end included: the number of tokens before, and the place of the character."""
    if not offsets:
        return np.array([0, 0]), np.array([0, length])
    starts, ends = np.array(offsets, np.int64).T
    ended = np.maximum.accumulate(ends)[:-1]
    begins = np.minimum.accumulate(starts[::-1])[::-1][1:]
    between = np.flatnonzero((begins >= ended) & (begins > 0) & (begins < length))  # no character lies on both sides
    new = np.flatnonzero(np.diff(begins[between], prepend=0) > 0)  # a token without characters begins nothing
    inner = between[new]
    return np.array([0, *(inner + 1), len(offsets)]), np.array([0, *begins[inner], length])


def _end(document: str, tokens: NDArray[np.int64], places: NDArray[np.int64], first: int, size: int) -> int:
    """The cut at which a chunk ends. An overlap of half a chunk at most keeps it behind the end of the chunk before."""
    most = int(tokens[first]) + size
    furthest = max(int(np.searchsorted(tokens, most, side="right")) - 1, first + 1)
    if furthest == len(tokens) - 1:
        return furthest
    nearest = int(np.searchsorted(tokens, most - size // 4))
    return max(range(nearest, furthest + 1), key=lambda cut: (_border(document, int(places[cut])), cut), default=furthest)


def _next_start(document: str, tokens: NDArray[np.int64], places: NDArray[np.int64], last: int, size: int, overlap: int) -> int:
    """The cut at which the next chunk begins: at most `overlap` tokens before the end of the last, and so that it goes beyond it."""
    earliest = max(int(tokens[last]) - overlap, int(tokens[last + 1]) - size)
    nearest = int(np.searchsorted(tokens, earliest))
    furthest = int(np.searchsorted(tokens, earliest + overlap // 2, side="right")) - 1
    starts = range(nearest, min(furthest, last) + 1)
    return max(starts, key=lambda cut: (_border(document, int(places[cut])), -cut), default=last)


def _border(document: str, place: int) -> int:
    """What a cut before this character parts: 2 sentences or lines, 1 words, 0 the letters of a word."""
    before = document[max(0, place - _SEEN) : place]
    after = document[place]
    spaced = before[-1:].isspace() or after.isspace()
    if (spaced or before[-1] in _FULL_WIDTH) and (_SENTENCE_END.search(before) or after == "\n"):
        return 2
    return int(spaced)
