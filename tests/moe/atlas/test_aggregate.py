"""The page's data are the record's: counted again here in another way, token by token."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.moe.atlas.conftest import Made
from unmask.moe.atlas.aggregate import NONE32, aggregate, as_script, pack, pieces, token_name
from unmask.moe.routing.record import EXPERTS, Choices, ExpertLosses, LabelLosses, Removal, RoutingRecord, read_record
from unmask.moe.routing.text_bootstrap import Measure

KINDS = {"u8": "u1", "u16": "<u2", "u32": "<u4", "f32": "<f4"}


def unpacked(values: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(values["data"]), KINDS[values["type"]])


@pytest.fixture(scope="module")
def record(small_record: Path) -> RoutingRecord:
    return read_record(small_record)


@pytest.fixture(scope="module")
def data(record: RoutingRecord) -> dict[str, Any]:
    return aggregate(record)


@pytest.fixture(scope="module")
def choices(record: RoutingRecord) -> Choices:
    return record.choices(range(4))


@pytest.mark.parametrize("label", [0, 1, 2])
def test_heat_counts_tokens(label: int, data: dict[str, Any], record: RoutingRecord, choices: Choices) -> None:
    codes = [np.zeros(len(choices.texts), int), record.texts.labels["domain"][choices.texts], choices.tags["word"]][label]
    heat = data["heat"][label]
    assert heat["values"] == [["all"], list(Made().domains), ["common", "special"]][label]
    first = unpacked(heat["first"]).reshape(-1, 4, 8)
    for value, tokens in enumerate(heat["tokens"]):
        own = codes == value
        assert tokens == own.sum()
        for point, expert in np.ndindex(4, 8):
            assert first[value, point, expert] == (choices.chosen[point][own, 0] == expert).sum()


def test_shown_tokens_and_words_are_those_of_the_record(data: dict[str, Any], record: RoutingRecord, choices: Choices) -> None:
    top = unpacked(data["top"]).reshape(-1, 4, 3)
    sure = unpacked(data["probabilities"]).reshape(-1, 4, 3) / 255
    row = 0
    for shown in data["shown"]:
        own = np.flatnonzero(choices.texts == shown["number"])
        assert "".join(shown["parts"]) == record.texts.texts[shown["number"]] and not shown["cut"]
        assert len(shown["parts"]) == 2 * len(own) + 1
        assert shown["labels"] == [record.texts.labels["domain"][shown["number"]], -1]
        here = slice(row, row + len(own))
        for point in range(4):
            assert (top[here, point, 0] == choices.chosen[point][own, 0]).all()
            expected = np.take_along_axis(choices.probabilities[point][own].astype(float), top[here, point].astype(int), axis=1)
            assert np.allclose(sure[here, point], expected, atol=1 / 255) and (np.diff(expected[:, 1:], axis=1) <= 0).all()
        row += len(own)
    assert row == len(top)
    names, place, count, lift = data["words"]["names"], *(unpacked(data["words"][key]) for key in ("place", "count", "lift"))
    parts = {part.strip() for shown in data["shown"] for part in shown["parts"][1::2]}
    strongest = place[::6]
    assert (strongest != NONE32).sum() > 20 and {names[index] for index in strongest[strongest != NONE32]} <= parts
    assert (count[place != NONE32] >= 3).all() and (lift[place != NONE32] > 1).all()


@pytest.mark.parametrize(
    "made",
    [Made(labelled=False), Made(texts=1), Made(points=1), Made(chosen=1), Made(experts=2), Made(strange=True, named=True)],
    ids=str,
)
def test_any_record_makes_data(made: Made, tmp_path: Path) -> None:
    data = aggregate(read_record(made.write(tmp_path)))
    as_script(data)
    assert len(data["heat"]) == 1 + made.labelled and bool(data["names"]) == made.named


def test_losses_belong_to_the_slots_of_their_expert(tmp_path: Path) -> None:
    folder = Made(points=3, experts=4, texts=12).write(tmp_path)
    settings = read_record(folder).settings
    removals = [Removal((point,), expert) for point in range(3) for expert in range(4)]

    def change(value: float) -> Measure:
        return Measure(value, 0.0, (value - 0.01, value + 0.01))

    by_domain = tuple((change(index / 10 + 1), change(9.0)) for index in range(12))
    ExpertLosses(
        model="made", weights=settings.weights, dtype="float32", max_length=32, seed=0, sources=("made",), texts=12, tokens=100,
        left_out=0, points=settings.points, experts=None, loss=change(2.0), removals=tuple(removals),
        changes=tuple(change(index / 10) for index in range(12)), provenance={},
        labels={"domain": LabelLosses(("law", "unknown"), (change(1.0), change(1.0)), by_domain)},
    ).write(folder / EXPERTS)  # fmt: skip
    data = aggregate(read_record(folder))
    losses = unpacked(data["removal"]["all"]).reshape(3, 4, 3)
    assert losses[2, 1] == pytest.approx([0.9, 0.89, 0.91]) and not data["removal"]["together"]
    of_domains = unpacked(data["removal"]["labels"][0]).reshape(12, 4)
    law = data["heat"][1]["values"].index("law")
    assert of_domains[:, law] == pytest.approx(1 + np.arange(12) / 10)
    assert np.isnan(np.delete(of_domains, law, axis=1)).all(), "nothing is known of other domains"


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "float32", ">u2"])
def test_packed_arrays_come_back(kind: str) -> None:
    values = np.arange(24).reshape(4, 6).astype(kind)
    assert (unpacked(pack(values.T)) == values.T.reshape(-1)).all()


def test_no_string_ends_the_script() -> None:
    hostile = ["</script><script>alert(1)</script>", "\u2028\u2029", "\u202eabc", "\x1b[31m\x00", "line\nbreak\ttab"]
    text = as_script({"a": hostile, "b": (1, 0.5, None, True)})
    assert "<" not in text and "\u202e" not in text and "\x00" not in text
    expected = [hostile[0], "\\u2028\\u2029", "\\u202eabc", "\\x1b[31m\\x00", hostile[4]]
    assert json.loads(text) == {"a": expected, "b": [1, 0.5, None, True]}


@given(some.text(max_size=30), some.data())
def test_pieces_are_the_text_again(text: str, data: some.DataObject) -> None:
    """Whatever the spans: gaps between tokens, tokens that share characters, tokens that are not recorded."""
    ends = data.draw(some.lists(some.tuples(*[some.integers(0, len(text))] * 2, some.booleans()), max_size=12))
    spans = np.array(sorted(sorted(span[:2]) for span in ends)).reshape(-1, 2)
    recorded = np.flatnonzero(np.array([span[2] for span in ends], bool))
    parts = pieces(text, spans, recorded, complete=True)
    assert "".join(parts) == text and len(parts) == 2 * len(recorded) + 1
    assert pieces(text, spans, recorded, complete=False)[-1] == ""


@pytest.mark.parametrize(
    ("text", "first", "last", "name"),
    [("the cat", 3, 7, "cat"), ("walking", 4, 7, "·ing"), ("(walk)", 1, 5, "walk"), ("a\n\nb", 1, 3, "⏎⏎"), ("a", 0, 0, "∅")],
)
def test_names_of_tokens(text: str, first: int, last: int, name: str) -> None:
    assert token_name(text, first, last) == name
