"""The pictures of the docs: small, shown, light and dark, and made by commands that parse."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from tests.test_docs import PAGES, parse, targets
from tools import pictures, rooms
from unmask.reporting.svg import as_svg, drawing

FILES = sorted(pictures.PICTURES.iterdir())
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_each_is_shown_somewhere() -> None:
    shown = {(page.parent / target).resolve() for page in PAGES for target in targets(page.read_text("utf-8"))}
    assert [file.name for file in FILES if file not in shown] == []


def test_they_are_small() -> None:
    assert sum(file.stat().st_size for file in FILES) < 1_500_000


@pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".svg"], ids=lambda file: file.name)
def test_a_drawing_is_light_and_dark(file: Path) -> None:
    svg = file.read_text("utf-8")
    style = ET.fromstring(svg).find(f"{SVG}style")
    assert style is not None and style.text
    assert style.text.count("--ink:") == 2 and "prefers-color-scheme: dark" in style.text
    light, _ = pictures.colours()
    drawn = svg.partition("</style>")[2]
    assert [name for name, colour in light.items() if name != "--sans" and colour in drawn] == []


def test_the_diagram_is_that_of_the_page() -> None:
    """Change the example of docs/statistics.md, and its picture has to be made again."""
    with drawing():
        made = texts(as_svg(pictures.critical_example()))
    assert texts((pictures.PICTURES / "critical.svg").read_text("utf-8")) == made


def test_the_curve_of_a_long_training_is_that_of_its_kept_losses() -> None:
    """The line is the mean of 25 steps: it begins at the 13th, and a constant loss is a flat line."""
    with drawing():
        made = pictures.loss_curve(pictures.CURVES / "grown.json")
        assert texts((pictures.PICTURES / "grown.svg").read_text("utf-8")) == texts(as_svg(made))
    losses = json.loads((pictures.CURVES / "grown.json").read_text("utf-8"))["loss"]
    [axes] = made.axes
    line = np.array(axes.lines[0].get_xydata())
    assert tuple(line[0]) == (13, pytest.approx(np.mean(losses[:25])))
    assert tuple(line[-1]) == (len(losses) - 12, pytest.approx(np.mean(losses[-25:])))


def test_its_commands_parse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(pictures, "unmask", lambda runs, *words: ran.append(words))
    for model in pictures.LAYERS:
        pictures.compare(model, tmp_path)
        pictures.grow_mixture(model, tmp_path)
    pictures.show_claims(tmp_path)
    for words in (*ran, (*pictures.UI, "pico")):
        parse(words)
    assert {words[0] for words in ran} == {"compare", "report", "expert", "mix", "probe"}


def test_a_table_of_shares(tmp_path: Path) -> None:
    with drawing():
        figure = pictures.shares(np.array([[0.25, 0.75], [1.0, 0.0]]), ["a", "b"], ["c", "d"], "rows", "columns")
        pictures.write(tmp_path / "shares.svg", as_svg(figure), "Shares")
    svg = (tmp_path / "shares.svg").read_text("utf-8")
    assert [text for text in texts(svg) if "%" in text] == ["25 %", "75 %", "100 %", "0 %"]
    assert re.findall(r"var\(--h(\d)\)", svg) == ["2", "7", "9", "0"]


def test_the_drawing_has_every_room() -> None:
    """If this fails: `python -m tools.rooms`."""
    assert sorted(texts((pictures.PICTURES / "rooms.svg").read_text("utf-8"))) == sorted(rooms.rooms())


def test_floors_and_direct_imports() -> None:
    graph = {"top": {"middle", "ground"}, "middle": {"ground"}, "ground": set[str](), "apart": set[str]()}
    assert rooms.floors(graph) == {"top": 2, "middle": 1, "ground": 0, "apart": 0}
    assert rooms.direct(graph) == {("top", "middle"), ("middle", "ground")}
