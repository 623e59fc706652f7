"""Tables for a terminal: what has no room is summed up, not broken into letters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.reporting.synthetic import Folder
from unmask.evaluation.results import ResultStore
from unmask.evaluation.verdict import comparisons
from unmask.io.terminal import console
from unmask.reporting.tables import differences, ranking

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


STARTER = {"starter-clustering": "clustering", "starter-retrieval": "retrieval", "starter-sts": "sts", "starter-topics": "sts"}
EIGHT = {
    name: (f"causal/plain/mean@{place}", 0.1 * place) for place, name in enumerate(["mean", "bidirectional-mean", *"abcdef"])
}


@pytest.mark.parametrize(("width", "shown"), [(60, False), (90, True)])
def test_intervals_are_shown_where_they_have_room(width: int, shown: bool, tmp_path: Path) -> None:
    lines = printed(tmp_path, Folder(EIGHT, dict(list(STARTER.items())[: 3 if width == 60 else 4])), width).splitlines()
    assert ("±" in "\n".join(lines[1:])) == shown
    assert max(map(len, lines)) <= width


def test_no_star_is_cut_off_where_there_are_many_designs(tmp_path: Path) -> None:
    store, of = ResultStore(tmp_path), Folder({}, {}, n=200)
    for index in range(14):
        value = np.clip(np.random.default_rng(index).normal(0.07 * index, 0.02, 200), -1, 1)
        label = f"bidirectional/plain/mean@{index}/zscore"
        store.add(*of.result(label, f"causal/plain/mean@{index + 1}", "task", "sts", value))
    screen = console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    screen.print(differences(store.results, comparisons(store.results, store), 80))
    lines = [line for line in screen.export_text().partition("* p <")[0].splitlines() if "bidirectional" in line]
    cells = [cell for line in lines for cell in line.split()[2:]]
    assert len(lines) >= 2 and len(cells) == len(lines) * (len(lines) + 1) // 2
    assert all(cell.endswith("*") for cell in cells)


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_of_a_demo_breaks_no_word(width: int, tmp_path: Path) -> None:
    words = printed(tmp_path, Folder(EIGHT, STARTER), width).split()
    names = ["clustering", "retrieval", "sts", "topics", "V-measure", "nDCG@10", "Spearman", "tokens", *EIGHT]
    assert [name for name in names if name not in words] == []
    assert "my täsk [v2]" in printed(tmp_path / "b", Folder(EIGHT, {"my täsk [v2]": "sts"}), width)
