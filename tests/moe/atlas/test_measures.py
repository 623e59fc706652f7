"""The table shows what measures.json says, and nothing of another record."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.moe.atlas.conftest import recorded
from tests.moe.atlas.made_record import Made
from unmask.moe.atlas.page import HOW, MeasureCell, MeasureRow, grouped, read_measures, strongest
from unmask.moe.routing.record import read_record


def test_every_measure_stands_in_the_table_with_its_interval(small_record: Path) -> None:
    known = read_measures(read_record(small_record))
    assert known is not None
    groups = grouped([known])
    assert [group.title for group in groups] == ["Label: domain", "Label: word", "Routers as such"]
    shown = {row.name: row.cells[0] for row in groups[2].rows}
    assert set(shown) == set(known["general"])
    for name, cell in shown.items():
        measure = known["general"][name]
        assert cell and (cell.value, cell.low, cell.high) == (measure["corrected"], *measure["interval"])
        assert cell.steps == tuple(measure["by_point"])
    names = [row.name for row in groups[0].rows]
    assert names[0] == "information" and {"probe, routing weights", "clusters, hidden states"} <= set(names)
    assert "25 %" in groups[0].note


def test_every_measure_is_explained(small_record: Path) -> None:
    known = read_measures(read_record(small_record))
    assert {row.name for group in grouped([known]) for row in group.rows} <= set(HOW)


def test_measures_of_another_record_are_not_shown(small_record: Path, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "record", Made(texts=12))
    assert read_measures(read_record(folder)) is None
    shutil.copy(small_record / "measures.json", folder / "measures.json")
    assert read_measures(read_record(folder)) is None


def test_two_records_share_a_scale_and_a_row(small_record: Path) -> None:
    known = read_measures(read_record(small_record))
    groups = grouped([known, None])
    assert all(len(row.cells) == 2 and row.cells[1] is None for group in groups for row in group.rows)
    assert grouped([None, None]) == []
    row = MeasureRow(
        "information", "", (MeasureCell(0.2, 0.1, 0.3, 0, (0.0, 0.4)), MeasureCell(0.8, None, None, 0, (0.8, 0.8)))
    )
    assert row.paths == ["M0.0 22.0L100.0 12.0", "M0.0 2.0L100.0 2.0"]
    assert [(bar.y, bar.height, bar.second, bar.at) for bar in row.bars] == [(0, 6, False, 20.0), (6, 6, True, 80.0)]
    assert (row.bars[0].low, row.bars[0].width) == (10.0, 20.0)


@pytest.mark.parametrize("value", [-0.2, 1.3])
def test_a_bar_stays_on_its_scale(value: float) -> None:
    (bar,) = MeasureRow("information", "", (MeasureCell(value, value - 0.5, value + 0.5, 0),)).bars
    assert 0 <= bar.low <= bar.low + bar.width <= 100.8 and 0 <= bar.at <= 98.4


def test_a_measure_without_a_bound_has_no_bar() -> None:
    assert MeasureRow("max violation", "", (MeasureCell(3.0, 2.0, 4.0, 0),)).bars == []


def test_the_label_that_routing_knows_most_of(small_record: Path) -> None:
    known = read_measures(read_record(small_record))
    best = strongest(known)
    assert best is not None and known is not None
    assert best[1].value == max(label["measures"]["information"]["corrected"] for label in known["labels"].values())
    assert strongest(None) is None
