"""Measures of routing with a known answer; of a record: every point and label, the same every time, and computed once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score, mutual_info_score

import unmask.moe.routing.measures as module
from tests.moe.routing.recorded import native, texts_file, topical
from tests.moe.routing.test_formulas import DOMAINS, EXPERTS, Routed, routed
from tests.probing.conftest import Run
from unmask.errors import UnmaskError
from unmask.moe.routing.agreement import compare_records
from unmask.moe.routing.measures import (
    GENERAL,
    OF_LABELS,
    PointChoices,
    general_series,
    load_or_measure_routing,
    measure_routing,
    probe_correct,
    table_series,
    text_label_series,
    token_label_series,
    vocabulary_series,
)
from unmask.moe.routing.record import RoutingRecord, read_record
from unmask.moe.routing.recording import record_routing
from unmask.moe.routing.text_bootstrap import Draws, mean_of
from unmask.statistics.information import adjusted_mutual_information

FEW = Draws(resamples=100, token_resamples=20, shuffles=30)


def point(made: Routed, ids: Any = None, first: Any = None) -> PointChoices:
    """Choices of a router that is sure of them."""
    first = made.first if first is None else first
    positions = np.concatenate([np.arange(count) for count in np.bincount(made.texts)])
    tokens = np.arange(len(first)) % 7 if ids is None else ids
    shares = np.eye(EXPERTS)[first].astype(np.float16)
    return PointChoices(made.texts, positions, tokens, {}, shares, first[:, None].astype(np.int16))


def test_one_expert_for_each_domain() -> None:
    made = routed(1.0)
    of_labels, general = text_label_series(point(made), made.labels, FEW), general_series(point(made), FEW)
    assert mean_of([of_labels["information"]]).corrected == pytest.approx(1)
    largest = 1 - 1 / DOMAINS
    assert mean_of([of_labels["specialisation"]], largest).corrected == pytest.approx(largest)
    assert general["repetition"][0] == pytest.approx(1) and general["distinctness"][0] == pytest.approx(1)


def test_a_mixture_of_knowing_and_guessing_has_its_truth_in_the_interval() -> None:
    made = routed(0.4, 200)
    own, other = 0.4 + 0.6 / EXPERTS, 0.6 / EXPERTS
    truth = 1 + (own * np.log(own) + 3 * other * np.log(other)) / np.log(DOMAINS)
    measured = mean_of([text_label_series(point(made), made.labels, FEW)["information"]])
    assert measured.interval is not None and measured.interval[0] <= truth <= measured.interval[1]
    assert measured.chance < 0.01


def test_labels_of_tokens() -> None:
    made = routed(0.0, 60)
    tags = np.where(np.arange(len(made.first)) % 3 == 0, made.first % 2, 2).astype(np.int16)
    tags[::10] = -1
    known = tags >= 0
    share = np.bincount(tags[known]) / known.sum()
    value, _, chance = (series := token_label_series(point(made), tags, 3, FEW)["information"])
    assert value == pytest.approx(mutual_info_score(tags[known], made.first[known]) / -(share * np.log(share)).sum())
    assert chance < 0.02 < 0.1 < mean_of([series]).corrected
    unrelated = token_label_series(point(made), (np.arange(len(tags)) // 5 % 3).astype(np.int16), 3, FEW)
    nothing = mean_of([unrelated["information"]])
    assert nothing.interval is not None and nothing.interval[0] < 0.005 and abs(nothing.corrected) < 0.005


def test_vocabulary_that_decides() -> None:
    made = routed()
    ids = np.random.default_rng(5).integers(12, size=len(made.first))
    assert mean_of([vocabulary_series(point(made, ids, ids % EXPERTS), FEW)]).corrected == pytest.approx(1)
    by_chance = vocabulary_series(point(made, ids), FEW)
    assert by_chance[0] > 0.28 and abs(mean_of([by_chance]).corrected) < 0.02, "the largest share is above 1/n by chance"
    assert np.isnan(vocabulary_series(point(made, np.arange(len(made.first))), FEW)[0])


def test_agreement_needs_no_common_names_of_experts() -> None:
    one, other = routed(texts=100), routed(texts=100, seed=1)
    mixed = np.where(np.arange(len(one.first)) % 2, one.first, other.first)
    for first in (one.first, other.first, mixed):
        renamed = point(one, first=np.array([2, 0, 3, 1])[first])
        value, _, chance = table_series({"": adjusted_mutual_information}, one.first, EXPERTS, renamed, FEW, shifts=0)[""]
        assert value == pytest.approx(adjusted_mutual_info_score(one.first, first)) and chance == 0


def test_a_probe_predicts_labels_that_are_there_and_no_others() -> None:
    random, labels = np.random.default_rng(0), np.arange(90) % 3
    known = probe_correct(np.eye(3)[labels] + random.normal(0, 0.1, size=(90, 3)), labels)
    noise = probe_correct(random.normal(size=(90, 60)), labels)
    assert known is not None and known.mean() > 0.95
    assert noise is not None and noise.mean() < 0.55, "held out: 60 dimensions fit 90 labels, and predict none"
    assert probe_correct(np.zeros((8, 2)), np.arange(8) % 2) is None


def test_sixteen_bits_lose_nothing_that_matters() -> None:
    wide = np.random.default_rng(0).dirichlet(np.full(16, 0.3), size=4000).astype(np.float32)
    texts, chosen = np.repeat(np.arange(100), 40), wide.argmax(axis=1)[:, None].astype(np.int16)
    narrow, exact = (
        PointChoices(texts, np.tile(np.arange(40), 100), chosen[:, 0], {}, wide.astype(precision), chosen)  # type: ignore[arg-type]
        for precision in (np.float16, np.float32)
    )
    for (value, *_), (other, *_) in zip(general_series(narrow, FEW).values(), general_series(exact, FEW).values(), strict=True):
        assert value == pytest.approx(other, abs=2e-4)


@pytest.fixture
def record(tokenizer: Any, tmp_path: Path) -> RoutingRecord:
    return record_routing(native("olmoe", tokenizer), topical(24), tmp_path / "record")


def test_every_measure_of_every_point_and_label(record: RoutingRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_or_measure_routing(record, FEW)
    lengths = dict.fromkeys([*GENERAL, "vocabulary specialisation"], 3) | {"layer agreement": 2}
    assert {name: len(one["by_point"]) for name, one in found["general"].items()} == lengths
    assert list(found["labels"]) == ["topic", "size"]
    topic = found["labels"]["topic"]
    assert topic["values"] == {"music": 12, "sport": 12} and set(topic["measures"]) == set(OF_LABELS)
    for one in [*found["general"].values(), *topic["measures"].values()]:
        assert one["interval"][0] <= one["corrected"] <= one["interval"][1]
    assert set(topic["readout"]["probes"]) == {"routing", "hidden"}
    assert np.sum(found["load"], axis=1) == pytest.approx([2] * 3, abs=1e-3), "two experts a token"
    assert np.sum(topic["shares"], axis=2) == pytest.approx(np.full((3, 2), 2), abs=1e-3)
    assert json.loads(json.dumps(measure_routing(record, FEW))) == found, "the same numbers every time"
    monkeypatch.setattr(module, "measure_routing", lambda *_: pytest.fail("computed again"))
    assert load_or_measure_routing(read_record(record.folder), FEW) == found


def test_texts_of_which_no_token_was_drawn_are_left_out(tokenizer: Any, tmp_path: Path) -> None:
    record = record_routing(native("olmoe", tokenizer), topical(24), tmp_path / "record", sample=30)
    assert measure_routing(record, FEW)["texts"] == len(np.unique(record.choices().texts)) < 24


def test_experts_in_another_order_agree(tokenizer: Any, tmp_path: Path) -> None:
    model = native("olmoe", tokenizer)
    one = record_routing(model, topical(24), tmp_path / "one")
    with torch.no_grad():
        for layer in model.backbone.layers:
            for weight in (layer.mlp.gate.weight, layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
                weight.copy_(weight.roll(1, dims=0).clone())
    other = record_routing(model, topical(24), tmp_path / "other")
    found = compare_records(one, other, FEW)
    assert found.ami.corrected == pytest.approx(1, abs=0.02) and len(found.by_point) == 3
    with pytest.raises(UnmaskError, match="not of the same tokens"):
        compare_records(one, record_routing(model, topical(12), tmp_path / "fewer"))


def test_records_from_the_command_line(run: Run, pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    given = ("-t", texts_file(tmp_path), "--label", "topic", "--label", "size")
    for name, family in (("a", "olmoe"), ("b", "mixtral")):
        code, out, err = run("routing", "-o", tmp_path / name, "-m", pico_folder(family), *given)
        assert code == 0, err
        for said in ("topic: information", "size: probe, routing weights", "3 routing points, 2 of 8 experts per token"):
            assert said in out
    assert max(len(line.rstrip()) for line in out.splitlines() if line.startswith(" ")) <= 80
    assert run("routing", "-o", tmp_path / "b")[1] == out, "without a model"
    found: Any = json.loads(run("routing", "-o", tmp_path / "a", "--json")[1])
    assert found["labels"]["topic"]["values"] == {"music": 12, "sport": 12}
    compared = ("routing", "-o", tmp_path / "a", "--against", tmp_path / "b")
    assert "AMI" in run(*compared)[1]
    assert json.loads(run(*compared, "--json")[1])["measures"]["AMI"]["value"] < 0.9
