"""The atlas in a real browser, driven: every view, by pointer and by keyboard, wide and narrow, light and dark, with hostile texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chromium import CHROMIUM
from tests.moe.atlas.made_record import SCRIPT

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look with: `make browser` installs it")

CONTRAST = """() => {
    const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    const luminance = (colour) => {
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((c) => c / 255)
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        if (element.closest(".node")) return getComputedStyle(element.closest(".node").querySelector("rect")).fill;
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (colour !== "rgba(0, 0, 0, 0)") return colour;
        }
        return "white";
    };
    const own = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const texts = [...document.body.querySelectorAll("*")]
        .filter((one) => own(one) && !one.closest("script, .spoken, option") && one.getClientRects().length);
    return texts.map((one) => {
        const style = getComputedStyle(one);
        const [a, b] = [one.closest("svg") ? style.fill : style.color, behind(one)].map(luminance);
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.className + ": " + one.textContent.slice(0, 40)];
    }).filter(([contrast]) => contrast < 4.5);
}"""


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
    assert seen.page.evaluate("() => document.activeElement.id") == "card-0-3-7"


def test_values_are_told_as_the_data_have_them(look: Any, small_atlas: Path, small_record: Path) -> None:
    from unmask.moe.routing.record import read_record

    record = read_record(small_record)
    choices = record.choices([0])
    first = choices.chosen[0][:, 0] == 1
    law = record.texts.labels["domain"][choices.texts] == 1
    seen = look(small_atlas)
    seen.view("heat").get_by_role("button", name="law").click()
    seen.view("heat").locator("canvas.map").focus()
    seen.press("PageUp", "Home", "ArrowRight")
    told = seen.told("heat").replace("\u00a0", " ")
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


@pytest.mark.parametrize("name", ["small_atlas", "strange_atlas", "two_atlases"])
def test_a_phone_does_not_scroll_sideways(name: str, look: Any, request: pytest.FixtureRequest) -> None:
    seen = look(request.getfixturevalue(name), 360, has_touch=True)
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 360
    seen.view("tokens").locator(".tok").nth(4).tap()
    assert seen.view("tokens").locator(".tok[aria-selected=true]").get_attribute("data-at") == "4"
    seen.view("heat").locator("canvas.map").tap(position={"x": 60, "y": 40})
    assert "layer 1" in seen.told("heat")
    seen.view("maps").locator("svg.scatter").first.tap()
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 360
    heights = seen.page.evaluate(
        """() => [...document.querySelectorAll("select, input[type=range], .step, .segments label")]
            .filter((one) => one.getClientRects().length).map((one) => one.getBoundingClientRect().height)"""
    )
    assert min(heights) >= 28, "large enough for a finger"


def test_without_scripts_the_measures_can_be_read(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas, java_script_enabled=False)
    assert seen.page.locator(".measures tbody tr:visible").count() > 15
    assert seen.page.get_by_text("This view needs JavaScript").count() == 5
