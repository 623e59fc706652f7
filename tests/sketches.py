"""Figures made cheap, for tests of which files are written and when: what a figure shows is written down and not drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def sketching() -> Iterator[None]:
    """Write sketches in a `with` block."""
    with pytest.MonkeyPatch.context() as patch:
        sketch_figures(patch.setattr)
        yield


def sketch_figures(change: Callable[[object, str, object], None] = setattr) -> None:
    """Write sketches from now on: one file, opened and written once, as if drawn. change: `monkeypatch.setattr`, if it is to be undone."""
    from matplotlib.figure import Figure

    drawn = Figure.savefig

    def savefig(figure: Figure, file: Any, **options: Any) -> None:
        if not isinstance(file, Path):  # a figure for a page, which is read again as SVG
            drawn(figure, file, **options)
            return
        file.write_bytes(sketch(figure))

    change(Figure, "savefig", savefig)


def sketch(figure: Any) -> bytes:
    """The texts, places and colours of a figure's parts, one line each: figures that show different things have different sketches."""
    lines = []
    for part in figure.findobj():
        told = [
            getattr(part, name)()
            for name in ("get_text", "get_xydata", "get_offsets", "get_array", "get_color")
            if hasattr(part, name)
        ]
        lines.append(f"{type(part).__name__} {[one.tolist() if hasattr(one, 'tolist') else one for one in told]}")
    return "\n".join(lines).encode()
