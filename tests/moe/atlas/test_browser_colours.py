"""The atlas for colour-blind eyes, as Chromium shows it to them: colours differ enough, or something else than colour tells."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.moe.atlas.conftest import recorded
from tests.moe.atlas.looking import Look
from tests.moe.atlas.made_record import Made
from tools.chromium import CHROMIUM
from unmask.moe.atlas.page import write_atlas
from unmask.moe.routing.record import read_record

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Locator

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look with: `make browser` installs it")
DICHROMATS = ("protanopia", "deuteranopia", "tritanopia")
EYES = ("none", *DICHROMATS, "achromatopsia")
SCHEMES = ("light", "dark")
OWN = 8
"""Colours of experts and labels. Those that come after share the look of the rest."""
Lab = NDArray[np.float64]


def noticeable(size: float) -> Lab:
    """How far L, a or b of a mark must differ for half of all people to notice; size in degrees of the visual field.

    Stone, Szafir & Setlur, An engineering model for color difference as a function of size, 2014. Screens of people, not of laboratories.
    """
    return 0.5 * (np.array([10.16, 10.68, 10.70]) + np.array([1.50, 3.08, 5.74]) / size)


SWATCH = noticeable(0.25)
"""Of ten pixels, 1/96 inch each, from 60 cm: the square of an expert, the mark of a text."""


def lab(colours: NDArray[Any]) -> Lab:
    """CIELAB (D65) of sRGB from 0 to 255."""
    scaled = np.asarray(colours, float) / 255
    linear = np.where(scaled <= 0.04045, scaled / 12.92, ((scaled + 0.055) / 1.055) ** 2.4)
    matrix = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    shares = linear @ np.transpose(matrix) / [0.95047, 1, 1.08883]
    roots = np.where(shares > 216 / 24389, np.cbrt(shares), (24389 / 27 * shares + 16) / 116)
    x, y, z = np.moveaxis(roots, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def difference(one: Lab, other: Lab) -> float:
    """How many noticeable differences lie between two colours, in the best of L, a and b."""
    return float((np.abs(one - other) / SWATCH).max())


@dataclass
class Seen:
    """A page before somebody's eyes."""

    look: Look

    def through(self, eyes: str, scheme: str) -> None:
        """Look with these eyes. Chromium computes them after Machado, Oliveira & Fernandes, 2009."""
        page = self.look.page
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.context.new_cdp_session(page).send("Emulation.setEmulatedVisionDeficiency", {"type": eyes})

    def pixels(self, clip: FloatRect) -> NDArray[np.uint8]:
        """A part of the page, (height, width, 3)."""
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.look.page.screenshot(clip=clip))).convert("RGB"))

    def centre(self, drawn: Locator) -> Lab:
        """The colour in the middle of something that is drawn."""
        drawn.scroll_into_view_if_needed()
        box = drawn.bounding_box()
        assert box
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        return lab(self.pixels({"x": round(x) - 1, "y": round(y) - 1, "width": 2, "height": 2})[0, 0])

    def row(self) -> list[Lab]:
        """The colours that `swatches` put on the page."""
        row = lab(self.pixels({"x": 0, "y": 0, "width": 20 * (OWN + 1), "height": 20})[10, 10::20])
        return list(row)


def swatches(look: Look) -> None:
    """Put the colours of experts and labels side by side over the page; the paper comes last."""
    look.page.evaluate(
        """count => {
            const all = Array.from({ length: count + 1 }, (_, at) => {
                const one = document.createElement("i");
                one.className = "c" + at;
                Object.assign(one.style, { position: "fixed", zIndex: 99, top: 0, left: 20 * at + "px", width: "20px", height: "20px" });
                one.style.background = at === count ? "var(--paper)" : "var(--own)";
                return one;
            });
            document.body.append(...all);
        }""",
        OWN,
    )


@pytest.fixture
def seen(look: Any, small_atlas: Path) -> Seen:
    return Seen(look(small_atlas))


