"""Figures show what they say they show; names stay text, whatever they hold."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from tests.reporting.conftest import Written
from tests.reporting.synthetic import SCRIPT, SPECIAL, Folder, made_ranks, write_exact
from unmask.evaluation.verdict import rank_systems
from unmask.reporting.figures import (
    DIMENSIONS,
    MEMORY,
    TIME,
    TOKENS,
    Price,
    curves,
    draw,
    front,
    price_points,
    short_label,
    trade,
)
from unmask.reporting.grid import read_grid
from unmask.reporting.plotting import arrange
from unmask.reporting.summary import summarise
from unmask.reporting.svg import ACCENT, figure_style, inline

A, B, C, D = (("m", name) for name in "abcd")


RANKS = made_ranks({SCRIPT: 1.2, "$x^2$": 1.9, SPECIAL: 3.1, "_last": 3.8}, ((SCRIPT, "$x^2$"), ("$x^2$", SPECIAL, "_last")))


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_front_holds_what_nothing_beats_for_less() -> None:
    points = [(A, 10.0, 0.5), (B, 20.0, 0.4), (C, 30.0, 0.7), (D, 30.0, 0.6)]
    assert front(points) == [A, C]
    assert front([(A, 1.0, 0.5), (B, 1.0, 0.5)]) == [A]  # the second is as good and no cheaper
    assert front([]) == []


def test_a_curve_is_a_family_that_differs_in_the_layer_only(tmp_path: Path) -> None:
    designs = ["causal/plain/mean@2", "causal/plain/mean@10", "causal/plain/mean", "causal/plain/last@2", "causal/echo/mean@2"]
    designs += ["causal/plain/mean@all", SCRIPT]
    of = Folder({name: (name, 0.1 * place) for place, name in enumerate(designs)}, {"a": "sts", "b": "sts", "c": "topics"})
    replace(of, without=[("causal/plain/mean@10", "b")]).write(tmp_path)
    grid = read_grid(tmp_path)
    [curve] = curves(grid, "sts")
    score = {result.design: result.main_score for result in grid.results if result.task == "a"}  # b has no layer 10
    assert (curve.name, curve.layers) == ("causal/plain/mean", (2, 10))
    assert curve.scores == (score["causal/plain/mean@2"], score["causal/plain/mean@10"])
    assert curve.final == score["causal/plain/mean"]


@pytest.mark.parametrize(
    ("label", "called"),
    [("prompteol", "prompteol"), ("mine", "mine"), (None, "prompteol")],
    ids=["preset", "own", "layers only"],
)
def test_a_curve_has_the_name_that_the_user_gave(label: str | None, called: str, tmp_path: Path) -> None:
    designs = {f"causal/eol/last@{layer}": (f"causal/eol/last@{layer}", 0.1 * layer) for layer in (2, 4)}
    if label:
        designs[label] = ("causal/eol/last", 0.5)
    Folder(designs, {"a": "sts"}).write(tmp_path)
    assert [curve.name for curve in curves(read_grid(tmp_path), "sts")] == [called]


def test_figures_are_drawn_where_there_is_something_to_draw(tmp_path: Path) -> None:
    of = Folder({"mean": ("causal/plain/mean", 0.5), "max": ("causal/plain/max", 0.4)}, {"a": "sts"})
    of.write(tmp_path)
    grid = read_grid(tmp_path)
    found = summarise(grid)
    assert set(draw(grid, found)) == {"ranking"}  # one layer, one price, too few tasks
    assert set(draw(grid, replace(found, ranks=RANKS))) == {"ranking", "critical"}


def test_files_are_written_as_svg_png_and_pdf(large_report: Written) -> None:
    folder = large_report.page.parent / "figures"
    names = {"ranking", "critical", "layers", "cost", "memory", "dimensions"}
    assert {file.name for file in folder.iterdir()} == {
        f"{name}.{ending}" for name in names for ending in ("svg", "png", "pdf")
    }
    for file in folder.glob("*.png"):
        assert file.read_bytes().startswith(b"\x89PNG")
    assert any(SCRIPT in text for text in texts((folder / "ranking.svg").read_text(encoding="utf-8")))


def test_inlined_charts_refer_to_their_own_parts(large_report: Written) -> None:
    for file in (large_report.page.parent / "figures").glob("*.svg"):
        chart = inline(file.read_text(encoding="utf-8"), "mine", "A & B <c>")
        identifiers = set(re.findall(r'\bid="([^"]+)"', chart))
        referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', chart))
        assert referred
        assert referred <= identifiers
        assert ET.fromstring(chart).findtext("{http://www.w3.org/2000/svg}title") == "A & B <c>"
        assert "#1c2733" not in chart  # the page's colour takes its place


def filled(axes: Any) -> set[float]:
    """Heights of the filled marks."""
    marks = [line for line in axes.get_lines() if line.get_marker() in ("o", "D")]
    return {float(line.get_ydata()[0]) for line in marks if line.get_markerfacecolor() == ACCENT}


@pytest.mark.parametrize("reference", [0.9, 0.601, 0.3])
def test_a_filled_mark_follows_the_rule_of_the_table(reference: float, tmp_path: Path) -> None:
    """Filled is what the table does not tell apart from the best design, a reference too."""
    designs = dict(zip(("best", "twin", "last"), ("causal/echo/mean", "causal/echo/mean@4", "causal/plain/last"), strict=True))
    scores = {"best": 0.6, "twin": 0.599, "last": 0.2, "minilm": reference}
    write_exact(tmp_path, designs | {"minilm": "sentence-transformers"}, {"sts-0": scores, "sts-1": scores})
    grid = read_grid(tmp_path)
    found = summarise(grid)
    [axes] = draw(grid, found)["ranking"].axes
    order = [grid.names[system] for system, _ in found.order]
    level = {"best", "twin"} | ({"minilm"} if reference == 0.601 else set())
    assert {grid.names[system] for system, test in found.against.items() if test.winner is None} | {"best"} == level
    assert filled(axes) == {order.index(name) for name in level}
    diamonds = [float(np.ravel(line.get_ydata())[0]) for line in axes.get_lines() if line.get_marker() == "D"]
    assert diamonds == [order.index("minilm")]


@pytest.mark.parametrize("price", [TOKENS, TIME, MEMORY, DIMENSIONS], ids=lambda price: price.what)
def test_every_point_of_a_cost_figure_has_a_name_that_covers_no_other(price: Price, large_report: Written) -> None:
    grid = read_grid(large_report.folder)
    found: Any = SimpleNamespace(order=rank_systems(grid.results), common=list(grid.tasks))
    with figure_style():
        figure = trade(grid, found, price)
        assert figure is not None
        arrange(figure, 100)
    [axes] = figure.axes
    points = price_points(grid, found, price)
    assert [note.get_text() for note in axes.texts] == [short_label(grid.names[system], 26) for system, _, _ in points]
    assert {note.xy for note in axes.texts} == {(value, 100 * mean) for _, value, mean in points}  # type: ignore[attr-defined]
    boxes = [Text.get_window_extent(note) for note in axes.texts]  # that of the note would hold its line, too
    assert all(lower.y0 + 0.8 * lower.height <= upper.y0 for upper, lower in pairwise(boxes)), "highest first, one a line"
    whole = figure.bbox
    assert all(axes.bbox.x1 < box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)
