"""Figures of probes. Each takes the result of a probe; some take what the user calls a design, by its readable name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.io.files import atomic
from unmask.reporting.figures import short_label
from unmask.reporting.plotting import (
    BLUE,
    COLOURS,
    GREY,
    MARKS,
    ORANGE,
    heat_map,
    layer_ticks,
    new_figure,
    plain,
    require_figure_file,
    write_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from unmask.probing.attribution import Attribution
    from unmask.probing.clusters import Clusters
    from unmask.probing.layers import Layers
    from unmask.probing.prefixes import StageGaps
    from unmask.probing.prompt_sensitivity import PromptSensitivity
    from unmask.probing.state_change import StateChange
    from unmask.probing.won_pairs import WonPairs
    from unmask.statistics.intervals import Estimate

_CELL, _CHARACTER, _AGREEMENT_WIDTH = 0.42, 0.065, 3.4
"""Inches: a cell of a heat map with its number, a character of a tick label, and the panel of agreements of clusters."""

Names = Mapping[str, str]
_AS_THEY_ARE: Names = MappingProxyType({})


def draw_layers(result: Layers, names: Names = _AS_THEY_ARE) -> Figure:
    """Cosines of every two layers, and what each layer scores (or, without a task, its cosine with the next)."""
    depth, design = len(result.cosine), names.get(result.design, result.design)
    figure, left_axis, right = _by_layer(1.1, depth)
    _layer_heat_map(left_axis, np.where(np.tri(depth, dtype=bool), result.cosine, result.centred))
    left_axis.set_xticks([tick - 1 for tick in layer_ticks(depth)], list(map(str, layer_ticks(depth))))
    left_axis.set_xlabel("layer", fontsize=8)
    left_axis.set_title("Cosine of two layers: below the diagonal as is, above it centred", fontsize=9, loc="left")
    if result.scores:
        for index, task in enumerate(result.scores):
            style: dict[str, Any] = {
                "color": COLOURS[index % len(COLOURS)],
                "marker": MARKS[index % len(MARKS)],
                "label": task.task,
            }
            _band(right, 100 * np.array(task.scores), 100 * np.array(task.intervals) if task.intervals else None, **style)
        right.set_ylabel("main score x 100", fontsize=8)
        plain(right, f"Score of each layer, {design} (bands: 95 %)")
    else:
        _band(right, *_values(result.next_cosine), color=BLUE, marker="o", label="as is")
        _band(right, *_values(result.next_centred), color=ORANGE, marker="s", label="centred")
        right.set_ylabel("cosine with the next layer", fontsize=8)
        plain(right, f"{result.texts} texts, {design} (bands: 95 %)")
    right.legend(frameon=False, fontsize=8)
    return figure


def draw_states(result: StateChange) -> Figure:
    """Cosines by layer and position, and the mean by layer compared with unrelated tokens."""
    from unmask.probing.state_change import name_of

    table = np.array(result.cosine)
    figure, left_axis, right = _by_layer(1.2, len(table))
    _layer_heat_map(left_axis, table)
    left_axis.invert_yaxis()
    left_axis.set_xticks(range(len(result.bins)), [name_of(bounds) for bounds in result.bins], rotation=45, ha="right")
    left_axis.set_xlabel("position of the token", fontsize=8)
    left_axis.set_title("Cosine of a token's causal and bidirectional state", fontsize=9, loc="left")
    _band(right, *_values(result.mean), alpha=0.25, color=BLUE, marker="o", label="the same token")
    right.plot(range(1, len(table) + 1), result.unrelated, color=GREY, linestyle="--", label="any two tokens")
    right.set_ylim(min(0.0, *result.unrelated, float(table.min())) - 0.02, 1.02)
    right.set_ylabel("mean cosine", fontsize=8)
    plain(right, f"{sum(result.tokens)} tokens of {result.texts} texts (band: 95 %)")
    right.legend(frameon=False, fontsize=8)
    return figure


def _by_layer(ratio: float, depth: int) -> tuple[Figure, Axes, Axes]:
    """A heat map with layers as rows, and curves over layers."""
    figure, (left_axis, right) = new_figure(10, 4, 2, (ratio, 1))
    right.set_xticks(layer_ticks(depth))
    right.set_xlabel("layer", fontsize=8)
    return figure, left_axis, right


def _layer_heat_map(axes: Axes, table: Any) -> None:
    heat_map(axes, table, low=min(0.0, float(table.min())), high=1, label="mean cosine")
    ticks = layer_ticks(len(table))
    axes.set_yticks([tick - 1 for tick in ticks], list(map(str, ticks)))
    axes.set_ylabel("layer", fontsize=8)


def _values(estimates: Sequence[Estimate]) -> tuple[Any, Any]:
    """Values, shape (estimate,), and bounds, shape (estimate, 2)."""
    return np.array([estimate.value for estimate in estimates]), np.array([estimate.interval for estimate in estimates])


def _band(axes: Axes, values: Any, bounds: Any, alpha: float = 0.2, **style: Any) -> None:
    """A curve over layers, from layer 1, with its intervals as a band."""
    layers = np.arange(1, len(values) + 1)
    axes.plot(layers, values, markersize=3, **style)
    if bounds is not None:
        axes.fill_between(layers, *bounds.T, color=style["color"], alpha=alpha, linewidth=0)


def draw_clusters(result: Clusters, names: Names = _AS_THEY_ARE) -> Figure:
    """Shares of each cluster of the first design by cluster of the second, and each measure next to chance and repeated k-means."""
    first, second = (names.get(design, design) for design in result.designs)
    rows, columns = ([short_label(", ".join(words[:2]) or "-") for words in clusters] for clusters in result.words)
    # inches: the cells keep their size, whatever the length of their names
    cells = _CELL * max(result.clusters, 6)
    width, height = cells + _CHARACTER * max(map(len, rows)) + 5.6, cells + 0.75 * _CHARACTER * max(map(len, columns)) + 1
    figure, (left_axis, right) = new_figure(width, height, 2, ((cells + 0.5) / _AGREEMENT_WIDTH, 1))
    table = np.array(result.table, float)
    heat_map(left_axis, 100 * table / table.sum(axis=1, keepdims=True), low=0, high=100, label="", decimals=0)
    left_axis.set_yticks(range(result.clusters), rows)
    left_axis.set_xticks(range(result.clusters), columns, rotation=45, ha="right", rotation_mode="anchor")
    left_axis.set_ylabel(f"clusters of {first}", fontsize=8)
    left_axis.set_xlabel(f"clusters of {second}", fontsize=8)
    left_axis.set_title(f"Percent of each row's texts (seed 0, {result.texts} texts)", fontsize=9, loc="left")
    positions = np.arange(len(result.agreement))[::-1]
    for position, agreement in zip(positions, result.agreement, strict=True):
        chance = {"color": GREY, "linewidth": 5, "alpha": 0.5, "solid_capstyle": "butt"}
        for bounds, style in (
            (agreement.chance_interval, chance),
            (agreement.interval, {"color": BLUE, "linewidth": 2}),
            (sorted(agreement.themselves), {"color": ORANGE, "linewidth": 1}),
        ):
            if bounds:
                right.plot([100 * bound for bound in bounds], [position, position], **style)  # type: ignore[arg-type]
    for name, points, colour, mark in (
        ("chance (line: 95 %)", [agreement.chance for agreement in result.agreement], GREY, "|"),
        ("the two designs (line: 95 %)", [agreement.value for agreement in result.agreement], BLUE, "o"),
        (f"{first}, other seeds", [agreement.themselves[0] for agreement in result.agreement], ORANGE, "<"),
        (f"{second}, other seeds", [agreement.themselves[1] for agreement in result.agreement], ORANGE, ">"),
    ):
        right.plot([100 * point for point in points], positions, mark, color=colour, label=name, markersize=7)
    right.set_yticks(positions, [agreement.measure for agreement in result.agreement])
    right.set(xlim=(-5, 105), ylim=(-0.6, len(positions) - 0.4))
    plain(right, f"Agreement x 100, mean of {result.seeds} seeds")
    right.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.35 / cells), fontsize=8, frameon=False, handletextpad=0.3)
    return figure


def draw_prompts(result: PromptSensitivity) -> Figure:
    """The matrix as a heat map, and the correlation with gold scores of each prompt."""
    count, wide = len(result.prompts), len(result.features) > 1
    size = 0.34 * count * len(result.features) + 1.9
    panels = 2 if result.gold else 1
    figure, axes = new_figure(1.25 * size + 1 + 3.6 * (panels - 1), size, panels, (1.25 * size / 3.6, 1)[:panels])
    names = [f"{features} {prompt}" if wide else prompt for features, prompt in result.readings]
    matrix = np.array(result.spearman)
    heat_map(axes[0], matrix, low=min(0.0, float(matrix.min())), high=1, label="Spearman", numbers=True, decimals=2)
    axes[0].set_xticks(range(len(names)), names, rotation=90)
    axes[0].set_yticks(range(len(names)), names)
    if wide:
        for line in (axes[0].axhline, axes[0].axvline):
            line(count - 0.5, color="white", linewidth=2)
    axes[0].set_title(f"Rank correlation of the similarities of {result.pairs} pairs", fontsize=9, loc="left")
    if result.gold:
        positions = np.arange(count)[::-1]
        offsets = (0.12, -0.12) if wide else (0.0,)  # the two markers of a prompt stand above and below its tick
        for index, (features, offset) in enumerate(zip(result.features, offsets, strict=True)):
            values, bounds = _values(result.gold[index * count : (index + 1) * count])
            style: dict[str, Any] = {"fmt": "os"[index], "color": (BLUE, ORANGE)[index], "label": features, "markersize": 5}
            axes[1].errorbar(values, positions + offset, xerr=np.abs(bounds.T - values), **style)
        axes[1].set_yticks(positions, result.prompts)
        axes[1].set_ylim(-0.5, count - 0.5)  # the rows of the heat map, if this has one kind of features
        axes[1].set_xlabel("Spearman with gold (line: 95 %)", fontsize=8)
        plain(axes[1], "Agreement with gold scores")
        axes[1].grid(axis="x", color="0.9")
        if wide:
            row: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.99), "handletextpad": 0.2}
            axes[1].legend(frameon=False, fontsize=8, ncols=2, **row)
    return figure


def draw_pairs(result: WonPairs, names: Names = _AS_THEY_ARE) -> Figure:
    """Errors of the two designs pair by pair, and how far each design's margins reach."""
    labels = [names.get(design, design) for design in result.designs]
    first, second = (np.array(errors) for errors in result.errors)
    figure, (left_axis, right) = new_figure(9, 3.9, 2)
    margins = second - first
    size = float(np.clip(4000 / len(first), 4, 25))
    for side, colour, mark in ((margins > 0, BLUE, "o"), (margins < 0, ORANGE, "s"), (margins == 0, GREY, ".")):
        left_axis.scatter(first[side], second[side], s=size, color=colour, marker=mark, alpha=0.5, linewidths=0)
    top = 1.05 * float(max(first.max(), second.max()))
    left_axis.plot([0, top], [0, top], color=GREY, linewidth=0.8)
    left_axis.set(xlim=(0, top), ylim=(0, top), aspect="equal")
    left_axis.set_xlabel(f"error of {labels[0]}", fontsize=8)
    left_axis.set_ylabel(f"error of {labels[1]}", fontsize=8)
    plain(left_axis, f"{result.pairs} pairs (error: distance of ranks / pairs)")
    for index, won in enumerate((margins[margins > 0], -margins[margins < 0])):
        reach = sorted(won)
        # as many margins reach x as are not below it; the line ends with a drop to 0, which a log axis clips at its lower edge
        right.plot(
            [0.0, *reach, max(reach, default=0.0)],
            [len(reach), *range(len(reach), -1, -1)],
            drawstyle="steps-pre",
            color=(BLUE, ORANGE)[index],
            linestyle=("-", "--")[index],
            label=f"{labels[index]} wins ({result.wins[index]})",
        )
    if any(result.wins):
        right.set_yscale("log", nonpositive="clip")
        right.yaxis.set_major_formatter("{x:g}")
    right.set_ylim(bottom=0.8)
    right.set_xlim(left=0)
    right.set_xlabel("margin at least", fontsize=8)
    right.set_ylabel("pairs", fontsize=8)
    plain(right, f"Mean margin {result.margin.value:+.4f} (Wilcoxon: p = {result.p:.2g})")
    right.legend(frameon=False, fontsize=8)
    return figure


