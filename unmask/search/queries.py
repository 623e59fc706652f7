"""The queries of one search: each is embedded once, whatever ranks by its vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from unmask.search.vectors import Vectors

if TYPE_CHECKING:
    from unmask.encoding.lexical import Packed

Embedded = tuple[Vectors, "Packed | None"]
"""Vectors of unit length, and packed lexical vectors if they are wanted."""


class Queries:
    """Queries as text, and as vectors when the first ranker asks for them."""

    def __init__(self, texts: Sequence[str], embed: Callable[[Sequence[str]], Embedded]) -> None:
        """embed: takes the texts."""
        self.texts, self._embed = list(texts), embed

    @cached_property
    def _embedded(self) -> Embedded:
        return self._embed(self.texts)

    @property
    def vectors(self) -> Vectors:
        """Dense vectors of unit length."""
        return self._embedded[0]

    @property
    def words(self) -> Packed:
        """Packed lexical vectors."""
        words = self._embedded[1]
        assert words is not None, "a search by words embeds words"
        return words
