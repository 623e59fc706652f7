"""Measures of a record: of every point and label, the same every time, and computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unmask.moe.routing.measures as module
from tests.moe.routing.recorded import native, topical
from unmask.moe.routing.measures import (
    GENERAL,
    OF_LABELS,
    PointChoices,
    general_series,
    measure_routing,
    measured_routing,
    text_label_series,
)
from unmask.moe.routing.record import RoutingRecord, read_record
from unmask.moe.routing.recording import record_routing
from unmask.moe.routing.text_bootstrap import Draws

FEW = Draws(resamples=40, token_resamples=10, shuffles=10)


@pytest.fixture
def record(tokenizer: Any, tmp_path: Path) -> RoutingRecord:
    return record_routing(native("olmoe", tokenizer), topical(24), tmp_path / "record")


def test_every_measure_of_every_point_and_label(record: RoutingRecord) -> None:
    found = measure_routing(record, FEW)
    more = {"vocabulary specialisation", "layer agreement", "co-activation"}
    assert set(found["general"]) == {*GENERAL, *more}
    assert {name: len(one["by_point"]) for name, one in found["general"].items()} == {
        **dict.fromkeys([*GENERAL, *more], 3),
        "layer agreement": 2,
    }
    assert list(found["labels"]) == ["topic", "size"]
    topic = found["labels"]["topic"]
    assert topic["values"] == {"music": 12, "sport": 12} and set(topic["measures"]) == set(OF_LABELS)
    for one in [*found["general"].values(), *topic["measures"].values()]:
        assert one["interval"][0] <= one["corrected"] <= one["interval"][1]
    assert set(topic["readout"]["probes"]) == set(topic["readout"]["groups"]) == {"routing", "hidden"}
    assert np.sum(found["load"], axis=1) == pytest.approx([2] * 3, abs=1e-3), "two experts a token"
    assert np.sum(topic["shares"], axis=2) == pytest.approx(np.full((3, 2), 2), abs=1e-3)


def test_measures_are_computed_once(record: RoutingRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measured_routing(record, FEW)
    assert measured_routing(read_record(record.folder), FEW) == first
    written = (record.folder / "measures.json").read_bytes()
    (record.folder / "measures.json").unlink()
    measured_routing(record, FEW)
    assert (record.folder / "measures.json").read_bytes() == written, "the same numbers every time"
    monkeypatch.setattr(module, "measure_routing", lambda *_: pytest.fail("computed again"))
    assert measured_routing(record, FEW) == first


def test_texts_of_which_no_token_was_drawn_are_left_out(tokenizer: Any, tmp_path: Path) -> None:
    record = record_routing(native("olmoe", tokenizer), topical(24), tmp_path / "record", sample=30)
    found = measure_routing(record, FEW)
    assert found["texts"] == len(np.unique(record.choices().texts)) < 24


def test_sixteen_bits_lose_nothing_that_matters() -> None:
    """Measures of probabilities in 16 bits are those of 32 bits to the third digit."""
    random = np.random.default_rng(0)
    wide = random.dirichlet(np.full(16, 0.3), size=4000).astype(np.float32)
    texts = np.repeat(np.arange(100), 40)
    chosen = wide.argmax(axis=1)[:, None].astype(np.int16)
    both = [
        PointChoices(texts, np.tile(np.arange(40), 100), chosen[:, 0], {}, wide.astype(precision), chosen)  # type: ignore[arg-type]
        for precision in (np.float16, np.float32)
    ]
    narrow, exact = (
        [*general_series(one, FEW).values(), *text_label_series(one, np.arange(100) % 4, FEW).values()] for one in both
    )
    for one, other in zip(narrow, exact, strict=True):
        assert one[0] == pytest.approx(other[0], abs=2e-4)