def closest(colours: list[Lab]) -> tuple[float, tuple[int, int]]:
    """The smallest difference of two of some colours, and which two."""
    return min((difference(colours[a], colours[b]), (a, b)) for a, b in combinations(range(len(colours)), 2))


def test_colours_of_experts_and_labels_differ(seen: Seen) -> None:
    """For dichromats all of them; for who sees no colour the first four. Names and shapes tell the rest: see below."""
    swatches(seen.look)
    for scheme in SCHEMES:
        for eyes in EYES:
            seen.through(eyes, scheme)
            *colours, paper = seen.row()
            assert (np.abs(np.array(colours)[:, 1:]).max() < 1) == (eyes == "achromatopsia"), "these eyes see colours, or none"
            least, pair = closest(colours[:4] if eyes == "achromatopsia" else colours)
            assert least >= 1, (scheme, eyes, pair)
            assert min(difference(colour, paper) for colour in colours) >= 2, (scheme, eyes)


def test_a_token_has_the_name_of_its_expert_under_it(seen: Seen) -> None:
    """So that colour is never alone."""
    tokens = seen.look.view("tokens").locator(".tok")
    names = tokens.locator("small:visible").all_text_contents()
    assert len(names) == tokens.count() and all(names)
    spoken = [label.rpartition(": expert ")[2].partition(",")[0] for label in attributes(tokens, "aria-label")]
    assert names == spoken
    chips = seen.look.view("tokens").locator(".chip bdi:visible").all_text_contents()
    assert {f"expert {name}" for name in names} == set(chips)


def test_the_line_under_a_token_has_the_colour_of_its_expert(seen: Seen) -> None:
    """In full, whatever the tint: a tint alone tells less."""
    token = seen.look.view("tokens").locator(".tok").nth(3)
    token.scroll_into_view_if_needed()
    box = token.bounding_box()
    assert box
    line = seen.pixels(
        {"x": round(box["x"] + box["width"] / 2), "y": round(box["y"] + box["height"]) - 2, "width": 1, "height": 1}
    )
    colour = token.evaluate("one => getComputedStyle(one).borderBottomColor")
    assert colour == "rgb({}, {}, {})".format(*line[0, 0])


def attributes(found: Locator, name: str) -> list[str]:
    return found.evaluate_all("(all, name) => all.map((one) => one.getAttribute(name))", name)  # type: ignore[no-any-return]


class ManyDomains(Made):
    """Ten values of the label: eight have a mark of their own, two share one."""

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple("abcdefghij")


def test_marks_of_texts_differ_in_shape(look: Any, tmp_path: Path) -> None:
    """Two shapes on one place share less than 4/5 of their ink (a circle and the square around it share π/4), of the first four 2/3."""
    seen = Seen(look(write_atlas([recorded(tmp_path / "record", ManyDomains(texts=40))], tmp_path), device_scale_factor=4))
    seen.through("achromatopsia", "light")
    chips = seen.look.view("maps").locator(".chip")
    assert chips.count() == 10
    shapes = []
    for place in range(OWN + 1):
        icon = chips.nth(place).locator("svg")
        icon.scroll_into_view_if_needed()
        pixels = lab(seen.pixels(icon.bounding_box()))  # type: ignore[arg-type]
        shapes.append(pixels[:56, :56, 0] < 75)
    assert all(shape.sum() > 150 for shape in shapes)
    for one, other in combinations(range(OWN + 1), 2):
        both = (shapes[one] & shapes[other]).sum() / (shapes[one] | shapes[other]).sum()
        assert both < (2 / 3 if other < 4 else 4 / 5), (one, other)


def test_more_and_less_differ(seen: Seen) -> None:
    """The ends of the heat map's scale, and the places half way to them. Who sees no colour has numbers and dashes."""
    legend = seen.look.view("heat").locator(".legend i")
    legend.scroll_into_view_if_needed()
    box = legend.bounding_box()
    assert box
    for scheme in SCHEMES:
        for eyes in EYES[:-1]:
            seen.through(eyes, scheme)
            row = lab(seen.pixels(box)[round(box["height"] / 2)])
            less, some_less, none, some_more, more = (
                row[round(share * (len(row) - 1))] for share in (0.02, 0.25, 0.5, 0.75, 0.98)
            )
            for one, other in ((less, more), (some_less, some_more), (less, none), (none, more)):
                assert difference(one, other) >= 2, (scheme, eyes)


