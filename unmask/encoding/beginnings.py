"""Shared beginnings: tokens that all texts begin with (a long instruction, say) are computed once, and not again for each text.

Under causal attention the states of a beginning do not depend on what follows. So its keys and values are kept, and each text goes on from
there. Not every architecture goes on correctly, so two of the texts are computed in both ways first. If the two ways differ by more than
rounding does, all texts are computed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unmask.encoding.backbone import CANNOT_GO_ON, Backbone, Beginning
from unmask.encoding.batching import may_share
from unmask.encoding.tokenization import TokenizedText

_SAVED = 0.2  # share of all tokens from which a shared beginning is worth its check
_FEWEST = 8  # texts
# of a usual value. In bfloat16, SmolLM2 has 0.02, and 0.3 with other keys
_ROUNDING = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}

Read = Callable[[Sequence[TokenizedText], Beginning | None], Sequence[Tensor]]
"""Computes features of texts that go on from a beginning, or that are whole."""


def find_beginning(backbone: Backbone, texts: Sequence[TokenizedText], read: Read) -> Beginning | None:
    """The beginning that all texts share; None if there is none, if it saves little, or if this model cannot go on from it."""
    length = shared_length(texts)
    # LongRoPE rotates by other frequencies beyond a border, so what stands before it is not gone on from
    if not all(may_share(length, len(text.ids)) for text in texts):
        return None
    beginning = backbone.beginning([texts[0].ids[:length]]) if length else None
    if beginning is None:
        return None
    two = [min(texts, key=lambda text: len(text.ids)), max(texts, key=lambda text: len(text.ids))]
    rests = [after(text, length) for text in two]
    return beginning if agree(backbone.dtype, lambda: read(two, None), lambda: read(rests, beginning)) else None


def agree(dtype: torch.dtype, whole: Callable[[], Sequence[Tensor]], shared: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether features of whole texts, and of texts that go on from a beginning, differ by no more than rounding."""
    limit = _ROUNDING.get(dtype, _ROUNDING[torch.float32])
    try:
        both = list(zip(whole(), shared(), strict=True))
    except CANNOT_GO_ON:
        return False
    return all(bool((_change(one, other) <= limit).all()) for one, other in both)


def _change(before: Tensor, after: Tensor) -> Tensor:
    """How much each row changed: the median change of a value, relative to the median value. Of rows that are mostly zeros, the means."""
    # the median, not the largest: trained models have a few enormous values, beside which every change looks small
    sizes, changes = before.abs().float(), (after - before).abs().float()
    medians = sizes.median(dim=-1).values
    change, size = torch.where(
        medians > 0,
        torch.stack([changes.median(dim=-1).values, medians]),
        torch.stack([changes.mean(dim=-1), sizes.mean(dim=-1)]),
    )
    return change / size.clamp_min(torch.finfo(torch.float32).tiny)


def shared_length(texts: Sequence[TokenizedText]) -> int:
    """How many tokens all texts begin with, none of which is embedded; 0 if sharing them saves little."""
    if len(texts) < _FEWEST:
        return 0
    length = min(tokens_alike([text.ids for text in texts]), *(text.start for text in texts))
    return length if saves(length * len(texts), sum(len(text.ids) for text in texts), len(texts)) else 0


def tokens_alike(ids: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all of them begin with."""
    first, last = min(ids), max(ids)  # in the order of a dictionary
    return next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))


def saves(tokens: int, of: int, texts: int) -> bool:
    """Whether leaving out so many tokens is worth its check."""
    return texts >= _FEWEST and tokens >= _SAVED * of


def after(text: TokenizedText, length: int) -> TokenizedText:
    """The tokens of a text after so many."""
    spans = tuple((first - length, stop - length) for first, stop in text.spans)
    return replace(text, ids=text.ids[length:], start=text.start - length, spans=spans)
