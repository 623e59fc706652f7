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

from tests.chromium import CHROMIUM
from tests.moe.atlas.looking import Look

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
