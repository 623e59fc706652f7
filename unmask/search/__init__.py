"""An index of documents on disk, and searching it: by vectors, by words, or by both.

from unmask.search import Index

hits = Index.open("my-index").search("how to reset a password", k=10)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.search.hits import Hit
    from unmask.search.index import Index

__all__ = ["Hit", "Index"]
_HOMES = {"Hit": "hits", "Index": "index"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that importing this package loads no library for searching."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'unmask.search' has no attribute '{name}'")
    return getattr(import_module(f"unmask.search.{_HOMES[name]}"), name)
