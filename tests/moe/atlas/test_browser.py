"""The atlas in a real browser, driven: every view, by pointer and by keyboard, wide and narrow, light and dark, with hostile texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.moe.atlas.conftest import recorded
from tests.moe.atlas.made_record import SCRIPT, Made
from tools.chromium import CHROMIUM
from unmask.moe.atlas.page import write_atlas

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


def test_the_strongest_cell_is_where_the_record_was_made_to_have_it(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    for domain, name in enumerate(Made().domains):
        seen.view("heat").get_by_role("button", name=name).click()
        found = seen.view("heat").locator(".strong button").all_inner_texts()
        assert {f"layer {point + 1}, expert {(domain + point) % 8}" for point in range(4)} == set(found[:4])


def test_cards_say_what_an_expert_takes(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    cards = seen.view("cards")
    assert cards.locator(".expert").count() == 8
    slider = cards.get_by_label("Layer", exact=True)
    slider.focus()
    seen.press("Home")
    assert slider.get_attribute("aria-valuetext") == "layer 1"
    card = seen.page.locator("#card-0-0-2").inner_text()
    for said in ("Expert 2", "of tokens", "science", "+", "\u00d7", "Acts with"):
        assert said in card
    assert seen.page.locator("#card-0-0-2 mark").count() == 2
    assert "never first" in seen.page.locator("#card-0-0-7").inner_text()
    cards.get_by_label("Find a word").fill("protein")
    assert 1 <= cards.locator(".expert").count() < 8
    cards.get_by_label("Find a word").fill("nowhere")
    assert "No expert of this layer" in cards.inner_text()


def test_the_flow_is_walked_along_its_ribbons(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    flow = seen.view("flow")
    assert flow.locator(".node").count() == 7 + 3 * 8  # one expert is never chosen
    assert flow.locator(".node[tabindex='0']").count() == 1
    flow.locator(".node[tabindex='0']").focus()
    assert "layer 1, expert 0" in seen.told("flow")
    seen.press("ArrowRight")
    assert "layer 2, expert 1" in seen.told("flow"), "the expert of the same domain"
    seen.press("ArrowRight", "ArrowRight")
    assert "layer 4, expert 3" in seen.told("flow")
    seen.press("ArrowLeft")
    assert "layer 3, expert 2" in seen.told("flow") and "chance" in seen.told("flow")
    assert flow.locator(".ribbon.on").count() >= 2
    before = seen.told("flow")
    seen.press("ArrowDown")
    assert seen.told("flow") != before
    seen.press("Enter")
    assert str(seen.page.evaluate("() => document.activeElement.id")).startswith("card-0-2-")


def test_a_frame_in_one_map_selects_in_both(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    maps = seen.view("maps")
    maps.scroll_into_view_if_needed()
    box = maps.locator("svg.scatter").first.bounding_box()
    seen.page.mouse.move(box["x"] + 2, box["y"] + 2)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] * 0.6)
    seen.page.mouse.up()
    lit = [maps.locator("svg.scatter").nth(at).locator(".mark.on").count() for at in range(2)]
    assert lit[0] == lit[1] and 0 < lit[0] < 40
    assert f"{lit[0]} texts selected" in seen.told("maps")
    seen.page.locator("svg.scatter").first.focus()
    seen.press("Escape")
    assert maps.locator(".mark.on").count() == 0


def test_two_records_are_looked_at_together(look: Any, two_atlases: Path) -> None:
    seen = look(two_atlases)
    for name in ("heat", "tokens", "cards", "flow", "maps"):
        assert seen.page.locator(f"#{name} .pane").count() == 2
    boxes = [seen.view("heat", pane).bounding_box() for pane in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[1]["x"] > boxes[0]["x"] + boxes[0]["width"]
    slider = seen.view("cards").get_by_label("Layer", exact=True)
    slider.focus()
    seen.press("End")
    assert seen.view("cards", 1).locator("output").inner_text() == "7", "the last of each"
    assert "other" in seen.view("flow", 1).inner_text()
    seen.page.set_viewport_size({"width": 700, "height": 900})
    boxes = [seen.view("heat", pane).bounding_box() for pane in range(2)]
    assert boxes[1]["y"] > boxes[0]["y"]


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


def test_a_single_layer_and_few_texts_have_no_flow_and_no_map(look: Any, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "record", Made(texts=2, points=1, unlabelled=True, parts=1))
    seen = look(write_atlas([folder], tmp_path))
    assert "no flow between layers" in seen.view("flow").inner_text()
    assert "at least three texts" in seen.view("maps").inner_text()
    assert seen.view("heat").locator(".thumb:visible").count() == 0
    assert "of all tokens choose it first" in seen.told("heat").replace("\u00a0", " ")
