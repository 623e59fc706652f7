"""The page's data are the record's: counted again here in another way, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.moe.atlas.conftest import recorded
from tests.moe.atlas.made_record import Made
from tests.moe.atlas.test_packing import unpacked
from unmask.moe.atlas.aggregate import NONE16, NONE32, aggregate, as_script
from unmask.moe.routing.record import Choices, RoutingRecord, read_record

ROUNDED = 1e-5


@pytest.fixture(scope="module")
def record(small_record: Path) -> RoutingRecord:
    return read_record(small_record)


@pytest.fixture(scope="module")
def data(record: RoutingRecord) -> dict[str, Any]:
    return aggregate(record)


@pytest.fixture(scope="module")
def choices(record: RoutingRecord) -> Choices:
    return record.choices(range(len(record.points)))


def by_slot(data: dict[str, Any], label: int, kind: str) -> np.ndarray:
    heat = data["heat"][label]
    experts = [point["experts"] for point in data["points"]]
    whole = NONE16 if kind == "sure" else np.array(heat["tokens"])[:, None, None]
    return unpacked(heat[kind]).reshape(len(heat["values"]), len(experts), experts[0]) / whole


@pytest.mark.parametrize("label", [0, 1, 2])
def test_shares_are_those_of_the_tokens(label: int, data: dict[str, Any], record: RoutingRecord, choices: Choices) -> None:
    codes = [np.zeros(len(choices.texts), int), record.texts.labels["domain"][choices.texts], choices.tags["word"]][label]
    assert data["heat"][label]["values"] == [["all"], list(Made().domains), ["common", "special"]][label]
    for value, tokens in enumerate(data["heat"][label]["tokens"]):
        own = codes == value
        assert tokens == own.sum()
        for point in range(len(record.points)):
            chosen, probabilities = choices.chosen[point][own], choices.probabilities[point][own].astype(float)
            for expert in range(8):
                first = chosen[:, 0] == expert
                assert by_slot(data, label, "first")[value, point, expert] == pytest.approx(first.mean(), abs=ROUNDED)
                load = (chosen == expert).any(axis=1).mean()
                assert by_slot(data, label, "load")[value, point, expert] == pytest.approx(load, abs=ROUNDED)
                sure = probabilities[first, expert].mean() if first.any() else 0
                assert by_slot(data, label, "sure")[value, point, expert] == pytest.approx(sure, abs=ROUNDED)


def test_flows_are_all_steps_and_agree_with_the_loads(data: dict[str, Any], choices: Choices) -> None:
    first = by_slot(data, 0, "first")[0]
    assert len(data["flows"]) == len(data["points"]) - 1
    for point, flow in enumerate(data["flows"]):
        one, other, tokens = (unpacked(flow[key]) for key in ("from", "to", "tokens"))
        assert tokens.sum() == data["tokens"] and (np.diff(tokens.astype(int)) <= 0).all()
        for ends, at in ((one, point), (other, point + 1)):
            assert np.bincount(ends, tokens, minlength=8) / data["tokens"] == pytest.approx(first[at], abs=ROUNDED)
        both = (choices.chosen[point][:, 0] == one[0]) & (choices.chosen[point + 1][:, 0] == other[0])
        assert both.sum() == tokens[0]


def test_examples_and_shown_tokens_are_those_of_the_record(
    data: dict[str, Any], record: RoutingRecord, choices: Choices
) -> None:
    top = unpacked(data["top"]).reshape(-1, 4, 3)
    sure = unpacked(data["probabilities"]).reshape(-1, 4, 3) / 255
    row = 0
    for shown in data["shown"]:
        own = np.flatnonzero(choices.texts == shown["number"])
        assert "".join(shown["parts"]) == record.texts.texts[shown["number"]] and not shown["cut"]
        assert len(shown["parts"]) == 2 * len(own) + 1
        assert shown["labels"] == [record.texts.labels["domain"][shown["number"]], -1]
        for point in range(4):
            here = slice(row, row + len(own))
            assert (top[here, point, 0] == choices.chosen[point][own, 0]).all()
            expected = np.take_along_axis(choices.probabilities[point][own].astype(float), top[here, point].astype(int), axis=1)
            assert np.allclose(sure[here, point], expected, atol=1 / 255)
            assert (np.diff(expected[:, 1:], axis=1) <= 0).all()
        row += len(own)
    assert row == len(top)
    examples = unpacked(data["examples"]).reshape(4, 8, -1)
    for point in range(4):
        for expert in range(8):
            rows = examples[point, expert][examples[point, expert] != NONE32]
            assert (top[rows, point, 0] == expert).all()
            if len(rows):
                assert sure[rows[0], point, 0] == sure[top[:, point, 0] == expert, point, 0].max()


def test_routers_that_know_the_domain_put_its_texts_side_by_side(data: dict[str, Any], tmp_path: Path) -> None:
    known = data["map"]["labels"][0]
    assert known["routing"] > 0.75 and known["chance"] == pytest.approx(9 / 39, abs=1e-3)
    assert data["map"]["labels"][1] is None, "labels of words are no labels of texts"
    nothing = aggregate(read_record(recorded(tmp_path, Made(known=0.0, texts=80))))["map"]
    assert nothing["labels"][0]["routing"] < 0.45 and nothing["labels"][0]["hidden"] > 0.9


@pytest.mark.parametrize(
    "made",
    [
        Made(unlabelled=True), Made(texts=1, parts=1), Made(texts=2, parts=1), Made(points=1), Made(chosen=1), Made(experts=2, chosen=2),
        Made(texts=6, length=1), Made(strange=True, named=True),
    ],
    ids=str,
)  # fmt: skip
def test_any_record_makes_data(made: Made, tmp_path: Path) -> None:
    data = aggregate(read_record(recorded(tmp_path, made)))
    as_script(data)
    assert (data["map"] is None) == (made.texts < 3)
    assert len(data["heat"]) == (1 if made.unlabelled else 2)
    assert data["names"] == ([f"expert-{number}" for number in range(8)] if made.named else [])
