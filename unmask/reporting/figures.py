"""Figures: ranked designs, critical differences, curves over layers, quality against cost; each where there is something to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from unmask.designs.design import Design
from unmask.designs.presets import PRESETS
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result
from unmask.evaluation.verdict import System, model_name
from unmask.reporting.grid import DesignCost, Grid, design_of
from unmask.reporting.plotting import new_figure
from unmask.reporting.summary import Summary
from unmask.reporting.svg import ACCENT, INK, LINE, MUTED, PAPER, SERIES, SOFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from unmask.statistics.ranks import Ranks

_WIDTH = 5.6  # inches: on a phone its text can still be read
_WIDE = 7.6  # for names on two sides
_NARROW = 4.4  # a phone shows all of it
_LONGEST_NAME, _SHORT_NAME = 30, 26
_LINE = 0.17  # inches from one name to the next
_MARKERS = "osD^vPX"  # one more than colours, so that both come round together only after 42 lines


def draw(grid: Grid, summary: Summary) -> dict[str, Figure]:
    """Every figure that there is something for, by name."""
    figures = {name: figure(grid, summary) for name, figure in FIGURES.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}


def short_label(name: str, longest: int = _LONGEST_NAME) -> str:
    """A name that fits next to a chart: on one line, with the middle of a long name elided."""
    name = " ".join(name.split()) or "(no name)"
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"


def ranking(grid: Grid, summary: Summary) -> Figure:
    """Mean of every design with its interval; filled: the leader, and what the tests do not tell apart from it."""
    number = len(summary.order)
    figure, [axes] = new_figure(_NARROW, 0.9 + 0.27 * number)
    for row, (system, mean) in enumerate(summary.order):
        filled = system in summary.level
        low, high = summary.intervals.get(system, (mean, mean))
        axes.plot([100 * low, 100 * high], [row, row], color=ACCENT if filled else SOFT, linewidth=1.8, solid_capstyle="round")
        _draw_point(axes, system, (100 * mean, row), filled)
        axes.annotate(
            f"{100 * mean:.1f}", (1.01, row), xycoords=("axes fraction", "data"), va="center", color=INK if filled else MUTED
        )
    axes.set_yticks(range(number), [short_label(grid.names[system], _SHORT_NAME) for system, _ in summary.order])
    axes.set_ylim(number - 0.4, -0.6)
    axes.set_xlabel(f"main score x 100, {_mean_over(len(summary.common))}")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    return figure


def _draw_point(axes: Axes, system: System, point: tuple[float, float], filled: bool) -> None:
    """A dot for a design, a diamond for a reference."""
    mark, size = ("D", 5.5) if system[1] == SENTENCE_TRANSFORMERS else ("o", 6.5)
    colours = {"color": ACCENT} if filled else {"color": PAPER, "markeredgecolor": MUTED}
    axes.plot(*point, mark, markersize=size, zorder=3, **colours)  # type: ignore[arg-type]


def critical(grid: Grid, summary: Summary) -> Figure | None:
    """Critical-difference diagram: mean ranks on a line, a bar over each group without significant differences (Demsar, 2006)."""
    return None if summary.ranks is None else critical_diagram(summary.ranks)


def critical_diagram(ranks: Ranks) -> Figure:
    """The diagram of any ranks. The better half of the designs is named on the left, the other on the right."""
    order = sorted(ranks.mean_ranks.items(), key=lambda item: item[1])
    # a bar of a single design says nothing; the longest first, so that the picture narrows downwards
    groups = sorted((group for group in ranks.cliques if len(group) > 1), key=lambda group: ranks.mean_ranks[group[0]])
    half = (len(order) + 1) // 2
    bars = [0.6 + 0.5 * index for index in range(len(groups))]
    top = (bars[-1] if bars else 0) + 1.2
    depth = top + half
    figure, [axes] = new_figure(_WIDE, 0.3 + 0.2 * (depth + 1.5))
    last = len(order)
    names = [short_label(name, 26) for name, _ in order]
    share = min(0.3, 0.07 + 0.009 * max(map(len, names)))  # of the width, for the names on either side
    margin = share / (1 - 2 * share) * (last - 1)
    axes.plot([1, last], [0, 0], color=INK, linewidth=1.2)
    for tick in range(1, last + 1, max(1, -(-last // 10))):
        axes.plot([tick, tick], [0, -0.25], color=INK, linewidth=1)
        axes.text(tick, -0.45, str(tick), ha="center", va="bottom", color=MUTED)
    for index, (_, rank) in enumerate(order):
        on_left = index < half
        level = top + (index if on_left else len(order) - 1 - index)
        edge = 1 - 0.06 * margin if on_left else last + 0.06 * margin
        axes.plot([rank, rank, edge], [0, level, level], color=MUTED, linewidth=0.8)
        text = f"{names[index]}  {rank:.1f}" if on_left else f"{rank:.1f}  {names[index]}"
        axes.text(
            edge - 0.03 * margin if on_left else edge + 0.03 * margin,
            level,
            text,
            ha="right" if on_left else "left",
            va="center",
            in_layout=False,
            fontsize=8,
        )
    for level, group in zip(bars, groups, strict=True):
        ends = [ranks.mean_ranks[name] for name in group]
        axes.plot([min(ends) - 0.04, max(ends) + 0.04], [level, level], color=ACCENT, linewidth=4, solid_capstyle="round")
    axes.set_xlim(1 - margin, last + margin)
    axes.set_ylim(depth, -1.5)
    axes.axis("off")
    return figure


@dataclass(frozen=True)
class Curve:
    """Designs that differ only in the layer they read, on tasks of one kind: mean score by layer, and after the last norm."""

    name: str
    layers: tuple[int, ...]
    scores: tuple[float, ...]
    final: float | None


def curves(grid: Grid, kind: str) -> list[Curve]:
    """Curves of every family of designs with at least two layers, over the tasks of a kind that the whole family was scored on."""
    families: dict[tuple[str, str | None, Design], dict[int | None, list[Result]]] = {}
    for result in grid.results:
        design = design_of(result)
        if result.kind == kind and design is not None and not isinstance(design.layer, str | tuple):
            family = families.setdefault((result.model, result.conditions.reference, replace(design, layer=None)), {})
            family.setdefault(design.layer, []).append(result)
    models = list(dict.fromkeys(model for model, _, _ in families))
    short = {model: model_name(model) for model in models}
    lines = []
    for (model, _, design), by_layer in families.items():
        layers = sorted(layer for layer in by_layer if layer is not None)
        common = set.intersection(*({result.task for result in those} for those in by_layer.values()))
        if len(layers) < 2 or not common:
            continue
        means = {
            layer: float(np.mean([result.main_score for result in those if result.task in common]))
            for layer, those in by_layer.items()
        }
        # what the user calls it: the label of its results, or the name of a preset that is the same design
        presets = (name for name, preset in PRESETS.items() if preset.design == design.name)
        called = next((result.label for result in by_layer.get(None, ()) if result.label), None) or next(presets, design.name)
        alone = list(short.values()).count(short[model]) == 1
        name = f"{short[model] if alone else model} {called}" if len(models) > 1 else called
        lines.append(Curve(name, tuple(layers), tuple(means[layer] for layer in layers), means.get(None)))
    return lines


def layers(grid: Grid, summary: Summary) -> Figure | None:
    """Score by layer, a panel for each kind of task that holds designs which differ only in the layer."""
    panels = {kind: lines for kind in grid.kinds if (lines := curves(grid, kind))}
    if not panels:
        return None
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    figure, grid_of_axes = new_figure(_WIDTH, 2.3 * rows + 0.4 + 0.2 * len(names), columns, rows=rows)
    for axes, (kind, lines) in zip(grid_of_axes, panels.items(), strict=False):
        _draw_curves(axes, lines, names)
        axes.set_title(kind)
    for axes in grid_of_axes[len(panels) :]:
        axes.set_visible(False)
    handles, labels = grid_of_axes[0].get_legend_handles_labels()
    for axes in grid_of_axes[1:]:
        legend = axes.get_legend_handles_labels()
        handles += [handle for handle, label in zip(*legend, strict=True) if label not in labels]
        labels += [label for label in legend[1] if label not in labels]
    figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=8.5)
    return figure


def _draw_curves(axes: Axes, lines: Sequence[Curve], names: Sequence[str]) -> None:
    ticks = sorted({layer for line in lines for layer in line.layers})
    ticks = ticks if len(ticks) <= 8 else ticks[:: -(-len(ticks) // 8)]
    last = max(line.layers[-1] for line in lines)
    final_at = last + max(1, ticks[1] - ticks[0])
    for line in lines:
        index = names.index(line.name)
        colour, mark = SERIES[index % len(SERIES)], _MARKERS[index % len(_MARKERS)]
        # a leading blank: matplotlib leaves names that start with an underscore out of legends
        axes.plot(
            line.layers,
            100 * np.array(line.scores),
            marker=mark,
            markersize=4.5,
            color=colour,
            label=" " + short_label(line.name, 60),
        )
        if line.final is not None:
            axes.plot(final_at, 100 * line.final, marker=mark, markersize=6, markerfacecolor=PAPER, color=colour)
    final = any(line.final is not None for line in lines)
    axes.set_xticks([*ticks, final_at] if final else ticks, [*map(str, ticks), "final"] if final else list(map(str, ticks)))
    axes.set_xlabel("layer")
    axes.set_ylabel("main score x 100")
    axes.grid(axis="y")


@dataclass(frozen=True)
class Price:
    """A way to count what a design costs, what to call it, and the unit that it is shown in."""

    what: str
    of: Callable[[DesignCost], float | None]


TOKENS = Price("tokens computed per text", lambda cost: cost.tokens_per_text)
TIME = Price("milliseconds a text", lambda cost: cost.milliseconds_per_text)
MEMORY = Price("peak memory, GiB", lambda cost: cost.peak_memory / 2**30 if cost.peak_memory else None)
DIMENSIONS = Price("dimensions of a vector", lambda cost: float(cost.dim))


def main_price(grid: Grid, summary: Summary) -> Price:
    """Time where every design has been timed; tokens per text otherwise."""
    return TIME if all(grid.design_costs[system].milliseconds_per_text for system, _ in summary.order) else TOKENS


def front(points: Sequence[tuple[System, float, float]]) -> list[System]:
    """Of (system, price, score): those that no other beats at the same price or less (the Pareto front), cheapest first."""
    best, cheapest = -np.inf, []
    for system, _, score in sorted(points, key=lambda point: (point[1], -point[2])):
        if score > best:
            best = score
            cheapest.append(system)
    return cheapest


def price_points(grid: Grid, summary: Summary, price: Price) -> list[tuple[System, float, float]]:
    """(system, price, mean score) of every ranked design whose price is known."""
    prices = [(system, price.of(grid.design_costs[system]), mean) for system, mean in summary.order]
    return [(system, value, mean) for system, value, mean in prices if value is not None]


def trade(grid: Grid, summary: Summary, price: Price) -> Figure | None:
    """Quality against a price, with the Pareto front; nothing where all designs cost the same."""
    points = price_points(grid, summary, price)
    if len({value for _, value, _ in points}) < 2:
        return None
    leading = front(points)
    height = max(3.3, 0.8 + _LINE * len(points))
    figure, [axes] = new_figure(_WIDTH, height)
    coordinates = {system: (value, 100 * mean) for system, value, mean in points}
    steps = zip(*(coordinates[system] for system in leading), strict=True)
    axes.plot(*map(list, steps), drawstyle="steps-post", color=SOFT, linewidth=1.4, zorder=1)
    for system, point in coordinates.items():
        _draw_point(axes, system, point, system in leading)
    values = [value for value, _ in coordinates.values()]
    if max(values) > 20 * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")  # the default writes powers in TeX, which is not rendered in text
    axes.margins(x=0.06, y=0.06)
    gap = _LINE / (height - 0.6)  # of the axes, which are that much lower than the figure
    _name_points(
        axes,
        gap,
        [(short_label(grid.names[system], _SHORT_NAME), coordinates[system], system in leading) for system in coordinates],
    )
    axes.set_xlabel(price.what)
    axes.set_ylabel(f"main score x 100, {_mean_over(len(summary.common))}")
    axes.grid()
    axes.set_axisbelow(True)
    return figure


def _name_points(axes: Axes, gap: float, points: Sequence[tuple[str, tuple[float, float], bool]]) -> None:
    """Name points, highest first, in a column on the right of the axes, each joined to its point by a line; gap: from name to name.

    The names stand as near to the heights of their points as they can without overlapping (isotonic regression).
    """
    from scipy.optimize import isotonic_regression

    axes.autoscale_view()
    low, high = axes.get_ylim()
    steps = gap * np.arange(len(points))
    heights = np.array([(y - low) / (high - low) for _, (_, y), _ in points])
    heights = isotonic_regression(np.clip(heights + steps, min(steps[-1], 1), 1), increasing=False).x - steps
    for (name, point, leads), height in zip(points, heights, strict=True):
        line = {
            "arrowstyle": "-",
            "color": SOFT if leads else LINE,
            "linewidth": 0.8,
            "relpos": (0, 0.5),
            "shrinkA": 1,
            "shrinkB": 4,
        }
        axes.annotate(
            name, point, (1.04, height), textcoords="axes fraction", va="center", color=INK if leads else MUTED, arrowprops=line
        )


FIGURES: dict[str, Callable[[Grid, Summary], Figure | None]] = {
    "ranking": ranking,
    "critical": critical,
    "layers": layers,
    "cost": lambda grid, summary: trade(grid, summary, main_price(grid, summary)),
    "memory": lambda grid, summary: trade(grid, summary, MEMORY),
    "dimensions": lambda grid, summary: trade(grid, summary, DIMENSIONS),
}


def _mean_over(tasks: int) -> str:
    return f"mean of {tasks} tasks" if tasks > 1 else "1 task"
