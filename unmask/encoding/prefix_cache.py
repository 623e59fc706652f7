"""Prefix caching: tokens that all texts start with (a long instruction, say) are computed once, not once per text.

Under causal attention the states of a prefix do not depend on what follows, so its keys and values are computed once and every text reuses
them. Some architectures do this incorrectly. Two of the texts are therefore computed both ways first; if the results differ by more than
rounding, the cache is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unmask.encoding.backbone import UNSUPPORTED_CACHE, Backbone, PrefixCache
from unmask.encoding.batching import may_share
from unmask.encoding.tokenization import TokenizedText

_MIN_SAVING = 0.2  # share of all tokens from which a prefix cache is worth its check
_MIN_TEXTS = 8
# relative to a typical value. SmolLM2 in bfloat16 changes by 0.02, and by 0.3 with the wrong keys
_ROUNDING = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}

ReadFeatures = Callable[[Sequence[TokenizedText], Sequence[PrefixCache | None]], Sequence[Tensor]]
"""Computes the features of texts that follow the cached prefix of their prompt, or of full texts."""


def find_prefix(backbone: Backbone, texts: Sequence[TokenizedText], features: ReadFeatures) -> PrefixCache | None:
    """The prefix that all texts share; None if there is none, if it saves little, or if this model cannot reuse it."""
    length = shared_length(texts)
    # LongRoPE switches frequencies at a certain length, so a prefix on the near side of it cannot be reused beyond
    if not all(may_share(length, len(text.ids)) for text in texts):
        return None
    prefix = backbone.cache_prefix([texts[0].ids[:length]]) if length else None
    if prefix is None:
        return None
    pair = [min(texts, key=lambda text: len(text.ids)), max(texts, key=lambda text: len(text.ids))]
    rests = [without_prefix(text, length) for text in pair]
    return prefix if agree(backbone.dtype, lambda: features(pair, [None]), lambda: features(rests, [prefix])) else None


def agree(dtype: torch.dtype, uncached: Callable[[], Sequence[Tensor]], cached: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether features computed with and without a prefix cache differ by no more than rounding."""
    limit = _ROUNDING.get(dtype, _ROUNDING[torch.float32])
    try:
        pairs = list(zip(uncached(), cached(), strict=True))
    except UNSUPPORTED_CACHE:
        return False
    return all(bool((_change(before, after) <= limit).all()) for before, after in pairs)


def _change(before: Tensor, after: Tensor) -> Tensor:
    """The median change of a value in each row, relative to the median value. For rows that are mostly zeros, means."""
    # the median, not the maximum: trained models have a few enormous values, next to which every change looks small
    sizes, changes = before.abs().float(), (after - before).abs().float()
    medians = sizes.median(dim=-1).values
    change, size = torch.where(
        medians > 0,
        torch.stack([changes.median(dim=-1).values, medians]),
        torch.stack([changes.mean(dim=-1), sizes.mean(dim=-1)]),
    )
    return change / size.clamp_min(torch.finfo(torch.float32).tiny)


def shared_length(texts: Sequence[TokenizedText]) -> int:
    """Number of tokens before the embedded span that all texts start with; 0 if caching them saves little."""
    if len(texts) < _MIN_TEXTS:
        return 0
    length = min(common_prefix_length([text.ids for text in texts]), *(text.start for text in texts))
    return length if is_cheaper(length * len(texts), sum(len(text.ids) for text in texts), len(texts)) else 0


def common_prefix_length(ids: Sequence[tuple[int, ...]]) -> int:
    """Number of tokens that all sequences start with."""
    first, last = min(ids), max(ids)  # in lexicographic order
    return next((index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def is_cheaper(saved_tokens: int, tokens: int, texts: int) -> bool:
    """Whether saving this many tokens is worth the check."""
    return texts >= _MIN_TEXTS and saved_tokens >= _MIN_SAVING * tokens


def without_prefix(text: TokenizedText, length: int) -> TokenizedText:
    """The text without its first tokens."""
    spans = tuple((start - length, stop - length) for start, stop in text.spans)
    return replace(text, ids=text.ids[length:], start=text.start - length, spans=spans)
