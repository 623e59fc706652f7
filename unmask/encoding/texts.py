"""Texts that are given: a list of strings in any form that has an order, and the warning about those that were cut."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence, Set

from unmask.errors import UnmaskError

_NAMED = 5  # texts that a warning names


def as_texts(texts: Iterable[str]) -> Sequence[str]:
    """Texts as a list, of anything that yields strings in an order: a generator, an array, a column of a table.

    Raises UnmaskError for what has no order or yields something else, and for one string, whose letters nobody means.
    """
    if isinstance(texts, (str, bytes)):
        raise UnmaskError("encode takes a list of texts, not one string: encode([text]).")
    # of these, Python would take the keys, the names of the columns, or any order
    if not isinstance(texts, Iterable) or isinstance(texts, (Mapping, Set)) or getattr(texts, "ndim", 1) != 1:
        raise UnmaskError(f"encode takes a list of texts, not {type(texts).__name__}: encode([text, text]).")
    listed = texts if isinstance(texts, (list, tuple)) else list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise UnmaskError(f"Text {place} is {type(text).__name__}, not str.")
    return listed


def warn_of_cuts(rows: Sequence[int], texts: int, limit: int) -> None:
    """Warn the caller of our caller which texts were cut, if any were, and say what to do."""
    if not rows:
        return
    named = ", ".join(map(str, rows[:_NAMED])) + (f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else "")
    verb = "was" if len(rows) == 1 else "were"
    warnings.warn(
        f"{len(rows)} of {texts} texts {verb} cut to {limit} tokens: text {named} (counted from 0). "
        "A larger max_length (--max-length) keeps more of a text, up to the model's own limit.",
        stacklevel=3,
    )
