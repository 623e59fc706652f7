"""Paths as users give them, and the folder of this program in the cache."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """A path with the home folder in place of `~`. A name such as `~draft`, of no user, is kept: pathlib fails on it."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser fails on ~nobody)


def cache_folder() -> Path:
    """The folder of this program in the user's cache: converted models, digests, weights on disk."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("UNMASK_CACHE") or Path(home) / "unmask")
