"""An index of documents on disk (a LanceDB table), and searching it: by vectors, by words, or by both.

from unmask.search import Index

hits = Index.open("my-index").search("how to reset a password", k=10)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.search.index import Hit, Index

__all__ = ["Hit", "Index"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that importing this package loads no library for searching."""
    if name not in __all__:
        raise AttributeError(f"module 'unmask.search' has no attribute '{name}'")
    from unmask.search import index

    return getattr(index, name)