def test_a_scale_that_has_no_sign_goes_from_dark_to_light(seen: Seen) -> None:
    """Lightness alone orders it, so all eyes can read it."""
    seen.look.view("heat").get_by_role("radio", name="first choice").click()
    legend = seen.look.view("heat").locator(".legend i")
    legend.scroll_into_view_if_needed()
    box = legend.bounding_box()
    assert box
    for scheme in SCHEMES:
        for eyes in EYES:
            seen.through(eyes, scheme)
            row = lab(seen.pixels(box)[round(box["height"] / 2), 3:-3:12])[:, 0]
            steps = np.diff(row if scheme == "dark" else -row)
            assert (steps > 0).all() and abs(row[-1] - row[0]) > 4 * SWATCH[0], (scheme, eyes)


DASHES = """(canvas, experts) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const [ratio, left, top] = [canvas.width / parseFloat(canvas.style.width), 20.5, 24];
    const [wide, high] = [(parseFloat(canvas.style.width) - left) / experts, (parseFloat(canvas.style.height) - top) / 4];
    const place = (x, y) => 4 * (Math.floor(y * ratio) * canvas.width + Math.floor(x * ratio));
    const at = (x, y) => [...data.subarray(place(x, y), place(x, y) + 3)];
    return Array.from({ length: 4 }, (_, row) => Array.from({ length: experts }, (_, column) => {
        const [x, y] = [left + (column + 0.45) * wide, top + row * high];
        const [cell, middle] = [at(x, y + high / 4), at(x, y + high / 2 - 0.1)];
        return middle.some((part, channel) => Math.abs(part - cell[channel]) > 40);
    }));
}"""
"""For each cell of the heat map whether its middle has another colour than its upper part."""


@pytest.mark.parametrize("experts", [24, 128])
def test_a_narrow_cell_with_less_has_a_dash(experts: int, look: Any, tmp_path: Path) -> None:
    """It has no room for a number. The dash is in the cells that lie below -20 % of the largest difference, and in no others."""
    folder = recorded(tmp_path / "record", Made(experts=experts, texts=20))
    looking = look(write_atlas([folder], tmp_path), 360, device_scale_factor=4)
    record = read_record(folder)
    choices = record.choices(range(len(record.points)))
    codes = record.texts.labels["domain"][choices.texts]
    firsts = [chosen[:, 0] for chosen in choices.chosen]
    shares = np.array(
        [
            [np.bincount(first[codes == value], minlength=experts) / (codes == value).sum() for first in firsts]
            for value in range(4)
        ]
    )
    against = shares - np.array([np.bincount(first, minlength=experts) / len(first) for first in firsts])
    dashed = against[0] < -0.2 * np.abs(against).max()
    assert 0 < dashed.sum() < dashed.size / 2
    row, column = np.unravel_index(np.argmax(against[0]), dashed.shape)
    without_cursor = np.ones_like(dashed)
    without_cursor[row - 1 : row + 2, max(0, column - 2) : column + 3] = False  # there is a frame around the strongest cell
    found = looking.view("heat").locator("canvas.map").evaluate(DASHES, experts)
    assert (np.array(found) == dashed)[without_cursor].all()


@pytest.mark.sample(0)
def test_ribbons_differ_by_how_much_more_often_than_chance(seen: Seen) -> None:
    key = seen.look.page.locator("#flow .key svg")
    for scheme in SCHEMES:
        for eyes in EYES:
            seen.through(eyes, scheme)
            least, pair = closest([seen.centre(key.nth(place)) for place in range(3)])
            assert least >= 1, (scheme, eyes, pair)
