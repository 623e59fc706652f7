"""The page's modules without a browser: what they compute, and what they send."""

from __future__ import annotations

import json

from tests.node import module, value_of
from unmask.io.terminal import visible

BROWSER = """
const kept = new Map();
globalThis.sessionStorage = { getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => kept.set(name, value) };
globalThis.location = { search: "?token=abc", hash: "#map" };
globalThis.history = { replaceState: (state, title, address) => { location.search = ""; kept.set("address", address); } };
const sent = [];
globalThis.fetch = async (path, options) => { sent.push(options); return { ok: true, json: async () => ({}) }; };
"""


def test_the_token_of_the_address_is_kept_for_the_tab_and_sent_in_a_header() -> None:
    found = value_of(
        BROWSER
        + f"""const {{ get, post, takeToken }} = await import({module("api.js")});
        takeToken();
        takeToken();  // as after a reload
        await get("/api/state");
        await post("/api/map", {{}});
        const result = {{ address: kept.get("address"), sent }};"""
    )
    assert found["address"] == "/#map"
    assert [one["headers"]["x-unmask-token"] for one in found["sent"]] == ["abc", "abc"]
    assert [one["credentials"] for one in found["sent"]] == ["omit", "omit"]
    assert found["sent"][1]["headers"]["content-type"] == "application/json"


CHARACTERS = [*map(chr, range(0x3200)), *map(chr, range(0xFE00, 0x10000)), *map(chr, range(0x1F300, 0x1F400))]
CHARACTERS += [*map(chr, range(0xE0000, 0xE0080)), "\U0001f468\u200d\U0001f469", "\u0646\u200c\u0645", "e\u0301"]


def test_what_is_invisible_is_shown_as_the_terminal_shows_it() -> None:
    script = f"import {{ shown }} from {module('dom.js')}; const result = {json.dumps(CHARACTERS)}.map((one) => shown(one));"
    assert value_of(script) == [visible(character) for character in CHARACTERS]
    assert visible("\U0001f468\u200d\U0001f469 \u0646\u200c\u0645") == "\U0001f468\u200d\U0001f469 \u0646\u200c\u0645"


def test_a_title_and_a_name_hide_nothing_either() -> None:
    found = value_of(
        f"""import {{ element }} from {module("dom.js")};
        const attributes = {{}};
        const made = {{ setAttribute: (name, value) => {{ attributes[name] = value; }}, append: () => {{}} }};
        globalThis.document = {{ createElement: () => made }};
        element("p", {{ title: "a\\u202eb", "aria-label": "c\\u{{e0041}}d", id: "one" }});
        const result = attributes;"""
    )
    assert found == {"title": "a\\u202eb", "aria-label": "c\\U000e0041d", "id": "one"}


def test_no_two_labels_of_a_map_differ_in_their_colour_alone() -> None:
    looks = value_of(
        f"""import {{ STYLES, styleOf }} from {module("map_canvas.js")};
        const result = Array.from({{ length: STYLES }}, (_, at) => styleOf(at));"""
    )
    assert len({(look["colour"], look["shape"]) for look in looks}) == len(looks) == 24
    assert len({look["shape"] for look in looks[:4]}) == 4


def test_a_label_without_a_look_of_its_own_has_a_shape_that_no_other_has() -> None:
    looks = value_of(
        f"""import {{ REST, STYLES, styleOf }} from {module("map_canvas.js")};
        const result = [REST, ...Array.from({{ length: STYLES }}, (_, at) => styleOf(at))];"""
    )
    assert looks[0]["shape"] not in {look["shape"] for look in looks[1:]}


NODE = """
class Part {
  constructor(tag) { Object.assign(this, { tag, children: [], attributes: {}, style: {}, dataset: {} }); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this.attributes[name] = value; if (name === "hidden") this.hidden = true; }
  addEventListener() {}
  querySelectorAll() { return []; }
  getContext() { return {}; }
  get parts() { return [this, ...this.children.flatMap((child) => child.parts || [])]; }
  find(test) { return this.parts.find(test); }
}
const byName = {};
globalThis.document = { createElement: (tag) => new Part(tag), getElementById: (name) => (byName[name] ||= new Part("div")) };
globalThis.sessionStorage = { getItem: () => "" };
globalThis.requestAnimationFrame = globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.ResizeObserver = class { observe() {} };
"""


def test_the_routing_of_a_text_through_many_experts_is_drawn() -> None:
    found = value_of(
        NODE
        + f"""const {{ drawn }} = await import({module("routing.js")});
        const weights = Array.from({{ length: 200 }}, () => Array.from({{ length: 100 }}, () => Array(8).fill(0.125)));
        const experts = weights.map((points) => points.map(() => [0, 1, 2, 3, 4, 5, 6, 7]));
        const seen = {{ tokens: Array(200).fill("a"), points: Array(100).fill("1"), names: ["mean"] }};
        const route = {{ weights, experts, start: 0, top: [], applied: true, number: 8, ...seen }};
        const result = drawn(route, ["mean"], String).length;"""
    )
    assert found == 5


DESIGNS = f"""
const {{ chosen, setUpDesigns }} = await import({module("designs.js")});
const designs = ["mean", "last"].map((name) => ({{ name, design: name, meaning: "" }}));
setUpDesigns({{ designs, chosen: ["mean", "last"] }}, () => {{}});
const [first, second] = byName.designs.children.map((box) => box.find((part) => part.tag === "select"));
const written = byName.designs.find((part) => part.tag === "input");
written.value = "";
const refusal = () => {{ try {{ return chosen(); }} catch (error) {{ return error.constructor.name + ": " + error.message; }} }};
"""


def test_nothing_is_asked_while_the_first_design_is_being_written() -> None:
    found = value_of(
        NODE
        + DESIGNS
        + """const result = [chosen()];
        first.value = "own";
        result.push(refusal());
        written.value = " causal/plain/first ";
        result.push(chosen());
        second.value = "";
        result.push(chosen());"""
    )
    assert found[0] == ["mean", "last"] and found[1].startswith("Refused: Write design A")
    assert found[2:] == [["causal/plain/first", "last"], ["causal/plain/first"]]


def test_a_map_is_hidden_while_another_design_waits() -> None:
    found = value_of(
        NODE
        + DESIGNS
        + f"""const {{ mapView }} = await import({module("map.js")});
        const waits = [];
        const corpus = {{ name: "c", texts: 1, rows: 1, snippets: ["a"], labels: null, label_names: [] }};
        const json = (path) => (path === "/api/corpus" ? corpus : new Promise((done) => waits.push(done)));
        globalThis.fetch = async (path) => ({{ ok: true, json: () => json(path) }});
        const section = new Part("section");
        const view = mapView(section, {{ corpus, model: "m" }});
        const board = section.find((part) => part.attributes.class === "board");
        const pause = () => new Promise((done) => setTimeout(done));
        const settle = async (answer) => {{ await pause(); waits.shift()(answer); await pause(); }};
        const result = [];
        view.show();
        await settle({{ ready: true, points: [[0, 0]], share: 1, dim: 2, cut: 0 }});
        result.push(board.hidden);
        first.value = "last";
        view.designsChanged();
        await pause();
        result.push(board.hidden);
        await settle({{ ready: false, done: 0, total: 1 }});
        result.push(board.hidden);
        first.value = "own";
        view.designsChanged();
        await pause();
        result.push(board.hidden, section.find((part) => part.attributes.class === "problem").textContent);
        view.hide();"""
    )
    assert found[:4] == [False, True, True, True] and found[4].startswith("Write design A")
