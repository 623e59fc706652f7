"""The page's data are the record's: counted again here in another way, token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.moe.atlas.conftest import recorded
from tests.moe.atlas.made_record import Made
from tests.moe.atlas.test_packing import unpacked
from unmask.moe.atlas import aggregate as module
from unmask.moe.atlas.aggregate import NONE16, NONE32, aggregate, as_script, choose_texts
from unmask.moe.atlas.tally import MOST_VALUES, OTHERS
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


def test_parts_change_nothing(data: dict[str, Any], record: RoutingRecord, choices: Choices) -> None:
    class Whole(RoutingRecord):
        def batches(self, points: Any = None) -> Any:
            yield choices

    assert record.settings.parts == 2
    assert as_script(aggregate(Whole(record.folder, record.settings))) == as_script(data)


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


def test_a_lift_is_the_share_of_a_word_over_the_share_of_all(
    data: dict[str, Any], record: RoutingRecord, choices: Choices
) -> None:
    words = data["words"]
    place, count, lift = (unpacked(words[key]).reshape(4, 8, -1) for key in ("place", "count", "lift"))
    said = [record.texts.texts[text].split()[position] for text, position in zip(choices.texts, choices.positions, strict=True)]
    own = np.array(said) == words["names"][place[2, 3, 0]]
    first = choices.chosen[2][:, 0] == 3
    assert count[2, 3, 0] == (own & first).sum()
    assert lift[2, 3, 0] == pytest.approx((own & first).sum() / own.sum() / first.mean(), rel=1e-4)


def test_partners_act_on_the_same_tokens(data: dict[str, Any], choices: Choices) -> None:
    place, rate = (unpacked(data["partners"][key]).reshape(4, 8, 3) for key in ("place", "rate"))
    chosen = choices.chosen[1]
    for expert in range(8):
        own = (chosen == expert).any(axis=1)
        rates = [(chosen[own] == other).any(axis=1).mean() if other != expert else 0 for other in range(8)]
        assert rate[1, expert, 0] / NONE16 == pytest.approx(max(rates), abs=ROUNDED)
        assert rates[place[1, expert, 0]] == max(rates)


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


def test_the_first_choice_stands_first_also_if_it_is_not_the_most_probable(tmp_path: Path) -> None:
    record = read_record(recorded(tmp_path, Made(texts=4, biased=True)))
    data, choices = aggregate(record), record.choices([1])
    top, sure = (unpacked(data[key]).reshape(-1, 4, 3)[:, 1] for key in ("top", "probabilities"))
    order = np.concatenate([np.flatnonzero(choices.texts == shown["number"]) for shown in data["shown"]])
    assert (top[:, :2] == choices.chosen[0][order]).all()
    assert (sure[:, 0] <= sure[:, 1]).all() and (sure[:, 0] < sure[:, 1]).any()


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


def test_the_rarest_of_many_values_are_one(record: RoutingRecord, tmp_path: Path) -> None:
    folder = recorded(tmp_path, replace(Made(), texts=60))
    found = read_record(folder)
    label = found.settings.labels[0].model_copy(update={"values": tuple(f"v{value:02}" for value in range(40))})
    many = RoutingRecord(folder, found.settings.model_copy(update={"labels": (label,)}))
    many.texts.labels["domain"] = np.array([value % 40 for value in range(60)], np.int16)
    heat = aggregate(many)["heat"][1]
    assert len(heat["values"]) == MOST_VALUES and heat["values"][-1] == OTHERS
    assert heat["values"][:20] == [f"v{value:02}" for value in range(20)], "those with two texts each"
    assert sum(heat["tokens"]) == many.settings.tokens


def test_texts_are_drawn_by_the_seed_and_fit_the_page() -> None:
    lengths = np.random.default_rng(0).integers(0, 900, 5000)
    for points in (1, 12, 60, 200):
        mapped, shown = choose_texts(lengths, points, 0)
        assert (np.diff(mapped) > 0).all() and len(mapped) == module.MAPPED and (lengths[mapped] > 0).all()
        assert sum(shown.values()) * points <= module._VALUES and 30 <= len(shown) <= module.SHOWN
        assert all(0 < size <= lengths[text] for text, size in shown.items()) and set(shown) <= set(mapped.tolist())
    again, other = choose_texts(lengths, 12, 0), choose_texts(lengths, 12, 1)
    assert again[1] == choose_texts(lengths, 12, 0)[1] != other[1]
