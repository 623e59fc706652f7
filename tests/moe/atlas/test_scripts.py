"""The atlas's scripts without a browser: what they compute of their data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.node import atlas, value_of
from unmask.moe.atlas.aggregate import packed, shares


def test_values_without_a_mark_of_their_own_share_one_that_no_other_has() -> None:
    found = value_of(
        atlas("core.js", "maps.js")
        + """
        const counts = (size) => Array.from({ length: size }, (_, at) => 100 - at);
        const result = [8, 9, 24].map((size) => counts(size).map((_, value) => looks(counts(size))(value)));"""
    )
    for looks in found:
        own, rest = looks[:8], looks[8:]
        assert len({mark for mark, _ in own}) == len({tint for _, tint in own}) == 8
        assert len({mark for mark, _ in rest}) == (len(rest) > 0)
        assert not {mark for mark, _ in rest} & {mark for mark, _ in own}


def test_the_share_of_one_token_of_many_is_not_zero() -> None:
    counts, sure = json.dumps(packed(np.array([[1, 0]], np.uint32))), json.dumps(packed(shares(np.array([[0.5, 0]]))))
    found = value_of(
        atlas("core.js")
        + f"""
        const heat = [{{ tokens: [10000000], first: {counts}, load: {counts}, sure: {sure} }}];
        const state = new RecordState({{ heat, points: [{{ experts: 2 }}] }}, 0, []);
        const result = ["first", "load", "sure"].map((kind) => [0, 1].map((slot) => state.share(kind, 0, 0, slot)));"""
    )
    assert found[:2] == [[1e-7, 0], [1e-7, 0]] and found[2] == [pytest.approx(0.5, abs=1e-4), 0]


DOCUMENT = """
class Part {
  constructor(tag) { Object.assign(this, { tag, children: [], attributes: {}, style: { setProperty() {} } }); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener() {}
  get isolated() { return this.children.flatMap((child) => child.isolated || []).concat(this.tag === "bdi" ? [this.text] : []); }
  get text() { return this.children.map((child) => child.text ?? child).join(""); }
}
globalThis.document = { createElement: (tag) => new Part(tag), getElementById: () => new Part("p") };
"""


def test_a_name_of_another_direction_is_isolated_where_a_view_tells_it() -> None:
    found = value_of(
        DOCUMENT
        + atlas("core.js", "heat.js", "maps.js")
        + """
        const topic = { name: "topic", values: ["\u05e9\u05dc", "\u05d0\u05d1"], tokens: [8, 8] };
        const raw = { names: ["\u05de\u05d5"], heat: [{}, topic], points: [{ name: "1", experts: 1, chosen: 1 }] };
        const state = new RecordState(raw, 0, []);
        state.share = () => 0.5;
        const map = { texts: ["one", "two"], shown: [-1, -1] };
        const view = { state, map, label: 0, active: 0, selected: new Set([0, 1]), pictures: {}, told: new Part("div") };
        Object.assign(view, { code: (text) => text, called: MapView.prototype.called });
        MapView.prototype.tell.call(view);
        const heat = { state, row: 0, column: 0, value: 0, rows: [[0]], canvas: new Part("canvas"), told: new Part("div") };
        HeatView.prototype.tell.call(heat, true);
        const result = [view.told.isolated, view.told.text, heat.told.isolated, heat.told.text, heat.canvas.attributes["aria-label"]];"""
    )
    of_map, map_text, of_heat, heat_text, spoken = found
    assert of_map.count("\u05e9\u05dc") == of_map.count("\u05d0\u05d1") == 2  # of all that are selected, and beside its text
    assert map_text.startswith("2 texts selected: 1 \u05e9\u05dc, 1 \u05d0\u05d1")
    assert of_heat.count("\u05de\u05d5") == 1 and of_heat.count("\u05e9\u05dc") == 2
    assert "50.0\u00a0% of tokens of \u201c\u05e9\u05dc\u201d choose it first, 0.0 points" in heat_text
    assert spoken.startswith("layer 1, expert \u05de\u05d5: 50.0\u00a0% of tokens of \u201c\u05e9\u05dc\u201d choose it first")


def test_a_card_that_is_opened_empties_the_search_box() -> None:
    found = value_of(
        DOCUMENT
        + atlas("core.js", "cards.js")
        + """
        document.getElementById = () => ({ scrollIntoView() {}, focus() {} });
        const raw = { heat: [{}], names: [] };
        const state = { raw, points: [{ name: "1", experts: 0 }], layer: 0, place: 0, on() {}, layerName: () => "1" };
        const view = new CardView(state, new Part("div"));
        state.views = { cards: view };
        view.search.value = "law";
        view.find = "law";
        openCard(state, 0, 0);
        const result = [view.find, view.search.value];"""
    )
    assert found == ["", ""]


def test_an_order_by_a_value_that_all_tokens_lack_is_left() -> None:
    """Its choice is gone then, and columns that are numbered as ranks would be experts in their own order."""
    found = value_of(
        DOCUMENT
        + atlas("core.js", "heat.js")
        + """
        const heat = [{ name: "", values: ["all tokens"], tokens: [8] }, { name: "topic", values: ["law", "news"], tokens: [4, 4] }];
        const state = { label: 1, raw: { heat }, points: [{ chosen: 1 }] };
        const view = { state, mode: "first", order: 2, value: 1, thumbs: new Part("div"), draw() {}, moveToStrongest() {} };
        view.controls = Object.assign(new Part("div"), { contains: () => false });
        const result = [];
        for (state.label of [1, 0, 1]) {
          HeatView.prototype.rebuild.call(view);
          result.push(view.order);
        }"""
    )
    assert found == [2, 0, 0]
