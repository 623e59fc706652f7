"""The table shows what measures.json says, and nothing of another record."""

from __future__ import annotations

from pathlib import Path

from unmask.moe.atlas.page import HOW, MeasureCell, MeasureRow, grouped, read_measures
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
