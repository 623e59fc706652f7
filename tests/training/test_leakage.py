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
from unmask.tasks.find import find_task
from unmask.tasks.task import LocalTask
from unmask.training import leakage
from unmask.training.data import DataSet, DataSource, Example, content_hash, read_any, read_pairs, read_whole
from unmask.training.leakage import SHINGLE, TaskLeaks, find_all_leaks, find_leaks, without_leaks
from unmask.training.text_keys import fold

LONG = "the committee decided on tuesday that the old bridge will be closed until spring"


def data_set(*rows: tuple[str, ...]) -> DataSet:
    examples = [Example(10 + number, row) for number, row in enumerate(rows)]
    columns = ("anchor", "positive", "negative")[: len(rows[0])] if len(rows[0]) > 1 else ("text",)
    kind: Any = "pairs" if len(columns) > 1 else "sentences"
    return DataSet("set", kind, columns, examples, DataSource(path="x"), content_hash(columns, examples), {"empty": 1})


def only(dataset: DataSet, texts: list[str], **options: Any) -> TaskLeaks:
    return find_leaks(dataset, {"task": texts}, **options).tasks[0]


def test_equal_texts_are_exact_leaks_and_a_changed_letter_a_near_one() -> None:
    found = only(data_set((LONG,), (LONG.upper() + "!",), (LONG.replace("old", "odd"),), ("something else",)), ["other", LONG])
    assert (found.exact, found.near, found.texts, found.seen) == (1, 1, 2, 1)
    exact, near = found.leaks
    assert (exact.row, exact.column, exact.place, exact.found, exact.similarity) == (10, "text", 1, LONG, 1.0)
    assert near.row == 12 and 0.8 <= near.similarity < 1
    assert (found.one, found.both) == ((0, 1, 2), ())


def shingles(text: str) -> set[str]:
    folded = fold(text)
    return {folded[start : start + SHINGLE] for start in range(max(1, len(folded) - SHINGLE + 1))}


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 1.0])
def test_near_leaks_are_those_of_comparing_every_pair(threshold: float) -> None:
    draw = random.Random(1)
    words = ["red", "blue", "green", "house", "horse", "river", "stone", "cloud", "apple", "night"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(300)]
    spoilt = [text[:place] + "x" + text[place:] for text in texts[150:200] for place in (draw.randrange(len(text)),)]
    trained, scored = list(dict.fromkeys(texts[:150] + spoilt)), list(dict.fromkeys(texts[150:]))
    expected = {}
    for text in trained:
        likes = {other: len(shingles(text) & shingles(other)) / len(shingles(text) | shingles(other)) for other in scored}
        if (best := max(likes.values())) >= threshold:
            expected[text] = 1.0 if fold(text) in map(fold, scored) else pytest.approx(best)
    found = only(data_set(*((text,) for text in trained)), scored, threshold=threshold)
    assert len(expected) >= 9 + 5 * (threshold < 1)
    assert {leak.text: leak.similarity for leak in found.leaks} == expected
    assert all(leak.found == scored[leak.place] for leak in found.leaks)


def test_texts_with_the_same_shingles_but_other_letters_are_near_not_exact() -> None:
    found = only(data_set(("ab" * 8,)), ["ab" * 9])
    assert (found.exact, found.near) == (0, 1) and found.leaks[0].similarity < 1


def test_short_texts_and_texts_of_no_letter() -> None:
    assert only(data_set(("hi",), ("ho",)), ["Hi!", "..."]).exact == 1
    empty = only(data_set(("?!",)), ["...", "", "?!"])
    assert (empty.texts, empty.leaks) == (0, ())


def test_a_pair_that_the_task_compares_is_worse_than_one_text_of_it() -> None:
    rows = [("a one", "b two", "x"), ("a one", "y", "z"), ("b two", "y", "a one"), ("a one", "c three", "w"), ("p", "q", "r")]
    found = only(data_set(*rows), ["A one", "B two", "C three", "D four"], pairs={"task": [(0, 1), (2, 3)]})
    assert (found.both, found.one) == ((0, 2), (1, 3)), "in whatever order and columns; two texts of two pairs are no pair"
    assert only(data_set(*rows), ["A one", "B two", "C three"]).both == ()


def test_every_task_is_told_apart() -> None:
    report = find_leaks(data_set(("a",), ("b",), ("c",)), {"one": ["a"], "two": ["b", "a", "x"], "three": ["y"]})
    assert [(task.task, task.exact, task.one) for task in report.tasks] == [
        ("one", 1, (0,)),
        ("two", 2, (0, 1)),
        ("three", 0, ()),
    ]
    assert (report.texts, report.examples, report.data) == (3, 3, "set")


def test_leaks_of_several_sets_are_those_of_each() -> None:
    """Also where two sets share a text, or where one set leaks alone."""
    sets = [data_set(("a one", "b two"), ("p", "q")), data_set(("p", "b two", "x")), data_set(("none",))]
    evaluation, pairs = {"one": ["a one", "b two", "z"], "two": ["p", "X"]}, {"one": [(0, 1)], "two": [(0, 1)]}
    together = find_all_leaks(sets, evaluation, pairs=pairs)
    assert together == [find_leaks(dataset, evaluation, pairs=pairs) for dataset in sets]
    assert [[(task.both, task.one) for task in report.tasks] for report in together] == [
        [((0,), ()), ((), (1,))],
        [((), (0,)), ((0,), ())],
        [((), ()), ((), ())],
    ]


