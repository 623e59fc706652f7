"""The atlas's scripts without a browser: what they compute of their data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.node import atlas, value_of
from unmask.moe.atlas.aggregate import packed, quantized_shares


def test_the_share_of_one_token_of_many_is_not_zero() -> None:
    counts, sure = json.dumps(packed(np.array([[1, 0]], np.uint32))), json.dumps(packed(quantized_shares(np.array([[0.5, 0]]))))
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
