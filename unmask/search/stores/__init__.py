"""Stores: where the documents of an index and their vectors lie on the disk."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from unmask.search.stores.lance import LanceKind
from unmask.search.stores.store import StoreKind
from unmask.search.stores.usearch_file import UsearchKind

STORES: Final[dict[str, StoreKind]] = {kind.name: kind for kind in (LanceKind(), UsearchKind())}
"""Every kind of store by its name. The first that is installed is the default."""


def default_store() -> str:
    """The first store whose library is installed; the first of all if none is, whose error says what to install."""
    return next((name for name, kind in STORES.items() if find_spec(kind.needs)), next(iter(STORES)))
