"""Figures of probes. Each takes the result of a probe, and the names that the user gave to its designs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from unmask.io.files import atomic
from unmask.reporting.figures import shortened
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
    save_figure,
    write_figure,
)

if TYPE_CHECKING:
    from unmask.probing.attribution import Attribution
    from unmask.probing.clusters import Clusters
    from unmask.probing.layers import Layers
    from unmask.probing.prefixes import StageGaps
    from unmask.probing.prompt_sensitivity import PromptSensitivity
    from unmask.probing.state_change import StateChange
    from unmask.probing.won_pairs import WonPairs

_CELL, _CHARACTER, _AGREEMENT_WIDTH = 0.42, 0.065, 3.4
"""Inches: a cell of a heat map with its number, a character of a tick label, and the panel of agreements of clusters."""

Names = Mapping[str, str]
"""What the user calls a design, by its readable name."""
_AS_THEY_ARE: Names = MappingProxyType({})


def draw_layers(result: Layers, folder: Path, names: Names = _AS_THEY_ARE) -> list[Path]:
    """Cosines of every two layers, and what each layer scores (or, without a task, its cosine with the next)."""
    depth, design = len(result.cosine), names.get(result.design, result.design)
    figure, (left_axes, right_axes) = new_figure(10, 4, 2, (1.1, 1))
    both = np.where(np.tri(depth, dtype=bool), result.cosine, result.centred)
    heat_map(left_axes, both, low=min(0.0, float(both.min())), high=1, label="mean cosine")
    ticks = layer_ticks(depth)
    left_axes.set_xticks([tick - 1 for tick in ticks], list(map(str, ticks)))
    left_axes.set_yticks([tick - 1 for tick in ticks], list(map(str, ticks)))
    right_axes.set_xticks(ticks)
    left_axes.set_xlabel("layer", fontsize=8)
    left_axes.set_ylabel("layer", fontsize=8)
    left_axes.set_title("Cosine of two layers: below the diagonal as is, above it centred", fontsize=9, loc="left")
    layers = np.arange(1, depth + 1)
    if not result.scores:
        for name, estimates, colour, mark in (
            ("as is", result.next_cosine, BLUE, "o"),
            ("centred", result.next_centred, ORANGE, "s"),
        ):
            bounds = np.array([estimate.interval for estimate in estimates]).T
            right_axes.plot(
                layers[:-1], [estimate.value for estimate in estimates], marker=mark, markersize=3, color=colour, label=name
            )
            right_axes.fill_between(layers[:-1], *bounds, color=colour, alpha=0.2, linewidth=0)
        right_axes.set_ylabel("cosine with the next layer", fontsize=8)
        plain(right_axes, f"{result.texts} texts, {design} (bands: 95 %)")
    for nth, scored in enumerate(result.scores):
        colour, mark = COLOURS[nth % len(COLOURS)], MARKS[nth % len(MARKS)]
        right_axes.plot(layers, 100 * np.array(scored.scores), marker=mark, markersize=3, color=colour, label=scored.task)
        if scored.intervals:
            right_axes.fill_between(layers, *(100 * np.array(scored.intervals).T), color=colour, alpha=0.2, linewidth=0)
    if result.scores:
        right_axes.set_ylabel("main score x 100", fontsize=8)
        plain(right_axes, f"Score of each layer, {design} (bands: 95 %)")
    right_axes.set_xlabel("layer", fontsize=8)
    right_axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "layers")


def draw_states(result: StateChange, folder: Path) -> list[Path]:
    """Cosines by layer and position, and the mean by layer compared with unrelated tokens."""
    from unmask.probing.state_change import name_of

    figure, (left_axes, right_axes) = new_figure(10, 4, 2, (1.2, 1))
    table = np.array(result.cosine)
    heat_map(left_axes, table, low=min(0.0, float(table.min())), high=1, label="mean cosine")
    left_axes.invert_yaxis()
    left_axes.set_xticks(range(len(result.bins)), [name_of(bounds) for bounds in result.bins], rotation=45, ha="right")
    depth = len(table)
    ticks = layer_ticks(depth)
    left_axes.set_yticks([tick - 1 for tick in ticks], list(map(str, ticks)))
    right_axes.set_xticks(ticks)
    left_axes.set_xlabel("position of the token", fontsize=8)
    left_axes.set_ylabel("layer", fontsize=8)
    left_axes.set_title("Cosine of a token's causal and bidirectional state", fontsize=9, loc="left")
    layers = np.arange(1, depth + 1)
    right_axes.plot(
        layers, [estimate.value for estimate in result.mean], marker="o", markersize=3, color=BLUE, label="the same token"
    )
    right_axes.fill_between(
        layers, *np.array([estimate.interval for estimate in result.mean]).T, color=BLUE, alpha=0.25, linewidth=0
    )
    right_axes.plot(layers, result.unrelated, color=GREY, linestyle="--", label="any two tokens")
    right_axes.set_ylim(min(0.0, *result.unrelated, float(table.min())) - 0.02, 1.02)
    right_axes.set_xlabel("layer", fontsize=8)
    right_axes.set_ylabel("mean cosine", fontsize=8)
    plain(right_axes, f"{sum(result.tokens)} tokens of {result.texts} texts (band: 95 %)")
    right_axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "states")


def draw_clusters(result: Clusters, folder: Path, names: Names = _AS_THEY_ARE) -> list[Path]:
    """Shares of each cluster of the first design by cluster of the second, and each measure next to chance and repeated k-means."""
    first, second = (names.get(design, design) for design in result.designs)
    rows, columns = ([shortened(", ".join(words[:2]) or "-") for words in clusters] for clusters in result.words)
    # inches: the cells keep their size, whatever the length of their names
    cells, label_width, label_height = (
        _CELL * max(result.clusters, 6),
        _CHARACTER * max(map(len, rows)),
        _CHARACTER * max(map(len, columns)),
    )
    figure, (left_axes, right_axes) = new_figure(
        cells + label_width + 5.6, cells + 0.75 * label_height + 1, 2, ((cells + 0.5) / _AGREEMENT_WIDTH, 1)
    )
    table = np.array(result.table, float)
    shares = 100 * table / table.sum(axis=1, keepdims=True)
    heat_map(left_axes, shares, low=0, high=100, label="", decimals=0)
    left_axes.set_yticks(range(result.clusters), rows)
    left_axes.set_xticks(range(result.clusters), columns, rotation=45, ha="right", rotation_mode="anchor")
    left_axes.set_ylabel(f"clusters of {first}", fontsize=8)
    left_axes.set_xlabel(f"clusters of {second}", fontsize=8)
    left_axes.set_title(f"Percent of each row's texts (seed 0, {result.texts} texts)", fontsize=9, loc="left")
    positions = np.arange(len(result.agreement))[::-1]
    for position, agreement in zip(positions, result.agreement, strict=True):
        right_axes.plot(
            [100 * bound for bound in agreement.chance_interval],
            [position, position],
            color=GREY,
            linewidth=5,
            alpha=0.5,
            solid_capstyle="butt",
        )
        if agreement.interval:
            right_axes.plot([100 * bound for bound in agreement.interval], [position, position], color=BLUE, linewidth=2)
        right_axes.plot(
            [100 * min(agreement.themselves), 100 * max(agreement.themselves)], [position, position], color=ORANGE, linewidth=1
        )
    values: dict[str, tuple[list[float], str, str]] = {
        "chance (line: 95 %)": ([agreement.chance for agreement in result.agreement], GREY, "|"),
        "the two designs (line: 95 %)": ([agreement.value for agreement in result.agreement], BLUE, "o"),
        f"{first}, other seeds": ([agreement.themselves[0] for agreement in result.agreement], ORANGE, "<"),
        f"{second}, other seeds": ([agreement.themselves[1] for agreement in result.agreement], ORANGE, ">"),
    }
    for name, (points, colour, mark) in values.items():
        right_axes.plot([100 * point for point in points], positions, mark, color=colour, label=name, markersize=7)
    right_axes.set_yticks(positions, [agreement.measure for agreement in result.agreement])
    right_axes.set(xlim=(-5, 105), ylim=(-0.6, len(positions) - 0.4))
    plain(right_axes, f"Agreement x 100, mean of {result.seeds} seeds")
    right_axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.35 / cells), fontsize=8, frameon=False, handletextpad=0.3)
    return save_figure(figure, folder, "clusters")


def draw_prompts(result: PromptSensitivity, folder: Path) -> list[Path]:
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
        for nth, (features, offset, colour, mark) in enumerate(
            zip(result.features, offsets, (BLUE, ORANGE), "os", strict=False)
        ):
            estimates = result.gold[nth * count : (nth + 1) * count]
            values = np.array([estimate.value for estimate in estimates])
            spread = np.abs(np.array([estimate.interval for estimate in estimates]).T - values)
            axes[1].errorbar(values, positions + offset, xerr=spread, fmt=mark, color=colour, label=features, markersize=5)
        axes[1].set_yticks(positions, result.prompts)
        axes[1].set_ylim(-0.5, count - 0.5)  # the rows of the heat map, if this has one kind of features
        axes[1].set_xlabel("Spearman with gold (line: 95 %)", fontsize=8)
        plain(axes[1], "Agreement with gold scores")
        axes[1].grid(axis="x", color="0.9")
        if wide:
            axes[1].legend(
                frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1.02, 0.99), handletextpad=0.2
            )
    return save_figure(figure, folder, "prompts")


def draw_winners(result: WonPairs, folder: Path, names: Names = _AS_THEY_ARE) -> list[Path]:
    """Errors of the two designs pair by pair, and how far each design's margins reach."""
    labels = [names.get(design, design) for design in result.designs]
    first, second = (np.array(errors) for errors in result.errors)
    figure, (left_axes, right_axes) = new_figure(9, 3.9, 2)
    margins = second - first
    sides = ((margins > 0, BLUE, "o"), (margins < 0, ORANGE, "s"), (margins == 0, GREY, "."))
    size = float(np.clip(4000 / len(first), 4, 25))
    for side, colour, mark in sides:
        left_axes.scatter(first[side], second[side], s=size, color=colour, marker=mark, alpha=0.5, linewidths=0)
    top = 1.05 * float(max(first.max(), second.max()))
    left_axes.plot([0, top], [0, top], color=GREY, linewidth=0.8)
    left_axes.set(xlim=(0, top), ylim=(0, top), aspect="equal")
    left_axes.set_xlabel(f"error of {labels[0]}", fontsize=8)
    left_axes.set_ylabel(f"error of {labels[1]}", fontsize=8)
    plain(left_axes, f"{result.pairs} pairs (error: distance of ranks / pairs)")
    for name, wins, values, (_, colour, _), style in zip(
        labels, result.wins, (margins[margins > 0], -margins[margins < 0]), sides, ("-", "--"), strict=False
    ):
        reach = sorted(values)
        # as many margins reach x as are not below it; the line ends with a drop to 0, which a log axis clips at its lower edge
        right_axes.plot(
            [0.0, *reach, max(reach, default=0.0)],
            [len(reach), *range(len(reach), -1, -1)],
            drawstyle="steps-pre",
            color=colour,
            linestyle=style,
            label=f"{name} wins ({wins})",
        )
    if any(result.wins):
        right_axes.set_yscale("log", nonpositive="clip")
        right_axes.yaxis.set_major_formatter("{x:g}")
    right_axes.set_ylim(bottom=0.8)
    right_axes.set_xlim(left=0)
    right_axes.set_xlabel("margin at least", fontsize=8)
    right_axes.set_ylabel("pairs", fontsize=8)
    plain(right_axes, f"Mean margin {result.margin.value:+.4f} (Wilcoxon: p = {result.p:.2g})")
    right_axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "pairs")


