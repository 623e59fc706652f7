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
from matplotlib.image import imread
from matplotlib.text import Text

from tests.reporting.conftest import Written
from tests.reporting.synthetic import SCRIPT, SPECIAL, Folder, Ranked, add_costs, write_exact
from unmask.evaluation.verdict import ranked
from unmask.reporting.figures import (
    DIMENSIONS,
    MEMORY,
    TIME,
    TOKENS,
    Price,
    critical_diagram,
    curves,
    draw,
    front,
    priced,
    shortened,
    trade,
)
from unmask.reporting.grid import read_grid
from unmask.reporting.plotting import arrange, heat_map, new_figure, plain, save_figure
from unmask.reporting.summary import summarise
from unmask.reporting.svg import ACCENT, as_svg, drawing, inline

A, B, C, D = (("m", name) for name in "abcd")


RANKS = Ranked({SCRIPT: 1.2, "$x^2$": 1.9, SPECIAL: 3.1, "_last": 3.8}, ((SCRIPT, "$x^2$"), ("$x^2$", SPECIAL, "_last")))


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture(scope="module")
def diagram() -> str:
    with drawing():
        return as_svg(critical_diagram(RANKS))


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


def test_costs_draw_time_and_memory(tmp_path: Path) -> None:
    of = Folder({"mean": ("causal/plain/mean", 0.5), "echo": ("causal/echo/mean", 0.9)}, {"a": "sts"})
    of.write(tmp_path)
    grid = read_grid(tmp_path)
    with drawing():
        assert "tokens computed a text" in texts(as_svg(draw(grid, summarise(grid))["cost"]))
        add_costs(tmp_path, of)
        grid = read_grid(tmp_path)
        drawn = draw(grid, summarise(grid))
        assert "milliseconds a text" in texts(as_svg(drawn["cost"]))
    assert set(drawn) == {"ranking", "cost", "memory"}


def test_files_are_written_as_svg_png_and_pdf(large_report: Written) -> None:
    folder = large_report.page.parent / "figures"
    names = {"ranking", "critical", "layers", "cost", "memory", "dimensions"}
    assert {file.name for file in folder.iterdir()} == {
        f"{name}.{ending}" for name in names for ending in ("svg", "png", "pdf")
    }
    for file in folder.glob("*.png"):
        assert file.read_bytes().startswith(b"\x89PNG")
    assert any(SCRIPT in text for text in texts((folder / "ranking.svg").read_text(encoding="utf-8")))


def test_names_stay_text_in_a_diagram(diagram: str) -> None:
    shown = " ".join(texts(diagram))
    for name in RANKS.mean_ranks:
        assert name in shown  # no mathematics of $x^2$, no tags, no escapes
    assert "1.2" in shown


def test_a_bar_for_each_clique(diagram: str) -> None:
    with drawing():
        without = as_svg(critical_diagram(replace(RANKS, cliques=())))
        single = as_svg(critical_diagram(replace(RANKS, cliques=(("_last",),))))

    def wide(svg: str) -> int:
        return len(re.findall(r"stroke-width: 4", svg))

    assert (wide(diagram), wide(without), wide(single)) == (2, 0, 0)


def test_inlined_charts_share_no_identifier_and_no_rule(diagram: str) -> None:
    for chart in (inline(diagram, "one", "t"), inline(diagram, "two", "t")):
        assert not re.search(r"<style|<\?xml|<!DOCTYPE|<metadata", chart)
    found = [set(re.findall(r'\bid="([^"]+)"', inline(diagram, name, "t"))) for name in ("one", "two")]
    assert found[0]
    assert not found[0] & found[1]


def test_inlined_charts_refer_to_their_own_parts(large_report: Written) -> None:
    for file in (large_report.page.parent / "figures").glob("*.svg"):
        chart = inline(file.read_text(encoding="utf-8"), "mine", "A & B <c>")
        identifiers = set(re.findall(r'\bid="([^"]+)"', chart))
        referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', chart))
        assert referred
        assert referred <= identifiers
        assert ET.fromstring(chart).findtext("{http://www.w3.org/2000/svg}title") == "A & B <c>"
        assert "#1c2733" not in chart  # the page's colour takes its place


@pytest.mark.parametrize(
    ("given", "shown"), [("short", "short"), ("a" * 20 + "b" * 20, "aaaa…bbbb"), ("two\nlines", "two lines")]
)
def test_long_names_give_way_in_the_middle(given: str, shown: str) -> None:
    assert shortened(given, 9) == shown


def test_a_figure_is_arranged_once_and_looks_as_if_for_each_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    def made() -> Any:
        figure, (left, right) = new_figure(6, 3, 2)
        heat_map(left, np.arange(12).reshape(3, 4), low=0, high=12, label="how many")
        left.set_xticks(range(4), [f"a long name {n}" for n in range(4)], rotation=45)
        right.plot([1, 1000], label="a line")
        plain(right, "Beside it")
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower right")
        return figure

    arranged: list[Any] = []
    execute = ConstrainedLayoutEngine.execute

    def counted(*given: Any) -> Any:
        arranged.append(given)
        return execute(*given)

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", counted)
    png, *_ = save_figure(made(), tmp_path, "ours")
    assert len(arranged) == 1
    made().savefig(tmp_path / "plain.png", dpi=150)
    assert np.array_equal(imread(png), imread(tmp_path / "plain.png"))


def test_two_runs_and_two_fits_have_curves_of_their_own(tmp_path: Path) -> None:
    """Every trained embedder lies in a folder that is called `model`, and a design that is fitted on two corpora is two designs."""
    designs = {f"mean@{layer}": (f"causal/plain/mean@{layer}/zscore", 0.5) for layer in (4, 8)}
    for model in ("runs/a/model", "runs/b/model"):
        Folder(designs, {"sts-0": "sts"}, model=model).write(tmp_path)
    Folder(designs, {"sts-0": "sts"}, model="runs/a/model").write(tmp_path, reference="0123456789")
    drawn = curves(read_grid(tmp_path), "sts")
    assert len(drawn) == 3
    assert {curve.name.split()[0] for curve in drawn} == {"a", "b"}


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
    assert {grid.names[system] for system, test in found.against.items() if test.tied} | {"best"} == level
    assert filled(axes) == {order.index(name) for name in level}
    diamonds = [float(np.ravel(line.get_ydata())[0]) for line in axes.get_lines() if line.get_marker() == "D"]
    assert diamonds == [order.index("minilm")]


@pytest.mark.parametrize("price", [TOKENS, TIME, MEMORY, DIMENSIONS], ids=lambda price: price.what)
def test_every_point_of_a_cost_figure_has_a_name_that_covers_no_other(price: Price, large_report: Written) -> None:
    grid = read_grid(large_report.folder)
    found: Any = SimpleNamespace(order=ranked(grid.results), common=list(grid.tasks))
    with drawing():
        figure = trade(grid, found, price)
        assert figure is not None
        arrange(figure, 100)
    [axes] = figure.axes
    points = priced(grid, found, price)
    assert [note.get_text() for note in axes.texts] == [shortened(grid.names[system], 26) for system, _, _ in points]
    assert {note.xy for note in axes.texts} == {(value, 100 * mean) for _, value, mean in points}  # type: ignore[attr-defined]
    boxes = [Text.get_window_extent(note) for note in axes.texts]  # that of the note would hold its line, too
    assert all(lower.y0 + 0.8 * lower.height <= upper.y0 for upper, lower in pairwise(boxes)), "highest first, one a line"
    whole = figure.bbox
    assert all(axes.bbox.x1 < box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)
