"""The table shows what measures.json says, and nothing of another record."""

from __future__ import annotations

from pathlib import Path

from unmask.moe.atlas.page import grouped, read_measures
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
