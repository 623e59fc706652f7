"""Tokens: how much each token of a text carries its vector, by leaving it out.

The effect of a token is 1 - cos(v, w): v is the vector of the text, w that of the text without the characters of this token. It is 0 for
a token that changes nothing, and at most 2. The rest of the text is tokenized anew, so a neighbour may be split in another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.embedder import Embedder
from unmask.encoding.shared_prefix import Progress
from unmask.encoding.tokenization import tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.ui.workbench import Embedded, Workbench

MOST_TOKENS = 100
"""Tokens of a text that are left out one by one. Each costs a forward pass over the text."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Effects:
    """A text in pieces, and the effect of each under one design."""

    name: str
    design: str
    effects: Float[NDArray[np.float64], " piece"]
    cut: bool


def pieces(embedder: Embedder, text: str) -> list[Span]:
    """Where the tokens of a text begin and end, in characters. They cover the text without a gap.

    Tokens that share a character (an emoji may be three of them) are one piece. Raises UnmaskError for a text without or with too many.
    """
    tokens = tokenize_bare(embedder.tokenizer, text)
    starts = {
        start for (start, stop), special in zip(tokens.offsets, tokens.special, strict=True) if stop > start and not special
    }
    inside = {place for start, stop in tokens.offsets for place in range(start + 1, stop)}
    borders = [0, *sorted(starts - inside - {0}), len(text)] if text else [0]
    spans = list(pairwise(borders))
    if not spans:
        raise UnmaskError("The text is empty: give at least one word.")
    if len(spans) > MOST_TOKENS:
        raise UnmaskError(
            f"The text has {len(spans)} tokens, and at most {MOST_TOKENS} are left out one by one. Give a shorter text."
        )
    return spans


def leave_one_out(
    workbench: Workbench, names: Sequence[str], text: str, progress: Progress
) -> tuple[list[Span], list[Effects]]:
    """The pieces of a text, and their effects under each design. Raises UnmaskError."""
    spans = pieces(workbench.base, text)
    variants = [text, *(text[:start] + text[stop:] for start, stop in spans)]
    return spans, [_effects(one) for one in workbench.embed(names, variants, progress)]


def _effects(embedded: Embedded) -> Effects:
    whole, without = embedded.vectors[0].astype(np.float64), embedded.vectors[1:].astype(np.float64)
    return Effects(embedded.name, embedded.design.name, np.clip(1 - without @ whole, 0, 2), 0 in embedded.cut)


def as_json(text: str, spans: Sequence[Span], found: Sequence[Effects]) -> dict[str, Any]:
    """What the page shows of one text."""
    return {
        "pieces": [text[start:stop] for start, stop in spans],
        "designs": [
            {"name": one.name, "design": one.design, "cut": one.cut, "effects": one.effects.round(5).tolist()} for one in found
        ],
    }
