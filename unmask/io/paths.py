"""Paths as users give them."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """A path with the home folder in place of `~`. A name such as `~draft`, of no user, is kept: pathlib fails on it."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser fails on ~nobody)
