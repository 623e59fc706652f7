"""Batching: texts of similar length share a batch, and a batch is filled by tokens, not by texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from unmask.encoding.backbone import Backbone, PrefixCache, Spans, TokenBatch

if TYPE_CHECKING:
    from unmask.encoding.tokenization import TokenizedText

BATCH_OVERHEAD = 64
"""A new batch costs about as much as this many tokens (kernel launches, one pass over the weights).

So a text joins a batch only if the padding that it adds costs less than a new batch.
"""
_MAX_CACHED = 4  # tokens in the prefix cache for each computed one
_MIN_BATCH = 512  # tokens; smaller batches multiply matrices more slowly
_STEP = 1024
"""Texts on different sides of a multiple of this many tokens never share a batch.

LongRoPE uses other frequencies if the longest text of a batch is beyond such a multiple, which would change the rest of the batch.
"""


def default_batch_tokens(backbone: Backbone) -> int:
    """Tokens of one batch: enough to keep the device busy, few enough for its caches (CPU) or its memory (GPU)."""
    return 2048 if backbone.device.type == "cpu" else 32768


def share(budget: int, tokens: int, threads: int) -> int:
    """Tokens of one batch if several threads compute: few enough for two batches each, so that none waits long for the others."""
    return budget if threads == 1 else min(budget, max(_MIN_BATCH, tokens // (2 * threads)))


def steps_of(passes: Iterable[int]) -> tuple[int, ...]:
    """Texts may share a batch if this is equal. passes: tokens of each forward pass of a text, cached ones included."""
    return tuple((tokens - 1) // _STEP for tokens in passes)


def may_share(tokens: int, other_tokens: int) -> bool:
    """Whether texts of these lengths, cached tokens included, may share a batch without changing each other's vectors."""
    return steps_of([tokens]) == steps_of([other_tokens])


def plan(
    lengths: Sequence[int], budget: int, before: int = 0, steps: Sequence[tuple[int, ...]] | None = None
) -> list[list[int]]:
    """Indices of texts, batch by batch, longest first. A batch holds at most `budget` tokens with its padding.

    before: cached tokens before each text, whose keys and values take memory: at most four times the budget. steps: of each text
    (`steps_of`); by default, of one forward pass of its length.

    The longest batch goes first, so that a lack of memory shows at once. A text longer than the budget is a batch by itself.
    """
    steps = steps or [steps_of([before + length]) for length in lengths]
    batches: list[list[int]] = []
    longest = padding = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        gap = longest - lengths[index]
        size = len(batches[-1]) + 1 if batches else 1
        fits = batches and longest * size <= budget and before * size <= _MAX_CACHED * budget
        fits = fits and steps[index] == steps[batches[-1][0]]
        if fits and (padding + gap <= BATCH_OVERHEAD or gap == 0):
            batches[-1].append(index)
            padding += gap
        else:
            batches.append([index])
            longest, padding = lengths[index], 0
    return batches


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to the total: progress in texts, of work that is measured in tokens."""
    ends = np.round(total * np.cumsum(weights) / max(1, sum(weights))).astype(int)
    return [int(share) for share in np.diff(ends, prepend=0)]


def padded_tokens(batches: Iterable[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    """Tokens of each batch with its padding. lengths: tokens of each text."""
    return [len(batch) * max(lengths[index] for index in batch) for batch in batches]


def collate(texts: Sequence[TokenizedText], pad_id: int, prefix: PrefixCache | None = None) -> TokenBatch:
    """Pad tokenized texts on the right into one batch. prefix: the cached tokens before each of them.

    Raises ValueError for texts in several prompts.
    """
    if any(text.parts for text in texts):
        raise ValueError("A text in several prompts has a batch for each prompt.")
    longest = max(len(text.ids) for text in texts)
    ids = torch.full((len(texts), longest), pad_id)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.tensor(text.ids)
    positions = torch.arange(longest)
    attention_mask = positions < torch.tensor([[len(text.ids)] for text in texts])
    pooling_mask = attention_mask & (positions >= torch.tensor([[text.start] for text in texts]))
    return TokenBatch(ids, attention_mask, pooling_mask, prefix, _spans(texts) if any(text.spans for text in texts) else None)


def _spans(texts: Sequence[TokenizedText]) -> Spans:
    """What is pooled of each text: its spans, or the embedded span of a text without any."""
    rows = [(row, *span) for row, text in enumerate(texts) for span in (text.spans or [(text.start, len(text.ids))])]
    return Spans(*torch.tensor(rows).T)
