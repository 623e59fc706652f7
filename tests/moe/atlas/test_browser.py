"""The atlas in a real browser: every view, by pointer and by keyboard, wide and narrow, for colour-blind eyes, with hostile texts."""

from __future__ import annotations

import io
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chromium import CHROMIUM
from tests.moe.atlas.conftest import SCRIPT, Made
from unmask.moe.atlas.page import write_atlas
from unmask.moe.routing.record import read_record

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look with: `make browser` installs it")


def test_the_heat_map_is_walked_by_arrow_keys(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    assert "points against all tokens" in seen.told("heat")
    canvas = seen.view("heat").locator("canvas.map")
    canvas.focus()
    seen.press("PageUp", "PageUp", "Home")
    assert "layer 1, expert 0" in seen.told("heat")
    seen.press("ArrowRight", "ArrowDown", "ArrowDown")
    assert "layer 3, expert 1" in seen.told("heat")
    seen.press("ArrowUp", "End")
    assert "layer 2, expert 7" in seen.told("heat")
    seen.press("ArrowRight", "PageDown", "ArrowDown")  # there is nothing beyond
    assert "layer 4, expert 7" in seen.told("heat")
    assert canvas.get_attribute("aria-label") in seen.page.locator("#said").inner_text()
    assert canvas.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    seen.press("Enter")
    assert seen.page.evaluate("() => document.activeElement.id") == "card-3-7"


def test_values_are_told_as_the_data_have_them(look: Any, small_atlas: Path, small_record: Path) -> None:
    record = read_record(small_record)
    choices = record.choices([0])
    first = choices.chosen[0][:, 0] == 1
    law = record.texts.labels["domain"][choices.texts] == 1
    seen = look(small_atlas)
    seen.view("heat").get_by_role("button", name="law").click()
    seen.view("heat").locator("canvas.map").focus()
    seen.press("PageUp", "Home", "ArrowRight")
    told = seen.told("heat")
    assert f"{100 * first[law].mean():.1f} % of tokens of \u201claw\u201d choose it first" in told
    assert f"+{100 * (first[law].mean() - first.mean()):.1f} points" in told


@pytest.mark.parametrize("name", ["strange_atlas", "small_atlas"])
def test_hostile_texts_are_text(name: str, look: Any, request: pytest.FixtureRequest) -> None:
    seen = look(request.getfixturevalue(name))
    assert seen.page.locator("img, iframe, object").count() == 0 and seen.page.locator("script").count() == 2
    if name == "strange_atlas":
        assert SCRIPT in seen.page.locator("h1").inner_text()
        assert seen.view("heat").get_by_role("button", name=SCRIPT).count() == 1
        options = seen.view("tokens").get_by_role("combobox", name="Text").locator("option").all_text_contents()
        at = next(place for place, option in enumerate(options) if "<img" in option)
        seen.view("tokens").get_by_role("combobox", name="Text").select_option(index=at)
        shown = seen.view("tokens").locator(".tokens").inner_text()
        assert "onerror=alert(1)>" in shown and "\\u202eabc" in shown
    seen.page.evaluate(
        "() => document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert seen.page.evaluate("() => window.ran") is None
    assert any("Content Security Policy" in problem for problem in seen.problems)
    seen.problems.clear()


@pytest.mark.parametrize("name", ["small_atlas", "strange_atlas"])
def test_a_phone_does_not_scroll_sideways(name: str, look: Any, request: pytest.FixtureRequest) -> None:
    seen = look(request.getfixturevalue(name), 360, has_touch=True)
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 360
    seen.view("tokens").locator(".tok").nth(4).tap()
    assert seen.view("tokens").locator(".tok[aria-selected=true]").get_attribute("data-at") == "4"
    seen.view("heat").locator("canvas.map").tap(position={"x": 60, "y": 40})
    assert "layer 1" in seen.told("heat")
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 360
    heights = seen.page.evaluate(
        """() => [...document.querySelectorAll("select, input[type=range], .step, .segments label")]
            .filter((one) => one.getClientRects().length).map((one) => one.getBoundingClientRect().height)"""
    )
    assert min(heights) >= 28, "large enough for a finger"


def test_without_scripts_the_measures_can_be_read(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas, java_script_enabled=False)
    assert seen.page.locator(".measures tbody tr:visible").count() > 12
    assert seen.page.get_by_text("This view needs JavaScript").count() == 3


@pytest.mark.parametrize("biased", [False, True])
def test_pointing_at_a_token_shows_what_was_recorded(biased: bool, look: Any, tmp_path: Path) -> None:
    """The first choice, which need not be the most probable expert, the two most probable others, and the way through the layers."""
    record = read_record(Made(texts=12, named=biased, biased=biased).write(tmp_path / "record"))
    choices, names = record.choices(range(4)), record.settings.experts or tuple(map(str, range(8)))
    seen = look(write_atlas(record.folder, tmp_path))
    numbers = seen.page.evaluate(
        "() => JSON.parse(document.getElementById('data').textContent).shown.map((text) => text.number)"
    )
    for index, token in ((0, 3), (7, 0), (7, 17)):
        seen.view("tokens").get_by_role("combobox", name="Text").select_option(index=index)
        seen.view("tokens").locator(".tok").nth(token).hover()
        row = np.flatnonzero(choices.texts == numbers[index])[token]
        shares, first = choices.probabilities[1][row].astype(float), choices.chosen[1][row, 0]
        order = [first, *(expert for expert in np.argsort(-shares, kind="stable") if expert != first)][:3]
        told = seen.view("tokens").locator(".told")
        assert told.locator(".bars .name").all_text_contents()[:3] == [f"expert {names[expert]}" for expert in order]
        for text, expert in zip(told.locator(".bars .figure").all_text_contents(), order, strict=False):
            assert abs(float(text.removesuffix("\u00a0%")) - 100 * shares[expert]) <= 0.7
        assert told.locator(".path button").all_text_contents() == [names[chosen[row, 0]] for chosen in choices.chosen]


def lab(colours: Any) -> np.ndarray:
    """CIELAB (D65) of sRGB from 0 to 255."""
    scaled = np.asarray(colours, float) / 255
    linear = np.where(scaled <= 0.04045, scaled / 12.92, ((scaled + 0.055) / 1.055) ** 2.4)
    matrix = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    shares = linear @ np.transpose(matrix) / [0.95047, 1, 1.08883]
    x, y, z = np.where(shares > 216 / 24389, np.cbrt(shares), (24389 / 27 * shares + 16) / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


NOTICEABLE = 0.5 * (np.array([10.16, 10.68, 10.70]) + np.array([1.50, 3.08, 5.74]) / 0.25)
"""How far L, a or b must differ for half of all people to notice, for a mark of a quarter of a degree (Stone et al., 2014)."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("eyes", ["none", "protanopia", "deuteranopia", "tritanopia", "achromatopsia"])
def test_colours_of_experts_differ_for_all_eyes(eyes: str, scheme: Any, look: Any, small_atlas: Path) -> None:
    """For people who see no colour, the first four; names tell the rest."""
    from PIL import Image

    page = look(small_atlas).page
    page.evaluate(
        """() => document.body.append(...Array.from({ length: 9 }, (_, at) => {
            const one = Object.assign(document.createElement("i"), { className: "c" + at });
            one.style = `position: fixed; z-index: 99; top: 0; left: ${20 * at}px; width: 20px; height: 20px`;
            one.style.background = at === 8 ? "var(--paper)" : "var(--own)";
            return one;
        }))"""
    )
    page.emulate_media(color_scheme=scheme)
    page.context.new_cdp_session(page).send("Emulation.setEmulatedVisionDeficiency", {"type": eyes})
    shot = page.screenshot(clip={"x": 0, "y": 0, "width": 180, "height": 20})
    *colours, paper = lab(np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))[10, 10::20])

    def difference(one: np.ndarray, other: np.ndarray) -> float:
        return float((np.abs(one - other) / NOTICEABLE).max())

    assert (np.abs(np.array(colours)[:, 1:]).max() < 1) == (eyes == "achromatopsia"), "these eyes see colours, or none"
    compared = colours[:4] if eyes == "achromatopsia" else colours
    assert min(difference(*pair) for pair in combinations(compared, 2)) >= 1
    assert min(difference(colour, paper) for colour in colours) >= 2
