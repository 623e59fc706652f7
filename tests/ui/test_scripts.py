"""The page's modules without a browser: what they compute, and what they send."""

from __future__ import annotations

import json
from typing import Any

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


NODE = """
class Part {
  constructor(tag) { Object.assign(this, { tag, children: [], attributes: {}, listeners: {}, style: {}, dataset: {} }); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this.attributes[name] = value; if (name === "hidden") this.hidden = true; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(event, listener) { this.listeners[event] = listener; }
  before() {}
  focus() {}
  querySelectorAll() { return []; }
  getContext() { return {}; }
  get parts() { return [this, ...this.children.flatMap((child) => child.parts || [])]; }
  find(test) { return this.parts.find(test); }
  get text() { return this.children.map((child) => child.text ?? child).join(""); }
}
const byName = {};
globalThis.document = { createElement: (tag) => new Part(tag), getElementById: (name) => (byName[name] ||= new Part("div")) };
globalThis.sessionStorage = { getItem: () => "" };
globalThis.requestAnimationFrame = globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.ResizeObserver = class { observe() {} };
const pause = () => new Promise((done) => setTimeout(done));
"""


DESIGNS = f"""
const {{ chosen, setUpDesigns }} = await import({module("designs.js")});
const designs = ["mean", "last"].map((name) => ({{ name, design: name, meaning: "" }}));
setUpDesigns({{ designs, chosen: ["mean", "last"] }}, () => {{}});
const [first, second] = byName.designs.children.map((box) => box.find((part) => part.tag === "select"));
const written = byName.designs.find((part) => part.tag === "input");
written.value = "";
const refusal = () => {{ try {{ return chosen(); }} catch (error) {{ return error.constructor.name + ": " + error.message; }} }};
"""


def value_of_view(name: str, script: str) -> Any:
    """What `result` is after a script that has a page's view, its section, and `answer`, with which the server answers at last."""
    head = f"""const {{ {name}View }} = await import({module(f"{name}.js")});
        let answer;
        globalThis.fetch = async () => ({{ ok: true, json: () => new Promise((done) => {{ answer = done; }}) }});
        const section = new Part("section");
        """
    return value_of(NODE + DESIGNS + head + script)


def test_a_comparison_shows_the_texts_that_were_asked_for() -> None:
    """And not those that were typed while it was computed."""
    found = value_of_view(
        "compare",
        """second.value = "";
        const view = compareView(section, { limits: { texts: 30 } });
        const field = section.find((part) => part.tag === "textarea");
        field.value = "asked one\\nasked two";
        view.show();
        await pause();
        field.value = "typed one\\ntyped two\\ntyped three";
        answer({ designs: [{ name: "mean", dim: 2, cosines: [[1, 0.5], [0.5, 1]], neighbours: [[1], [0]], cut: [] }], pairs: 1 });
        await pause();
        const result = section.text;""",
    )
    assert "asked one" in found and "asked two" in found and "typed" not in found


MAP = f"""
const {{ mapView }} = await import({module("map.js")});
const waits = [];
const corpus = {{ name: "c", texts: 2, rows: 2, snippets: ["a", "b"], labels: null, label_names: [] }};
const json = (path) => (path === "/api/corpus" ? corpus : new Promise((done) => waits.push(done)));
globalThis.fetch = async (path) => ({{ ok: true, json: () => json(path) }});
const section = new Part("section");
const view = mapView(section, {{ corpus, model: "m" }});
const named = (name) => section.find((part) => part.attributes.class === name);
const settle = async (answer, at = 0) => {{ await pause(); waits.splice(at, 1)[0](answer); await pause(); }};
const READY = {{ ready: true, points: [[0, 0], [0.5, 0]], share: 1, dim: 2, cut: 0 }};
"""


def of_map(script: str) -> Any:
    """The value of a script beside a map and the choice of designs."""
    return value_of(NODE + DESIGNS + MAP + script)


def test_a_map_is_hidden_while_another_design_waits() -> None:
    found = of_map(
        """const board = named("board");
        const result = [];
        view.show();
        await settle(READY);
        result.push(board.hidden);
        first.value = "last";
        view.designsChanged();
        await pause();
        result.push(board.hidden);
        await settle({ ready: false, done: 0, total: 1 });
        result.push(board.hidden);
        first.value = "own";
        view.designsChanged();
        await pause();
        result.push(board.hidden, named("problem").text);
        view.hide();"""
    )
    assert found[:4] == [False, True, True, True] and found[4].startswith("Write design A")


SELECTED = """
Object.assign(section.find((part) => part.tag === "canvas"), { clientWidth: 100, clientHeight: 100 });
const panel = named("selection");
const choose = (place) => section.find((part) => part.attributes.tabindex === "-1").children[place].children[0].listeners.click();
const whole = () => panel.hidden ? "none" : panel.find((part) => part.attributes.class === "whole").text;
view.show();
await settle(READY);
"""


def test_the_text_that_was_selected_last_is_shown() -> None:
    """Whichever answer comes last; and none after it was cleared, or under another design."""
    found = of_map(
        SELECTED
        + """const result = [whole()];
        choose(0);
        choose(1);
        await settle({ text: "second", neighbours: [] }, 1);
        await settle({ text: "first", neighbours: [] });
        result.push(whole());
        choose(0);
        panel.find((part) => part.text === "Clear").listeners.click();
        await settle({ text: "first", neighbours: [] });
        result.push(whole());
        choose(1);
        await settle({ text: "second", neighbours: [] });
        result.push(whole());
        first.value = "last";
        view.designsChanged();
        result.push(whole());
        view.hide();"""
    )
    assert found == ["none", "second", "none", "second", "none"]
