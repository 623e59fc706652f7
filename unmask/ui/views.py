"""Two views of texts under one or two designs: similarities, and how much each token contributes to a vector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.embedder import Embedder
from unmask.encoding.shared_prefix import Progress
from unmask.encoding.tokenization import tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.statistics.correlations import codes_of, correlations, ranks_of
from unmask.ui.embedders import EmbeddedTexts, Embedders

MAX_TOKENS = 100
"""Tokens that are left out one by one; each costs a forward pass."""
_MAX_DISAGREEMENTS = 8
Cosines = Float[NDArray[np.float32], "text text"]
Span = tuple[int, int]


def similarities(embedded: Sequence[EmbeddedTexts]) -> dict[str, Any]:
    """Cosines under each design, and the pairs on which two designs disagree most, as JSON."""
    cosines = [Embedder.similarity(texts.vectors, texts.vectors) for texts in embedded]
    spearman, pairs = compare_rankings(cosines[0], cosines[1]) if len(cosines) == 2 else (None, [])
    count = len(cosines[0])
    return {
        "designs": [
            {
                "name": texts.name,
                "design": texts.design.name,
                "dim": texts.vectors.shape[1],
                "cut": texts.truncated,
                "cosines": np.round(table.astype(float), 4).tolist(),
                "neighbours": neighbours(table),
            }
            for texts, table in zip(embedded, cosines, strict=True)
        ],
        "pairs": count * (count - 1) // 2,
        "spearman": spearman,
        "disagreements": pairs,
    }


def neighbours(cosines: Cosines) -> list[list[int]]:
    """For each text the other texts, most similar first; ties in the order of the texts."""
    order = np.argsort(-cosines, axis=1, kind="stable")
    return [[int(column) for column in columns if column != row] for row, columns in enumerate(order)]


def compare_rankings(first: Cosines, second: Cosines) -> tuple[float | None, list[dict[str, Any]]]:
    """Spearman correlation of two designs over all pairs of texts, and the pairs whose ranks differ most.

    Cosines of two designs have different ranges, so only the ranks of the pairs are compared; ties share their mean rank. The correlation
    is None for fewer than three pairs, or if a design gives all pairs the same cosine.
    """
    rows, columns = np.triu_indices(len(first), k=1)
    pairs = np.stack([first[rows, columns], second[rows, columns]], axis=1).round(6)  # rounding errors are ties
    if len(pairs) < 3:
        return None, []
    weights = np.ones(len(pairs), np.int64)
    ranks = ranks_of(codes_of(-pairs), weights)
    is_constant = bool((pairs.min(axis=0) == pairs.max(axis=0)).any())
    gaps = np.abs(ranks[0] - ranks[1])
    worst = [pair for pair in np.argsort(-gaps, kind="stable")[:_MAX_DISAGREEMENTS] if gaps[pair] > 0]
    return None if is_constant else float(correlations(ranks, weights)[0, 1]), [
        {
            "texts": (int(rows[pair]), int(columns[pair])),
            "cosines": (float(pairs[pair, 0]), float(pairs[pair, 1])),
            "places": (float(ranks[0, pair]), float(ranks[1, pair])),
        }
        for pair in worst
    ]


def token_effects(embedders: Embedders, names: Sequence[str], text: str, progress: Progress) -> dict[str, Any]:
    """Leave-one-out effect of each token under each design, as JSON.

    The effect is 1 - cos(v, w), where v is the vector of the text and w that without the characters of the token; it lies between 0 and
    2. The shortened text is tokenized again, so neighbouring tokens may change.
    """
    spans = token_spans(embedders.base, text)
    variants = [text, *(text[:start] + text[stop:] for start, stop in spans)]

    def effects(texts: EmbeddedTexts) -> list[float]:
        full, shortened = texts.vectors[0].astype(np.float64), texts.vectors[1:].astype(np.float64)
        return np.clip(1 - shortened @ full, 0, 2).round(5).tolist()  # type: ignore[no-any-return]

    return {
        "pieces": [text[start:stop] for start, stop in spans],
        "designs": [
            {"name": texts.name, "design": texts.design.name, "cut": 0 in texts.truncated, "effects": effects(texts)}
            for texts in embedders.embed(names, variants, progress)
        ],
    }


def token_spans(embedder: Embedder, text: str) -> list[Span]:
    """Character spans of the tokens, without gaps. Tokens that share a character, as of an emoji, are one span."""
    tokens = tokenize_bare(embedder.tokenizer, text)
    starts = {
        start for (start, stop), special in zip(tokens.offsets, tokens.special, strict=True) if stop > start and not special
    }
    inside = {character for start, stop in tokens.offsets for character in range(start + 1, stop)}
    spans = list(pairwise([0, *sorted(starts - inside - {0}), len(text)])) if text else []
    if not spans:
        raise UnmaskError("The text is empty: give at least one word.")
    if len(spans) > MAX_TOKENS:
        raise UnmaskError(
            f"The text has {len(spans)} tokens, and at most {MAX_TOKENS} are left out one by one. Give a shorter text."
        )
    return spans
