"""Parts of tables that all views share."""

from __future__ import annotations

from collections.abc import Sequence

from tools.results.kept import Kept
from unmask.io.terminal import enumeration
from unmask.studies.sheet import Sheet


def command(kept: Kept) -> str:
    """The command, the hardware and the versions."""
    libraries = ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    return f"```\n{kept['command']}\n```\nOn {kept['hardware']}, with {libraries}.\n"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without a title."""
    return Sheet("", tuple(columns), tuple(tuple(row) for row in rows)).body()


def interval(bounds: Sequence[float]) -> str:
    """Two scores x 100 in brackets."""
    low, high = bounds
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def bold(text: str, marked: bool) -> str:
    """The text, in bold if it is marked."""
    return f"**{text}**" if marked else text


def listed(names: Sequence[str]) -> str:
    """Names of designs as a list in a sentence."""
    return enumeration([f"`{name}`" for name in names])
