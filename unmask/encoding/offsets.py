"""Offsets: which characters each token of a text holds, and which tokens hold the characters of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from unmask.io.threads import lock_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Offsets = Sequence[tuple[int, int]]
_PROBES: Final = ("x", "ü", " a", "a ", "a \n\n b", "日本")


def trims_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a token of spaces alone holds no characters, as with byte-level tokenizers whose post-processor trims offsets."""
    with lock_of(tokenizer):
        encoded = tokenizer(list(_PROBES), return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    rows = zip(encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True)
    return any(
        start == stop and not mark for offsets, special in rows for (start, stop), mark in zip(offsets, special, strict=True)
    )


def untrimmed(offsets: Offsets, special: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets in which every token but the special ones holds characters: one that was trimmed holds those since the token before it.

    A space that the tokenizer put before a text holds the first character.
    """
    found, before = [], 0
    for (start, stop), mark in zip(offsets, special, strict=True):
        if start == stop and not mark:
            start, stop = (before, stop) if before < stop else (0, 1) if stop == 0 else (start, stop)
        before = before if mark else max(before, stop)
        found.append((start, stop))
    return found


def token_range(offsets: Offsets, start: int, end: int) -> tuple[int, int]:
    """The tokens [first, stop) of the characters [start, end). Tokens without characters (BOS) come before them."""
    first = next((k for k, (_, stop) in enumerate(offsets) if stop > start), len(offsets))
    stop = next((k for k in range(first, len(offsets)) if offsets[k][0] >= end and offsets[k][1] > start), len(offsets))
    return first, max(first, stop)


def inside(offsets: Offsets, span: tuple[int, int], end: int) -> tuple[int, int]:
    """The span without a last token that also holds characters after the text, such as `."`. Truncation must not remove those."""
    start, stop = span
    return start, stop - (stop > start and offsets[stop - 1][1] > end)
