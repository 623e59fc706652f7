"""Plotting: what the figures of probes and studies share.

Every kind of eye tells the colours apart (Okabe and Ito); in grey, their lightness does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.errors import UnmaskError
from unmask.io.files import atomic, refuse_foreign

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666"
COLOURS = (BLUE, ORANGE, GREEN, PINK, "#e69f00", "#56b4e9")
MARKS = "osD^vP"
_CELLS_WITH_NUMBERS = 12
MADE_BY = "made by unmask"
"""Metadata written to each figure, to recognise files that unmask may overwrite."""
METADATA = {
    "png": {"Software": MADE_BY},
    "svg": {"Creator": MADE_BY, "Date": None},
    "pdf": {"Creator": MADE_BY, "CreationDate": None},
}
"""What is written into a figure, by the ending of its file. Every figure is written in each of these formats."""
_TRUETYPE = 42  # publishers refuse the Type 3 fonts that matplotlib embeds by default
_MOST_TICKS = 8


def new_figure(
    width: float, height: float, columns: int = 1, ratios: Sequence[float] | None = None, *, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure of some inches with its panels, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, width_ratios=ratios).flat)


def plain(axis: Axes, title: str) -> None:
    """A title on the left, no frame on top and on the right."""
    axis.set_title(title, fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def layer_ticks(depth: int) -> list[int]:
    """Evenly spaced layer numbers for an axis from layer 1 to `depth`: multiples of 1, 2, 5, 10, ... of which at most eight fit."""
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if depth // step <= _MOST_TICKS)
    return list(range(step, depth + 1, step))


def heat_map(
    axis: Axes, values: Any, *, low: float, high: float, label: str, numbers: bool | None = None, decimals: int = 2
) -> None:
    """Cells coloured from dark (low) to light (high), with a bar that tells the colours, and their numbers where there is room."""
    table = np.ma.masked_invalid(np.asarray(values, float))
    image = axis.imshow(table, vmin=low, vmax=high, cmap="cividis", aspect="auto")
    bar = axis.figure.colorbar(image, ax=axis, shrink=0.9, pad=0.015)
    bar.ax.tick_params(labelsize=8)
    bar.set_label(label, fontsize=8)
    axis.tick_params(labelsize=8)
    if numbers is None:
        numbers = max(table.shape) <= _CELLS_WITH_NUMBERS
    for (row, column), value in np.ndenumerate(table) if numbers else ():
        if value is not np.ma.masked:
            light = value > (low + high) / 2
            axis.text(
                column, row, f"{value:.{decimals}f}", ha="center", va="center", fontsize=7, color="black" if light else "white"
            )


def arrange(figure: Figure, dpi: float) -> None:
    """Compute the layout once; otherwise every output format computes it again and draws the figure twice."""
    figure.set_dpi(dpi)
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine(None)


def require_figure_file(file: Path) -> None:
    """Raise UnmaskError, before any work, if a figure cannot be written: unsupported extension, or a file not from unmask."""
    if file.suffix.removeprefix(".") not in METADATA:
        raise UnmaskError(f"A figure is written as {', '.join(METADATA)}: give a file with such an ending, not '{file.name}'.")
    refuse_foreign(file, [MADE_BY], "file")


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF; their files. The same figure gives the same bytes."""
    arrange(figure, 150)
    files = [folder / f"{name}.{ending}" for ending in METADATA]
    for file in files:
        with atomic(file) as scratch:
            write_figure(figure, scratch, file.suffix.removeprefix("."), 150, name)
    return files


def write_figure(figure: Figure, file: Path, ending: str, dpi: float, salt: str = "unmask") -> None:
    """Write an arranged figure in one format, marked as ours. The same figure gives the same bytes."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": salt, "pdf.fonttype": _TRUETYPE}):
        figure.savefig(file, format=ending, dpi=dpi, metadata=METADATA[ending])
