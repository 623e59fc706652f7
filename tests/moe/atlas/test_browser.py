"""The atlas in a real browser, driven: every view, by pointer and by keyboard, wide and narrow, light and dark, with hostile texts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.moe.atlas.conftest import recorded
from tests.moe.atlas.made_record import SCRIPT, Made
from tests.moe.atlas.test_removal import EACH, losses
from tests.proofs import ALL
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


def test_pointing_at_a_cell_tells_it(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    canvas = seen.view("heat").locator("canvas.map")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] - 8, "y": box["height"] - 6})
    assert "layer 4, expert 7" in seen.told("heat")


def test_modes_orders_and_labels_change_the_map(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    heat = seen.view("heat")
    picture = "one => one.toDataURL()"
    pictures = [heat.locator("canvas.map").evaluate(picture)]
    for name in ("first choice", "chosen", "sure"):
        heat.get_by_role("radio", name=name).click()
        pictures.append(heat.locator("canvas.map").evaluate(picture))
    for order in ("by load", "by favourite value"):
        heat.get_by_label("Order of experts").select_option(label=order)
        pictures.append(heat.locator("canvas.map").evaluate(picture))
    heat.get_by_role("combobox", name="Label", exact=True).select_option(label="word")
    assert heat.get_by_role("button", name="special").is_visible()
    pictures.append(heat.locator("canvas.map").evaluate(picture))
    assert len(set(pictures)) == len(pictures)
    heat.get_by_role("combobox", name="Label", exact=True).select_option(label="all tokens")
    assert "of all tokens choose it first" in seen.told("heat").replace("\u00a0", " ")


def test_the_strongest_cell_is_where_the_record_was_made_to_have_it(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    for domain, name in enumerate(Made().domains):
        seen.view("heat").get_by_role("button", name=name).click()
        found = seen.view("heat").locator(".strong button").all_inner_texts()
        assert {f"layer {point + 1}, expert {(domain + point) % 8}" for point in range(4)} == set(found[:4])


def test_tokens_are_walked_and_layers_changed_by_keys(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    tokens = seen.view("tokens")
    words = tokens.locator(".tok bdi").all_inner_texts()
    assert len(words) > 20 and tokens.locator(".tok[tabindex='0']").count() == 1
    tokens.locator(".tok").first.focus()
    seen.press("ArrowRight", "ArrowRight")
    assert f"\u201c{words[2]}\u201d at layer 2" in seen.told("tokens")
    seen.press("ArrowDown")
    assert f"\u201c{words[2]}\u201d at layer 3" in seen.told("tokens")
    assert seen.view("cards").locator(".expert small").first.inner_text() == "layer 3", "one layer for all views"
    assert seen.page.evaluate("() => document.activeElement.dataset.at") == "2"
    seen.press("End")
    assert f"\u201c{words[-1]}\u201d" in seen.told("tokens")
    expert = tokens.locator(".tok").last.locator("small").text_content()
    shown = seen.told("tokens").replace("\u00a0", " ")
    assert f"expert {expert}" in shown and "%" in shown
    assert f"expert {expert}," in tokens.locator(".tok").last.get_attribute("aria-label")


def test_an_expert_of_the_legend_is_looked_at_alone(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    tokens = seen.view("tokens")
    chip = tokens.locator(".chip").first
    name = chip.inner_text().split("\n")[0].removeprefix("expert ").strip()
    chip.click()
    lit = tokens.locator(".tok:not(.off) small").all_text_contents()
    assert lit and set(lit) == {name} and tokens.locator(".tok.off").count() > 0
    tokens.locator(".chip[aria-pressed=true]").click()
    assert tokens.locator(".tok.off").count() == 0


def test_every_text_can_be_chosen(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    tokens = seen.view("tokens")
    options = tokens.get_by_role("combobox", name="Text").locator("option").all_text_contents()
    assert len(options) == 40
    tokens.get_by_role("combobox", name="Text").select_option(index=7)
    assert tokens.locator(".tok bdi").first.inner_text() in options[7]
    tokens.get_by_label("Next text").click()
    assert tokens.get_by_role("combobox", name="Text").input_value() == "8"
    assert tokens.locator(".tokens").inner_text().split()[0] in options[8]


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


def test_a_card_says_the_loss(look: Any, tmp_path: Path) -> None:
    seen = look(write_atlas([losses(tmp_path / "record", EACH)], tmp_path / "page"))
    cards = seen.view("cards")
    cards.get_by_label("Layer", exact=True).focus()
    seen.press("End")
    said = seen.page.locator("#card-0-2-1 .removal").inner_text()
    assert said == "Loss without it: +0.900 [+0.890, +0.910]; most for law: +1.900"
    cards.get_by_label("Order of cards").select_option("by loss without it")
    assert cards.locator(".expert h3").all_inner_texts()[0].startswith("Expert 3")


def test_a_partner_leads_to_its_card(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    link = seen.page.locator("#card-0-1-1 .partners button").first
    name = link.inner_text()
    link.click()
    assert seen.page.evaluate("() => document.activeElement.id") == f"card-0-1-{name}"


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


def test_a_label_selects_its_texts_and_a_text_opens(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    maps = seen.view("maps")
    maps.get_by_role("button", name="sports").click()
    assert "10 texts selected: 10 sports" in seen.told("maps")
    assert maps.locator("svg.scatter").last.locator(".mark.on").count() == 10
    shown = maps.locator(".chosen li bdi").first.inner_text()
    maps.locator(".chosen li button").first.click()
    assert seen.view("tokens").locator(".tok bdi").first.inner_text() == shown.split()[0]


def test_the_map_is_walked_by_arrow_keys(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    picture = seen.view("maps").locator("svg.scatter").first
    picture.focus()
    ring = "one => Number(one.querySelector('.active').getAttribute('cx'))"
    before = picture.evaluate(ring)
    seen.press("ArrowRight")
    assert picture.evaluate(ring) > before or picture.evaluate(ring) == before > 250
    seen.press("ArrowLeft", "ArrowLeft", "Enter")
    assert "1 text selected" in seen.told("maps")
    seen.press("Enter")
    assert "One text" in seen.told("maps")


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


@pytest.mark.parametrize(("name", "width"), [("small_atlas", 1280), ("small_atlas", 360), ("two_atlases", 1280)])
def test_all_text_can_be_read(name: str, width: int, look: Any, request: pytest.FixtureRequest) -> None:
    seen = look(request.getfixturevalue(name), width)
    for scheme in ("dark", "light"):
        seen.page.emulate_media(color_scheme=scheme)
        assert seen.page.evaluate(CONTRAST) == [], scheme


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


def test_a_window_without_room_is_drawn_and_drawn_again(look: Any, strange_atlas: Path) -> None:
    """Each resize draws. A drawing that never ends would stop the page for good."""
    seen = look(strange_atlas)
    for width in (40, 1280):
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.page.wait_for_function("width => innerWidth === width", arg=width, timeout=20_000)
    assert "layer 1" in seen.view("heat").inner_text()


def test_the_map_takes_the_colours_of_the_page(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas, color_scheme="light")
    picture = "() => document.querySelector('canvas.map').toDataURL()"
    light = seen.page.evaluate(picture)
    seen.page.emulate_media(color_scheme="dark")
    seen.page.wait_for_function("light => document.querySelector('canvas.map').toDataURL() !== light", arg=light)


def test_tabbing_reaches_every_control_and_shows_where_it_is(look: Any, small_atlas: Path) -> None:
    seen = look(small_atlas)
    seen.page.evaluate("() => document.querySelectorAll('#cards .expert').forEach((one, at) => at > 1 && one.remove())")
    outlines = []
    for _ in range(150):
        seen.press("Tab")
        outlines.append(
            seen.page.evaluate(
                """() => {
                    const one = document.activeElement;
                    one.dataset.reached = 1;
                    if (one.matches(".node")) return getComputedStyle(one.querySelector("rect")).strokeWidth !== "0px";
                    return getComputedStyle(one.matches(".segments input") ? one.nextElementSibling : one).outlineStyle !== "none";
                }"""
            )
        )
        if seen.page.evaluate("() => document.activeElement === document.body"):
            break
    missed = seen.page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, select, input:not([type=radio]), canvas[tabindex], [tabindex='0']")]
            .filter((one) => one.getClientRects().length && !one.dataset.reached && !one.disabled)
            .map((one) => one.outerHTML.slice(0, 90))"""
    )
    assert missed == [] and all(outlines[:-1])