def draw_stages(result: StageGaps, folder: Path) -> list[Path]:
    """The gap of each stage with its interval, and the two mean cosines whose difference it is."""
    stages = result.stages
    figure, (left_axes, right_axes) = new_figure(9, 1.3 + 0.4 * max(len(stages), 2), 2)
    positions = np.arange(len(stages))[::-1]
    gaps = np.array([stage.found.gap for stage in stages])
    spread = np.abs(np.array([stage.found.interval for stage in stages]).T - gaps)
    left_axes.axvline(0, color=GREY, linewidth=0.8)
    left_axes.errorbar(gaps, positions, xerr=spread, fmt="o", color=BLUE)
    left_axes.set_yticks(positions, [stage.name for stage in stages])
    left_axes.set_xlabel("gap (line: 95 %)", fontsize=8)
    plain(left_axes, f"Does a prefix use what follows it? {stages[0].found.triples} triples")
    for name, colour, mark in (("means the same", BLUE, "o"), ("means something else", ORANGE, "s")):
        values = [stage.found.same if mark == "o" else stage.found.different for stage in stages]
        right_axes.plot(
            values,
            positions,
            mark,
            color=colour,
            label=f"what follows {name}",
            markerfacecolor="none" if mark == "s" else colour,
        )
    right_axes.set_yticks(positions, [""] * len(stages))
    right_axes.set_xlabel("mean cosine of the prefix's states", fontsize=8)
    plain(right_axes, "")
    figure.legend(*right_axes.get_legend_handles_labels(), loc="outside lower right", frameon=False, fontsize=8, ncols=2)
    for axis in (left_axes, right_axes):
        axis.set_ylim(-0.6, len(stages) - 0.4)
    return save_figure(figure, folder, "prefix")


def draw_attribution(result: Attribution, file: Path) -> None:
    """Bars of the shares with their spread over texts, and what equal shares would be; format by the file's ending.

    Raises UnmaskError for another ending, and for a file that unmask did not write.
    """
    from matplotlib.figure import Figure

    require_figure_file(file)
    ending = file.suffix.removeprefix(".")
    depth = len(result.shares)
    layers = np.arange(1, depth + 1)
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    shares = 100 * np.array(result.shares)
    spread = np.abs(100 * np.array([result.low, result.high]) - shares)
    axes.bar(layers, shares, color="tab:blue", yerr=spread, error_kw={"elinewidth": 0.8, "ecolor": "0.4"})
    axes.set_xticks(layer_ticks(depth))
    axes.axhline(100 / depth, color="0.3", linewidth=0.8, linestyle="--", label="every layer alike")
    axes.set(
        xlabel="layer",
        ylabel="share of attention (%)",
        title=f"{result.provenance['design']}: {result.texts} texts (bars: mean, lines: 10 to 90 %)",
    )
    axes.legend(frameon=False)
    with atomic(file) as scratch:
        write_figure(figure, scratch, ending, 120)
