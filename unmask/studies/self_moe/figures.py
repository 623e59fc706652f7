"""Figures of the study: the experts that each domain uses, the loss by number of experts and lessons, and the cost of experts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.io.files import atomic
from unmask.moe.routing.text_bootstrap import without_chance
from unmask.studies.self_moe.run import BASE, INSTANCE, ORACLE, Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#666666"  # colour-blind people can tell these apart


def draw_figures(findings: Findings, folder: Path) -> list[Path]:
    """Write every figure that has data. Returns the files."""
    written = []
    for name, figure in (("routing", _routing(findings)), ("growth", _growth(findings)), ("overhead", _overhead(findings))):
        if figure is not None:
            file = folder / f"{name}.png"
            with atomic(file) as scratch:
                figure.savefig(scratch, format="png", dpi=150, bbox_inches="tight")
            written.append(file)
    return written


def _figure(columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, columns)))


def _routing(findings: Findings) -> Figure | None:
    """The share of each domain's tokens that go to each expert first, one panel for each mixture."""
    shown = list(findings.usage.items())[:6]
    if not shown:
        return None
    figure, axes = _figure(len(shown), 1.2 + 2.3 * len(shown), 2.9)
    for place, (axis, (name, usage)) in enumerate(zip(axes, shown, strict=True)):
        load = np.array(usage["load"])
        axis.imshow(load, vmin=0, vmax=1, cmap="Blues")
        for (row, column), share in np.ndenumerate(load):
            axis.text(
                column, row, f"{share:.2f}", ha="center", va="center", fontsize=8, color="white" if share > 0.6 else "black"
            )
        axis.set_xticks(range(len(usage["experts"])), usage["experts"], rotation=45, ha="right", fontsize=8)
        axis.set_yticks(range(len(load)), usage["domains"] if place == 0 else [""] * len(load), fontsize=8)
        axis.set_title(f"{name}\nI(D;E) {without_chance(usage['information'], usage['shuffled']):.2f}", fontsize=9)
    figure.suptitle("Share of each domain's tokens (row) that go to each expert first (column)", fontsize=9)
    return figure


def _growth(findings: Findings) -> Figure | None:
    """Average loss by number of experts, and by number of lessons."""
    panels: list[Any] = [part for part in (findings.growing, findings.sizes) if part]
    if not panels:
        return None
    figure, axes = _figure(len(panels), 4.6 * len(panels), 3.2)
    if findings.growing:
        axis = axes[0]
        axis.plot([_average(values) for values in findings.growing.values()], marker="o", color=_BLUE, label="MiXSE")
        axis.axhline(_average(findings.main[INSTANCE]), color=_ORANGE, linestyle="--", label=INSTANCE)
        axis.set_xticks(range(len(findings.growing)), [name.replace(": ", "\n") for name in findings.growing], fontsize=8)
        axis.set_xlabel("experts")
    if findings.sizes:
        axis = axes[-1]
        numbers = sorted(findings.sizes)
        for name, colour, mark in (("MiXSE", _BLUE, "o"), (INSTANCE, _ORANGE, "s")):
            axis.plot(
                numbers, [_average(findings.sizes[number][name]) for number in numbers], marker=mark, color=colour, label=name
            )
        axis.set_xticks(numbers)
        axis.set_xlabel("lessons of a domain")
    for axis in axes:
        axis.axhline(_average(findings.main[ORACLE]), color=_GREY, linestyle=":", label=ORACLE)
        axis.set_ylabel("nats a response token")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_title(f"base: {_average(findings.main[BASE]):.2f}", fontsize=9, loc="left")
    return figure


def _overhead(findings: Findings) -> Figure | None:
    """Parameters, operations and time of a mixture, as shares of its base."""
    if not findings.overhead:
        return None
    overhead = findings.overhead
    shares = {
        "parameters": 1 + overhead["added"] / overhead["parameters"],
        "FLOPs of a forward pass": overhead["flops"],
        "its time": overhead["forward"],
    }
    figure, (axis,) = _figure(1, 5.2, 1.5)
    places = range(len(shares))[::-1]
    axis.barh(places, list(shares.values()), color=_BLUE, height=0.55)
    axis.axvline(1, color=_GREY, linestyle=":")
    for place, share in zip(places, shares.values(), strict=True):
        axis.annotate(f"{share:.2f}", (share, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, list(shares), fontsize=8)
    axis.set_xlim(0, 1.15 * max(shares.values()))
    axis.set_title(f"{overhead['experts']} experts, times the base model", fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _average(values: Any) -> float:
    return float(np.mean([some.mean() for some in values.values()]))
