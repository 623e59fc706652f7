"""Tables for a terminal: what has no room is summed up, not broken into letters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.reporting.synthetic import Folder
from unmask.designs.design import parse_designs
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


@pytest.mark.parametrize(("width", "decimals"), [(60, None), (80, 0), (90, 1)])
def test_intervals_are_shown_where_they_have_room(width: int, decimals: int | None, tmp_path: Path) -> None:
    lines = printed(tmp_path, Folder(EIGHT, dict(list(STARTER.items())[: 3 if width == 60 else 4])), width).splitlines()
    halves = re.findall(r"±(\d+(?:\.\d+)?)\b", "\n".join(lines[1:]))
    assert {len(half.partition(".")[2]) for half in halves} == (set() if decimals is None else {decimals})
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_of_a_demo_breaks_no_word(width: int, tmp_path: Path) -> None:
    words = printed(tmp_path, Folder(EIGHT, STARTER), width).split()
    names = ["clustering", "retrieval", "sts", "topics", "V-measure", "nDCG@10", "Spearman", "tokens", *EIGHT]
    assert [name for name in names if name not in words] == []
    assert "my täsk [v2]" in printed(tmp_path / "b", Folder(EIGHT, {"my täsk [v2]": "sts"}), width)


def test_the_task_heads_of_a_demo_stay_whole_beside_a_long_design(tmp_path: Path) -> None:
    demo = {"starter-classification": "classification", **STARTER}
    designs = {**dict(list(EIGHT.items())[:3]), "bidirectional-mean": ("bidirectional/plain/mean", 0.3)}
    tasks = {name: kind for name, kind in demo.items() if name.removeprefix("starter-") != "topics"}
    lines = printed(tmp_path, Folder(designs, tasks), 80).splitlines()
    assert {"classification", "clustering", "retrieval", "sts"} <= {word for line in lines for word in line.split()}
    assert max(map(len, lines)) <= 80


def differing(folder: Path, width: int) -> list[str]:
    """The numbers of a table of differences."""
    Folder(EIGHT, {"one": "sts"}).write(folder)
    store = ResultStore(folder)
    screen = console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    screen.print(differences(store.results, comparisons(store.results, store), width))
    return re.findall(r"[+-][\d.]+", screen.export_text().partition("* p <")[0].partition("──")[2])


def test_differences_have_a_decimal_where_all_designs_have_room(tmp_path: Path) -> None:
    assert all("." in number for number in differing(tmp_path / "a", 80))
    assert not any("." in number for number in differing(tmp_path / "b", 70))


def test_a_design_with_a_name_is_shown_by_it(tmp_path: Path) -> None:
    [(label, design)] = parse_designs('topic=causal/"The topic of {text} is"/last').items()
    text = printed(tmp_path, Folder({label: (design.name, 0.5), "mean": ("causal/plain/mean", 0.2)}, STARTER), 80)
    assert "topic" in text.split() and "{text}" not in text


def test_few_tasks_stay_as_they_are_on_a_narrow_terminal(tmp_path: Path) -> None:
    text = printed(tmp_path, Folder(DESIGNS, {"one": "sts", "two": "sts"}), 80)
    assert "one" in text and "two" in text and "±" in text