def test_who_asks_for_less_motion_gets_none(look: Any, small_atlas: Path) -> None:
    moving = """() => [
        getComputedStyle(document.documentElement).scrollBehavior, getComputedStyle(document.querySelector(".ribbon")).transitionDuration,
    ]"""
    assert look(small_atlas).page.evaluate(moving) == ["auto", "0s"]
    assert look(small_atlas, reduced_motion="no-preference").page.evaluate(moving) == ["smooth", "0.12s"]


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


@pytest.mark.sample(0)
def test_a_large_record_makes_a_page_that_answers_at_once(look: Any, tmp_path: Path) -> None:
    """`make test-all`: 60 layers x 128 experts x 100 000 tokens; otherwise a tenth of the tokens and a third of the layers."""
    made = Made(texts=100, points=20, parts=10, experts=128, chosen=8, length=98, model="large")
    if ALL:
        made = replace(made, texts=1000, points=60, parts=100)
    folder = recorded(tmp_path / "record", made)
    start = time.perf_counter()
    atlas = write_atlas([folder], tmp_path)
    seconds, written = time.perf_counter() - start, atlas.stat().st_size
    print(f"\n{seconds:.1f} s, {written / 1e6:.1f} MB")
    assert written < 12_000_000 and seconds < 300
    start = time.perf_counter()
    seen = look(atlas)
    seen.page.wait_for_selector("html.ready", state="attached")
    opened = time.perf_counter() - start
    seen.view("heat").locator("canvas.map").focus()
    start = time.perf_counter()
    seen.press(*["ArrowDown"] * 10)
    moved = (time.perf_counter() - start) / 10
    start = time.perf_counter()
    slider = seen.view("tokens").get_by_label("Layer", exact=True)
    slider.focus()
    seen.press("ArrowRight")
    changed = time.perf_counter() - start
    print(f"opened in {opened:.2f} s, a key {1000 * moved:.0f} ms, a layer {changed:.2f} s")
    assert opened < 15 and moved < 1 and changed < 5
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 1280
