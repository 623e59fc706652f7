"""Hits: what a search found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.io import terminal
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


def print_hits(hits: Sequence[Hit], mode: str) -> None:
    """The documents found by a search."""
    from rich.text import Text

    if not hits:
        terminal.tell("No document was found.")
        return
    table = terminal.table("")
    table.add_column("", justify="right")
    table.add_column({"dense": "cosine", "bm25": "BM25", "lexical": "lexical", "hybrid": "fused"}[mode], justify="right")
    table.add_column("id", overflow="fold", max_width=20)
    table.add_column("passage", overflow="fold")
    for hit in hits:
        passage = Text(terminal.visible(hit.snippet.removeprefix(hit.title).strip()))
        if hit.title:
            passage = Text().append(terminal.visible(hit.title), style="bold").append("\n").append(passage)
        table.add_row(str(hit.rank), f"{hit.score:.4f}", hit.id, passage)
    terminal.console().print(table)
