"""Hits: what a search found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.search.documents import Value


@dataclass(frozen=True)
class Hit:
    """A document that was found. rank: from 1. snippet: the passage of its title and text that holds most words of the query."""

    rank: int
    score: float
    id: str
    title: str
    text: str
    snippet: str
    columns: dict[str, Value]

    def as_json(self) -> dict[str, Any]:
        """Everything but the text, which may have megabytes."""
        return {name: value for name, value in vars(self).items() if name != "text"}