def test_without_leaks_drops_the_examples_and_is_other_data() -> None:
    dataset = data_set(("a one", "b two"), ("a one", "y"), ("p", "q"))
    report = find_leaks(dataset, {"task": ["a one", "b two"]}, pairs={"task": [(0, 1)]})
    clean = without_leaks(dataset, report)
    assert [example.texts for example in clean.examples] == [("p", "q")]
    assert clean.skipped == {"empty": 1, "in a task": 2}
    assert clean.revision == data_set(("p", "q")).revision != dataset.revision
    assert [example.row for example in without_leaks(dataset, report, pairs_only=True).examples] == [11, 12]
    assert without_leaks(dataset, find_leaks(dataset, {"task": ["none"]})) == dataset
    with pytest.raises(UnmaskError, match="about other data"):
        without_leaks(clean, report)
    with pytest.raises(UnmaskError, match="all 3 examples leak"):
        without_leaks(dataset, find_leaks(dataset, {"task": ["a one", "p"]}))


@pytest.mark.parametrize("threshold", [0, -0.1, 1.1])
def test_a_threshold_that_means_nothing_is_refused(threshold: float) -> None:
    with pytest.raises(UnmaskError, match="above 0 and at most 1"):
        find_leaks(data_set(("a",)), {}, threshold)


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


def test_the_command_prints_a_table_and_leaks_to_look_at(folders: Path) -> None:
    run = CliRunner().invoke(
        app, ["leaks", "--train", str(folders / "lines.txt"), "-t", str(folders / "labels")], catch_exceptions=False
    )
    assert "Training texts that are texts of a task" in run.stdout and "1 (50.0 %)" in run.stdout
    assert "line 1 (text) and labels: 1.00" in run.stdout


def test_the_command_searches_every_negative_of_a_list(folders: Path) -> None:
    write(
        folders / "listed.jsonl",
        {"anchor": "a", "positive": "b", "negatives": ["s0", "s1", "s2", "t0"]},
        {"anchor": "t1", "positive": "t2", "negatives": []},
    )
    run = CliRunner().invoke(app, ["leaks", "--train", str(folders / "listed.jsonl"), "-t", str(folders / "sts"), "--json"])
    assert json.loads(run.stdout)[0]["tasks"][0]["exact"] == 6


@pytest.mark.sample(0)
@pytest.mark.parametrize(
    ("path", "both"), [("mrpc/train.jsonl", 675), ("snli/triples_dev.jsonl", 0), ("wiki_sentences/sentences.txt", 0)]
)
def test_real_leaks_into_sts12(data: Path, path: str, both: int) -> None:
    rows = [json.loads(line) for line in (data / "sts12/test.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = [row[column] for row in rows for column in ("sentence1", "sentence2")]
    compared = [(2 * place, 2 * place + 1) for place in range(len(rows))]
    dataset = read_any("real", DataSource(path=path), data, 0)
    found = find_leaks(dataset, {"sts12": texts}, pairs={"sts12": compared}).tasks[0]
    assert len(found.both) == both


def test_the_same_rows_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many models of a study are trained on the same rows. Other rows, other tasks and another threshold are compared anew."""
    calls: list[int] = []
    ranked = leakage._ranked

    def counted(sides: Sequence[Sequence[str]]) -> Any:
        calls.append(1)
        return ranked(sides)

    monkeypatch.setattr(leakage, "_ranked", counted)
    leakage._matches.cache_clear()
    rows, tasks = (
        data_set((LONG, "a dog runs"), ("x y z", "a b c")),
        {"one": [LONG.replace("old", "odd")], "two": ["a dog runs"]},
    )
    first = find_leaks(rows, tasks)
    assert first.tasks[0].near == first.tasks[1].exact == 1
    assert find_leaks(rows, tasks) == first and len(calls) == 1
    assert find_leaks(rows, tasks, 0.99).tasks[0].near == 0 and len(calls) == 2
    assert find_leaks(data_set(("x y z", "a b c")), tasks).tasks[1].exact == 0 and len(calls) == 3
    assert find_leaks(rows, {"two": ["a b c"]}).tasks[0].exact == 1 and len(calls) == 4


def test_a_document_is_a_leak_with_its_title_and_without(tmp_path: Path) -> None:
    """Their letters differ too much for a near leak, because the title is as long as the text."""
    title, text = "a long title of this report", "the bridge is old and closed"
    documents = [{"_id": "d", "title": title, "text": text}, {"_id": "e", "title": "", "text": f"{title} too"}]
    for folder, rows in (("titled", documents), ("plain", [{**row, "title": ""} for row in documents])):
        write(tmp_path / folder / "corpus.jsonl", *rows)
        write(tmp_path / folder / "queries.jsonl", {"_id": "q", "text": "which bridge"})
        for split in ("train", "test"):
            file = tmp_path / folder / f"qrels_{split}.tsv"
            file.write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")

    def found(trained: str, task: str) -> TaskLeaks:
        resolved = find_task(str(tmp_path / task))
        assert isinstance(resolved, LocalTask)
        texts, pairs = resolved.texts_and_pairs
        data = read_whole("set", DataSource(path=trained), tmp_path)
        (of_set,) = find_all_leaks([data], {"task": texts}, pairs={"task": pairs})
        assert of_set.texts == 2
        (limited,) = find_all_leaks([read_pairs("set", data.source, tmp_path, 0)], {"task": texts}, pairs={"task": pairs})
        assert limited.tasks == of_set.tasks
        return of_set.tasks[0]

    for trained in ("titled", "plain"):
        for task in ("titled", "plain"):
            leaks = found(trained, task)
            assert (leaks.texts, leaks.seen, leaks.exact, leaks.both) == (3, 2, 2, (0,)), (trained, task)
