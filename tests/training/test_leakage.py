"""Leaks: what counts as the same text, against every pair compared by hand, and what a data set is without them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.training.data import DataSet, DataSource, Example
from unmask.training.leakage import SHINGLE, THRESHOLD, TaskLeaks, find_leaks, remove_leaks
from unmask.training.text_keys import fold

LONG = "the committee decided on tuesday that the old bridge will be closed until spring"


def data_set(*rows: tuple[str, ...]) -> DataSet:
    examples = [Example(10 + number, row) for number, row in enumerate(rows)]
    columns = ("anchor", "positive", "negative")[: len(rows[0])] if len(rows[0]) > 1 else ("text",)
    return DataSet("set", columns, examples, DataSource(path="x"), {"empty": 1})


def only(dataset: DataSet, texts: list[str], pairs: Sequence[tuple[int, int]] = ()) -> TaskLeaks:
    return find_leaks([dataset], {"task": (texts, pairs)})[0].tasks[0]


def test_equal_texts_are_exact_leaks_and_a_changed_letter_a_near_one() -> None:
    found = only(data_set((LONG,), (LONG.upper() + "!",), (LONG.replace("old", "odd"),), ("something else",)), ["other", LONG])
    assert (found.exact, found.near, found.texts, found.seen) == (1, 1, 2, 1)
    exact, near = found.leaks
    assert (exact.row, exact.column, exact.position, exact.task_text, exact.similarity) == (10, "text", 1, LONG, 1.0)
    assert near.row == 12 and 0.8 <= near.similarity < 1
    assert (found.one, found.both) == ((0, 1, 2), ())


def shingles(text: str) -> set[str]:
    folded = fold(text)
    return {folded[start : start + SHINGLE] for start in range(max(1, len(folded) - SHINGLE + 1))}


def test_near_leaks_are_those_of_comparing_every_pair() -> None:
    draw = random.Random(1)
    words = ["red", "blue", "green", "house", "horse", "river", "stone", "cloud", "apple", "night"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(300)]
    spoilt = [text[:place] + "x" + text[place:] for text in texts[150:200] for place in (draw.randrange(len(text)),)]
    trained, scored = list(dict.fromkeys(texts[:150] + spoilt)), list(dict.fromkeys(texts[150:]))
    expected = {}
    for text in trained:
        likes = {other: len(shingles(text) & shingles(other)) / len(shingles(text) | shingles(other)) for other in scored}
        if (best := max(likes.values())) >= THRESHOLD:
            expected[text] = 1.0 if fold(text) in map(fold, scored) else pytest.approx(best)
    found = only(data_set(*((text,) for text in trained)), scored)
    assert len(expected) >= 14
    assert {leak.text: leak.similarity for leak in found.leaks} == expected
    assert all(leak.task_text == scored[leak.position] for leak in found.leaks)


def test_a_pair_that_the_task_compares_is_worse_than_one_text_of_it() -> None:
    rows = [("a one", "b two", "x"), ("a one", "y", "z"), ("b two", "y", "a one"), ("a one", "c three", "w"), ("p", "q", "r")]
    found = only(data_set(*rows), ["A one", "B two", "C three", "D four"], pairs=[(0, 1), (2, 3)])
    assert (found.both, found.one) == ((0, 2), (1, 3)), "in whatever order and columns; two texts of two pairs are no pair"
    assert only(data_set(*rows), ["A one", "B two", "C three"]).both == ()


def test_leaks_of_several_sets_and_tasks_are_those_of_each() -> None:
    """Also where two sets share a text, or where one set leaks alone."""
    sets = [data_set(("a one", "b two"), ("p", "q")), data_set(("p", "b two", "x")), data_set(("none",))]
    tasks: Any = {"one": (["a one", "b two", "z"], [(0, 1)]), "two": (["p", "X"], [(0, 1)])}
    together = find_leaks(sets, tasks)
    assert together == [find_leaks([dataset], tasks)[0] for dataset in sets]
    assert [[(task.both, task.one) for task in report.tasks] for report in together] == [
        [((0,), ()), ((), (1,))],
        [((), (0,)), ((0,), ())],
        [((), ()), ((), ())],
    ]


def test_without_leaks_drops_the_examples_and_is_other_data() -> None:
    dataset = data_set(("a one", "b two"), ("a one", "y"), ("p", "q"))
    [report] = find_leaks([dataset], {"task": (["a one", "b two"], [(0, 1)])})
    clean = remove_leaks(dataset, report)
    assert [example.texts for example in clean.examples] == [("p", "q")]
    assert clean.skipped == {"empty": 1, "in a task": 2}
    assert clean.revision == data_set(("p", "q")).revision != dataset.revision
    assert remove_leaks(dataset, find_leaks([dataset], {"task": (["none"], [])})[0]) == dataset
    with pytest.raises(UnmaskError, match="all 3 examples leak"):
        remove_leaks(dataset, find_leaks([dataset], {"task": (["a one", "p"], [])})[0])


def write(file: Path, *rows: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A task of each kind that has more than one column of texts, and training files."""
    write(tmp_path / "sts/test.jsonl", *({"sentence1": f"s{i}", "sentence2": f"t{i}", "score": i} for i in range(3)))
    write(tmp_path / "ranked/test.jsonl", {"query": "s0", "positive": ["p"], "negative": ["n"]})
    write(tmp_path / "beir/corpus.jsonl", {"_id": "d", "title": "s0", "text": "t0"}, {"_id": "e", "title": "", "text": "s1"})
    write(tmp_path / "beir/queries.jsonl", {"_id": "q", "text": "p"})
    (tmp_path / "beir/qrels_test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\nq\te\t0\n")
    labelled = [{"text": "s0", "label": "a"}, {"text": "u", "label": "b"}]
    write(tmp_path / "labels/train.jsonl", *labelled)
    write(tmp_path / "labels/test.jsonl", {"text": "s1", "label": "a"}, {"text": "v", "label": "b"})
    systems = [{"summary": "s0", "score": 1}, {"summary": "good", "score": 2}]
    write(tmp_path / "sum/test.jsonl", {"source": "t0", "references": ["r"], "systems": systems})
    write(tmp_path / "pairs.jsonl", {"anchor": "s0", "positive": "T0"}, {"anchor": "P", "positive": "s0 t0"})
    (tmp_path / "lines.txt").write_text("s1\nsomething else\n")
    return tmp_path


def test_the_command_reads_every_kind_of_task(folders: Path) -> None:
    tasks = ["sts", "ranked", "beir", "labels", "sum"]
    arguments = [word for task in tasks for word in ("--task", str(folders / task))]
    trained = ["--train", str(folders / "pairs.jsonl"), "--train", str(folders / "lines.txt")]
    run = CliRunner().invoke(app, ["leaks", *trained, *arguments, "--json"], catch_exceptions=False)
    pairs, lines = json.loads(run.stdout)
    counted = {task["task"]: (task["exact"], task["both"], task["one"]) for task in pairs["tasks"]}
    assert counted == {
        "sts": (2, [0], []),
        "ranked": (2, [], [0, 1]),
        "beir": (3, [1], [0]),  # T0 is a document without its title
        "labels": (0, [], []),
        "sum": (2, [], [0]),
    }
    assert {task["task"]: task["exact"] for task in lines["tasks"]} == {
        "sts": 1,
        "ranked": 0,
        "beir": 1,
        "labels": 1,
        "sum": 0,
    }
    assert pairs["path"] == str(folders / "pairs.jsonl")