def draw_stages(result: StageGaps) -> Figure:
    """The gap of each stage with its interval, and the two mean cosines whose difference it is."""
    stages = result.stages
    figure, (left_axis, right) = new_figure(9, 1.3 + 0.4 * max(len(stages), 2), 2)
    positions = np.arange(len(stages))[::-1]
    gaps = np.array([stage.result.gap for stage in stages])
    spread = np.abs(np.array([stage.result.interval for stage in stages]).T - gaps)
    left_axis.axvline(0, color=GREY, linewidth=0.8)
    left_axis.errorbar(gaps, positions, xerr=spread, fmt="o", color=BLUE)
    left_axis.set_yticks(positions, [stage.name for stage in stages])
    left_axis.set_xlabel("gap (line: 95 %)", fontsize=8)
    plain(left_axis, f"Does a prefix use what follows it? {stages[0].result.triples} triples")
    same, different = [stage.result.same for stage in stages], [stage.result.different for stage in stages]
    right.plot(same, positions, "o", color=BLUE, label="what follows means the same")
    right.plot(different, positions, "s", color=ORANGE, markerfacecolor="none", label="what follows means something else")
    right.set_yticks(positions, [""] * len(stages))
    right.set_xlabel("mean cosine of the prefix's states", fontsize=8)
    plain(right, "")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", frameon=False, fontsize=8, ncols=2)
    for axis in (left_axis, right):
        axis.set_ylim(-0.6, len(stages) - 0.4)
    return figure


