"""Tables for a terminal: what has no room is summed up, not broken into letters."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.reporting.synthetic import Folder
from unmask.evaluation.results import ResultStore
from unmask.reporting.tables import ranking

DESIGNS = {"echo": ("causal/echo/mean", 0.9), "causal/plain/mean/zscore": ("causal/plain/mean/zscore", 0.4)}
KINDS = {"sts": 4, "classification": 3, "clustering": 2}
MANY = {f"{kind}-{number}": kind for kind, count in KINDS.items() for number in range(count)}


def printed(folder: Path, of: Folder, width: int) -> str:
    of.write(folder)
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(ranking(ResultStore(folder).results, width))
    return console.export_text()


def test_tasks_that_have_room_have_a_column_each(tmp_path: Path) -> None:
    text = printed(tmp_path, Folder(DESIGNS, MANY), 180)
    assert "±" in text and "means over" not in text
    for name in ("sts-0", "clustering-1"):
        assert name in text


@pytest.mark.parametrize("width", [72, 80, 100])
def test_many_tasks_on_a_narrow_terminal_are_summed_up_by_kind(width: int, tmp_path: Path) -> None:
    of = Folder(DESIGNS, MANY)
    text = " ".join(printed(tmp_path, of, width).split())
    results = {(one.label, one.task): one.main_score for one in ResultStore(tmp_path).results}
    assert "means over the tasks of a kind" in text
    for kind, count in KINDS.items():
        mean = sum(results["echo", f"{kind}-{number}"] for number in range(count)) / count
        assert f"{100 * mean:.1f}" in text
    overall = sum(results["echo", task] for task in MANY) / len(MANY)
    assert f"{100 * overall:.1f}" in text, "the mean is over tasks, not over kinds"


def test_few_tasks_stay_as_they_are_on_a_narrow_terminal(tmp_path: Path) -> None:
    text = printed(tmp_path, Folder(DESIGNS, {"one": "sts", "two": "sts"}), 80)
    assert "one" in text and "two" in text and "±" not in text
