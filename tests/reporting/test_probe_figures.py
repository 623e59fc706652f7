"""Figures of probes can be read in a paper: nothing overlaps, marks stand where their labels say, layers are evenly numbered."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unmask.probing.clusters import ClusterAgreement, Clusters
from unmask.probing.prompt_sensitivity import NINE, PromptSensitivity
from unmask.reporting.plotting import arrange, layer_ticks, new_figure, save_figure
from unmask.reporting.probe_figures import draw_clusters, draw_prompts
from unmask.statistics.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANDOM = np.random.default_rng(0)
ESTIMATE = Estimate(0.5, (0.4, 0.6))
WORDS = ["internationalisation", "guitar", "football", "electromagnetism", "stock", "photosynthesis", "law", "matlab"]


def drawn(figure: Figure) -> Figure:
    """A figure, arranged as it is before it is written."""
    arrange(figure, 150)
    figure.draw_without_rendering()  # moves the tick labels to their axes
    return figure


def clusters(number: int) -> Clusters:
    agreement = ClusterAgreement("exact matching", 0.2, (0.1, 0.3), 0.1, (0.05, 0.15), 0.01, (0.6, 0.4), ((0.5, 0.7), None))
    words = tuple(tuple(np.roll(WORDS, row)[:5].tolist()) for row in range(number))
    table = tuple(tuple(row) for row in (RANDOM.integers(0, 9, (number, number)) + 40 * np.eye(number, dtype=int)).tolist())
    designs = ("bidirectional/plain/weighted-mean", "causal/eol/last+routing")
    return Clusters(designs, number, 800, 5, (agreement,) * 4, table, (words, words), None, None, "", {})


@pytest.mark.parametrize("number", [2, 10, 20])
def test_no_part_of_the_clusters_covers_another(number: int) -> None:
    figure = drawn(draw_clusters(clusters(number)))
    table, agreements, _ = axes = figure.axes
    legend = agreements.get_legend()
    assert legend is not None and not figure.legends
    titles: list[Any] = [vars(axis)["_left_title"] for axis in (table, agreements)]
    labels = [label for axis in axes for label in (*axis.get_yticklabels(), axis.xaxis.label, axis.yaxis.label)]
    boxes = [label.get_window_extent() for label in (*titles, *labels) if label.get_text()]
    boxes += [legend.get_window_extent(), *(axis.patch.get_window_extent() for axis in axes)]
    assert not [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)]
    whole = figure.bbox
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)
    cells = table.get_window_extent()
    assert cells.width / cells.height == pytest.approx(1, abs=0.25), "the cells are about square"
    assert cells.width / number / figure.dpi > 0.3, "inches, for three digits"
    assert agreements.patch.get_window_extent().y0 - legend.get_window_extent().y1 < 0.5 * figure.dpi, "the legend is near"


@pytest.mark.parametrize("features", [("HS",), ("HS", "RW")])
def test_a_prompt_has_its_points_at_its_label(features: tuple[str, ...]) -> None:
    size = len(NINE) * len(features)
    matrix = tuple(map(tuple, np.eye(size).tolist()))
    found = PromptSensitivity(NINE, features, matrix, {}, None, None, None, (ESTIMATE,) * size, 20, "", {})
    gold: Any = drawn(draw_prompts(found)).axes[1]
    points = np.array([container.lines[0].get_ydata() for container in gold.containers])
    assert points.shape == (len(features), len(NINE))
    assert points.mean(axis=0) == pytest.approx(gold.get_yticks())


def test_layers_are_numbered_evenly_and_from_their_own_numbers() -> None:
    for depth in range(1, 201):
        ticks = layer_ticks(depth)
        assert 1 <= len(ticks) <= 8 and len({after - before for before, after in pairwise(ticks)}) <= 1
        assert ticks[0] >= 1 and ticks[-1] <= depth < ticks[-1] + ticks[0]
    assert layer_ticks(30) == [5, 10, 15, 20, 25, 30]


def test_a_pdf_has_fonts_that_publishers_take_and_the_same_bytes(tmp_path: Path) -> None:
    def write(folder: Path) -> bytes:
        folder.mkdir()
        figure, [axis] = new_figure(3, 2)
        axis.plot([1, 2])
        return next(file for file in save_figure(figure, folder, "mine") if file.suffix == ".pdf").read_bytes()

    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    assert first == second and first.startswith(b"%PDF") and b"made by unmask" in first
    assert b"/Type0" in first and b"/Type3" not in first