DRAWN: dict[str, Callable[..., Figure]] = {
    "layers": draw_layers,
    "states": draw_states,
    "clusters": draw_clusters,
    "prompts": draw_prompts,
    "pairs": draw_pairs,
    "prefix": draw_stages,
}
"""The figure of each probe that writes a folder."""


def draw_attribution(result: Attribution, file: Path) -> None:
    """Bars of the shares with their spread over texts, and what equal shares would be; format by the file's ending.

    Raises UnmaskError for another ending, and for a file that unmask did not write.
    """
    require_figure_file(file)
    depth = len(result.shares)
    figure, [axes] = new_figure(7, 3.2)
    shares = 100 * np.array(result.shares)
    spread = np.abs(100 * np.array([result.low, result.high]) - shares)
    lines = {"elinewidth": 0.8, "ecolor": "0.4"}
    axes.bar(np.arange(1, depth + 1), shares, color="tab:blue", yerr=spread, error_kw=lines)
    axes.set_xticks(layer_ticks(depth))
    axes.axhline(100 / depth, color="0.3", linewidth=0.8, linestyle="--", label="every layer alike")
    title = f"{result.provenance['design']}: {result.texts} texts (bars: mean, lines: 10 to 90 %)"
    axes.set(xlabel="layer", ylabel="share of attention (%)", title=title)
    axes.legend(frameon=False)
    with atomic(file) as scratch:
        write_figure(figure, scratch, file.suffix.removeprefix("."), 120)
