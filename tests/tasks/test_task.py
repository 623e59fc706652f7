"""A task folder is what its files say, is refused where they are wrong, and is named by its data."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import FILES, labelled, pairs, write_rows, write_task
from unmask.errors import UnmaskError
from unmask.starter import starter_folders
from unmask.tasks.find import find_task, item_file, recognised_kind, resolve_tasks, specs_below
from unmask.tasks.folder import open_folder
from unmask.tasks.kinds import KINDS, TEXT_KINDS
from unmask.tasks.task import LocalTask


def read(folder: Path, spec: str = "") -> LocalTask:
    task = find_task(f"{folder}{spec}")
    assert isinstance(task, LocalTask)
    return task


def refusal(folder: Path, spec: str = "") -> str:
    with pytest.raises(UnmaskError) as caught:
        find_task(f"{folder}{spec}")
    return str(caught.value)


# --- kinds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_follows_from_files_and_columns(kind: str, tmp_path: Path) -> None:
    task = read(write_task(tmp_path / "mine", kind))
    sizes = {"sts": 24, "pair-classification": 24, "classification": 12, "clustering": 24, "summarization": 4, "word-level": 10}
    assert (task.name, task.kind, task.size) == ("mine", kind, sizes.get(kind, 6))
    (tmp_path / "example").mkdir()
    for name, row in KINDS[kind].example.items():
        write_rows(tmp_path / "example" / name, [row])
        assert name in KINDS[kind].layout
    folder = open_folder(tmp_path / "example")
    assert recognised_kind(folder) is KINDS[kind]
    assert KINDS[kind].size(KINDS[kind].read(folder)) == 1


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("kind", ["sts", "retrieval"])
def test_tables_of_another_format_hold_the_same_task(kind: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name, rows in FILES[kind]().items():
        write_rows(tmp_path / "other" / f"{Path(name).stem}{ending}", rows)
    assert read(tmp_path / "other").data == read(write_task(tmp_path / "plain", kind)).data


def test_one_labelled_file_is_clustering_or_split_in_halves_of_every_class(tmp_path: Path) -> None:
    sizes = {"one": 1, "two": 2, "three": 3, "many": 20}
    rows = [{"text": f"{label} {number}", "label": label} for label, size in sizes.items() for number in range(size)]
    write_rows(tmp_path / "all.jsonl", rows)
    assert read(tmp_path).kind == "clustering"
    halves = []
    for seed in (0, 1, 0):
        (tmp_path / "task.toml").write_text(f"seed = {seed}")
        halves.append(read(tmp_path, ":classification").data)
        assert sorted(row["text"] for part in halves[-1].values() for row in part) == sorted(row["text"] for row in rows)
        for label, size in sizes.items():
            train, test = (sum(row["label"] == label for row in halves[-1][part]) for part in ("train", "test"))
            assert (train, test) == (size - size // 2, size // 2), "the odd text of a class is one to fit on"
    assert halves[0] == halves[2] != halves[1]


def test_a_test_file_without_its_train_file_is_clustering_only_if_stated(tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", labelled(0, 20))
    for spec in ("", "/test.jsonl"):
        assert f"'{tmp_path}:clustering' clusters these texts" in refusal(tmp_path, spec)
        assert read(tmp_path, f"{spec}:clustering").kind == "clustering"
    (tmp_path / "task.toml").write_text('kind = "clustering"')
    assert read(tmp_path).kind == "clustering"
    write_rows(tmp_path / "train.jsonl", labelled(0, 20))
    assert read(tmp_path, ":classification").kind == "classification", "the path wins over task.toml"


@pytest.mark.parametrize("kind", ["classification", "word-level"])
def test_a_task_is_not_tested_on_its_training_rows(kind: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path, kind)
    assert f"'{folder}/train.jsonl' holds the training rows of a task" in refusal(folder, f"/train.jsonl:{kind}")
    (folder / "test.jsonl").unlink()
    (folder / "test.jsonl").symlink_to("train.jsonl")
    assert "holds the training rows of a task" in refusal(folder)


@pytest.mark.parametrize(("kind", "text"), [("classification", "text"), ("word-level", "tokens")])
def test_scored_texts_that_are_training_texts_are_reported(
    kind: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "unmask")
    folder = write_task(tmp_path / "mine", kind)
    read(folder)
    assert not caplog.messages
    train, test = FILES[kind]().values()
    write_rows(folder / "test.jsonl", [*test, test[0] | {text: train[0][text]}])
    read(folder)
    assert caplog.messages[0].startswith(f"mine: 1 of its {len(test) + 1} test texts (")


@pytest.mark.parametrize("kind", ["reranking", "retrieval"])
def test_queries_that_no_model_could_answer_are_left_out_and_reported(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "unmask")
    files = FILES[kind]()
    if kind == "reranking":
        files["test.jsonl"][3]["positive"] = []
    else:
        files["qrels_test.tsv"] = [row | {"score": 0} if row["query-id"] == "q3" else row for row in files["qrels_test.tsv"]]
    folder = write_task(tmp_path, kind)
    for name, rows in files.items():
        write_rows(folder / name, rows)
    rows = read(folder).data[KINDS[kind].item_part]
    assert [row.get("_id", row.get("query")) for row in rows] == [
        row.get("_id", row.get("query")) for n, row in enumerate(files.get("queries.jsonl") or files["test.jsonl"]) if n != 3
    ]
    assert len(caplog.messages) == 1 and "left out" in caplog.messages[0]


def test_human_scores_of_a_summary_are_averaged_over_their_dimensions(tmp_path: Path) -> None:
    systems = [{"summary": "a", "scores": {"fluency": 2, "coverage": 5}}, {"summary": "b", "score": 1}]
    write_rows(tmp_path / "test.jsonl", [{"source": "s", "references": ["r"], "systems": systems}])
    assert read(tmp_path).data["test"] == [{"source": "s", "references": ["r"], "summaries": [("a", 3.5), ("b", 1.0)]}]


# --- task.toml and splits ----------------------------------------------------------------------------------------------


def test_task_toml_states_name_split_limit_seed_and_instruction(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "sts", 'name = "stated"\nsplit = "dev"\nlimit = 9\nseed = 1\ninstruction = "Find."')
    write_rows(folder / "dev.jsonl", pairs("score", lambda n: (n % 6, n), 20))
    task = read(folder)
    assert (task.name, task.size, task.seed, task.instruction) == ("stated#9", 9, 1, "Find.")
    assert read(folder, "#5").size == 5, "the path wins"
    (folder / "task.toml").write_text('split = "dev"\nlimit = 9\nseed = 2')
    assert read(folder).data != task.data


@pytest.mark.parametrize(
    ("kind", "names"),
    [("classification", {"text": "utterance", "label": "intent"}), ("pair-classification", {"label": "duplicate"})],
)
def test_task_toml_states_the_columns_of_text_and_label(kind: str, names: dict[str, str], tmp_path: Path) -> None:
    plain = read(write_task(tmp_path / "plain", kind))
    folder = write_task(tmp_path / "renamed", kind, "\n".join(f'{column} = "{name}"' for column, name in names.items()))
    for name, rows in FILES[kind]().items():
        write_rows(folder / name, [{names.get(column, column): value for column, value in row.items()} for row in rows])
    assert (read(folder).kind, read(folder).data, read(folder).revision) == (plain.kind, plain.data, plain.revision)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_for_a_column_that_the_kind_does_not_have_is_refused(kind: str, tmp_path: Path) -> None:
    for key in {"text", "label"} - KINDS[kind].named:
        folder = write_task(tmp_path, kind, f'{key} = "{key}"')
        assert f"task.toml: '{key}' would change nothing, because a {kind} task has no column" in refusal(folder)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('kind = "retreival"', "task.toml: Unknown kind of task 'retreival'. Did you mean 'retrieval'?"),
        ("limit = -3", "limit: Input should be greater than or equal to 2"),
        ("limits = 5", "limits: this name is unknown (keys: name, kind,"),
        ("limit = ", "this is not TOML"),
        ('split = "dev"', "none of dev.jsonl was found"),
        ('split = "../other/test"', "is not a plain file name"),
    ],
)
def test_a_wrong_value_in_task_toml_is_refused(toml: str, message: str, tmp_path: Path) -> None:
    assert message in refusal(write_task(tmp_path, "sts", toml))


def test_a_file_of_a_folder_is_that_split_under_a_name_of_its_own(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "sts")
    write_rows(folder / "dev.jsonl", pairs("score", lambda n: (n % 5, n % 7))[:10])
    dev = read(folder, "/dev.jsonl")
    assert (dev.name, dev.size) == ("mine-dev", 10) and dev.revision != read(folder).revision
    folder = write_task(tmp_path / "search", "retrieval")
    write_rows(folder / "qrels_dev.tsv", [{"query-id": "q1", "corpus-id": "d0", "score": 1}])
    task = read(folder, "/qrels_dev.tsv")
    assert (task.kind, task.name, [row["_id"] for row in task.data["queries"]]) == ("retrieval", "search-qrels_dev", ["q1"])
    (folder / "task.toml").write_text('split = "dev"')
    assert read(folder).data == task.data


def test_all_specs_of_one_set_of_items_have_one_file(tmp_path: Path) -> None:
    folder = str(write_task(tmp_path / "mine", "classification"))
    shutil.copyfile(tmp_path / "mine" / "test.jsonl", tmp_path / "mine" / "dev.jsonl")
    test, dev = str(tmp_path / "mine" / "test.jsonl"), str(tmp_path / "mine" / "dev.jsonl")
    for spec in (folder, f"{folder}#5", f"{folder}:clustering#5", f"{folder}/../mine", test, f"{test}#7"):
        assert item_file(spec) == test
    assert item_file(f"{dev}#9") == dev
    documents = str(write_task(tmp_path / "search", "retrieval"))
    assert item_file(f"{documents}#3") == documents
    assert item_file("STSBenchmark") == "STSBenchmark"


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_samples_the_same_items_each_time_and_names_the_task_after_it(kind: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", kind)
    whole, part = read(folder), read(folder, "#3")
    items = KINDS[kind].item_part
    assert (part.name, part.size) == ("mine#3", 3)
    assert all(row in whole.data[items] for row in part.data[items])
    assert part.data == read(folder, "#3").data and part.revision != whole.revision
    assert read(folder, f"#{whole.size}") == whole
    assert "A limit is at least 2 items, not 1" in refusal(folder, "#1")
    if "train" in part.data:  # word-level keeps five training sentences for each item, classification all texts
        assert len(part.data["train"]) == (15 if kind == "word-level" else len(whole.data["train"]))


def test_relevant_documents_stay_under_a_limit_and_ten_others_a_query(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "retrieval")
    more = [{"_id": f"more{number}", "text": f"more {number}"} for number in range(100)]
    write_rows(folder / "corpus.jsonl", FILES["retrieval"]()["corpus.jsonl"] + more)
    data = read(folder, "#2").data
    relevant = {row["corpus-id"] for row in data["qrels"]}
    assert {row["query-id"] for row in data["qrels"]} == {row["_id"] for row in data["queries"]}
    assert len(relevant) == 4 and relevant <= {row["_id"] for row in data["corpus"]} and len(data["corpus"]) == 4 + 20


# --- malformed rows --------------------------------------------------------------------------------------------------

GOOD: dict[str, dict[str, Any]] = {kind: next(iter(FILES[kind]().values()))[0] for kind in KINDS}
SUMMARY = {"summary": "a", "score": 1}


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("sts", {"sentence2": 5}, "column 'sentence2': expected str, found int '5'"),
        ("sts", {"score": "high"}, "column 'score': expected a number, found 'high'"),
        ("sts", {"score": float("nan")}, "column 'score': expected a number, found nan"),
        ("pair-classification", {"label": 2}, "column 'label': expected 0 or 1, found 2"),
        ("clustering", {"label": 1.5}, "column 'label': expected str or int, found float '1.5'"),
        ("retrieval", {"_id": "d1"}, "column '_id': 'd1' comes twice"),
        ("retrieval", {"title": 5}, "column 'title': expected str, found int '5'"),
        ("reranking", {"positive": "a"}, "column 'positive': expected list, found str"),
        ("reranking", {"negative": ["a", 3]}, "column 'negative': expected a list of str, found int in it"),
        ("summarization", {"references": []}, "column 'references': expected at least one"),
        ("summarization", {"systems": ["a"]}, "column 'systems': expected objects with 'summary' and 'scores'"),
        ("summarization", {"systems": [SUMMARY, {"summary": "a"}]}, "expected human scores as numbers, found None"),
        ("word-level", {"tags": ["X"]}, "words, but 1 tags"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_column(
    kind: str, change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    name, rows = next(iter(FILES[kind]().items()))
    fresh = {"_id": "new"} if kind == "retrieval" else {}
    rows.insert(2, {**GOOD[kind], **fresh, **change})
    write_task(tmp_path, kind)
    # an empty line before the bad row: lines are counted, not rows
    lines = [json.dumps(row) for row in rows]
    (tmp_path / name).write_text("\n".join([*lines[:1], "", *lines[1:]]))
    message = refusal(tmp_path, f":{kind}")
    assert re.match(rf"{re.escape(str(tmp_path / name))}, line 4\b", message), message
    assert expected in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_is_named_with_the_columns_that_there_are(kind: str, tmp_path: Path) -> None:
    name, rows = next(iter(FILES[kind]().items()))
    column = next(iter(rows[0]))
    del rows[1][column]
    write_task(tmp_path, kind)
    write_rows(tmp_path / name, rows)
    message = refusal(tmp_path, f":{kind}")
    assert re.search(rf"{re.escape(name)}, line 2: column '{column}' \(.*\) is missing; there is", message)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("q99\td0\t1", "column 'query-id': no query 'q99' in"),
        ("q0\td0\t0.5", "column 'score': expected a whole number, found 0.5"),
        ("q0\td0\t0", "query 'q0' and document 'd0' have 0 here and 2 above"),
    ],
)
def test_a_malformed_judgement_is_named_by_file_line_and_column(row: str, expected: str, tmp_path: Path) -> None:
    file = write_task(tmp_path, "retrieval") / "qrels_test.tsv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], "", row, *lines[3:]]))
    assert refusal(tmp_path).startswith(f"{file}, line 5") and expected in refusal(tmp_path)
    file.write_text("\n".join([*lines, lines[1]]))
    assert read(tmp_path).size == 6, "the same judgement twice says the same"


# --- what has no score -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rows", "spec", "message"),
    [
        ("sts", {"test.jsonl": [{"question": "a", "answer": "b"}]}, "", "test.jsonl has the columns answer, question"),
        ("sts", {"test.jsonl": []}, "", "has the columns (none)"),
        ("sts", {"test.jsonl": []}, ":reranking", "holds no item to score"),
        ("sts", {}, ":retreival", "Unknown kind of task 'retreival'. Did you mean 'retrieval'?"),
        ("sts", {"test.parquet": [{"text": "a"}]}, "", "are one table in two formats"),
        ("sts", {"test.jsonl": [GOOD["sts"]] * 3}, "", "all items have one score"),
        ("clustering", {"all.jsonl": [GOOD["clustering"]] * 3}, "", "all items have one label"),
        ("classification", {"train.jsonl": [GOOD["classification"]] * 3}, "", "no training text has the label 'sport'"),
        ("classification", {"train.jsonl": [{"text": "a", "label": "b"}], "test.jsonl": [{"text": "c", "label": "b"}]}, "", "one label"),
        ("summarization", {"test.jsonl": [{**GOOD["summarization"], "systems": [SUMMARY] * 2}]}, "", "of a text the same score"),
        ("retrieval", {"qrels_test.tsv": [{"query-id": "q0", "corpus-id": "d0", "score": 0}]}, "", "holds no item to score"),
        ("word-level", {"train.jsonl": [{"tokens": ["a", "b"], "tags": ["X", "X"]}]}, "", "have one tag"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_tell_models_apart_is_refused(
    kind: str, rows: dict[str, list[Any]], spec: str, message: str, tmp_path: Path
) -> None:
    folder = write_task(tmp_path, kind)
    for name, table in rows.items():
        write_rows(folder / name, table)
    assert message in refusal(folder, spec)


# --- revision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_revision_is_a_hash_of_the_data_whatever_else_changes(kind: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path, kind)
    task = read(folder)
    assert task.revision == hash_of_data(task)
    for name, rows in FILES[kind]().items():
        random.Random(0).shuffle(rows)
        write_rows(folder / name, rows)
        assert read(folder).revision != task.revision, name
        write_rows(folder / name, [{"note": "x", **dict(reversed(row.items()))} for row in FILES[kind]()[name]])
    (folder / "task.toml").write_text(f'name = "renamed"\nkind = "{kind}"\nseed = 5')
    assert read(folder).revision == task.revision
    (folder / "task.toml").write_text('instruction = "Find paraphrases."')
    assert read(folder).revision != task.revision


def hash_of_data(task: LocalTask) -> str:
    """The revision of a task without marks, as it was in every version."""
    return hashlib.sha256(repr((task.instruction, sorted(task.data.items()))).encode()).hexdigest()[:16]


@pytest.mark.parametrize(("text", "judged", "ignored"), [("{} ", False, True), ("{} other", False, False), ("{}", True, False)])
def test_queries_that_are_documents_too_do_not_find_themselves(text: str, judged: bool, ignored: bool, tmp_path: Path) -> None:
    folder, files = write_task(tmp_path, "retrieval"), FILES["retrieval"]()
    query = files["queries.jsonl"][0]
    copied = {"_id": query["_id"], "title": "", "text": text.format(query["text"])}
    write_rows(folder / "corpus.jsonl", [*files["corpus.jsonl"], copied])
    judgement = {"query-id": query["_id"], "corpus-id": query["_id"], "score": int(judged)}
    write_rows(folder / "qrels_test.tsv", [*files["qrels_test.tsv"], judgement])
    task = read(folder)
    assert TEXT_KINDS["retrieval"].mteb_settings(task.data) == ({"ignore_identical_ids": True} if ignored else {})
    assert (task.revision != hash_of_data(task)) is ignored


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("./nowhere", "There is no task folder './nowhere'"),
        ("nowhere:sts", "There is no task folder 'nowhere'"),
        ("STSBenchmrk", "Unknown task 'STSBenchmrk'. Did you mean 'STSBenchmark'"),
        ("STSBenchmark#5", "A limit works on local folders only, and 'STSBenchmark'"),
        ("CIFAR10", "kinds that can be compared are sts, pair-classification"),
    ],
)
def test_a_name_of_no_task_is_refused(spec: str, message: str) -> None:
    with pytest.raises(UnmaskError, match=re.escape(message)):
        find_task(spec)


def test_starter_tasks_have_names_everywhere() -> None:
    assert [task.name for task in resolve_tasks(["starter"])] == [f"starter-{folder.name}" for folder in starter_folders()]
    (task,), (sample,) = resolve_tasks(["starter:sts"]), resolve_tasks(["starter:sts#9"])
    assert (task.name, sample.name) == ("starter-sts", "starter-sts#9")
    for find in (resolve_tasks, lambda specs: specs_below(Path(), specs)):
        with pytest.raises(UnmaskError, match=r"Unknown starter task 'stss'\. Did you mean 'sts'\?"):
            find(["starter:stss"])


def test_names_below_a_folder_are_paths_in_it_and_other_specs_stay(tmp_path: Path) -> None:
    write_task(tmp_path / "mine", "classification")
    starter = {folder.name: str(folder) for folder in starter_folders()}
    names = ["mine", "mine#10", "mine:classification#10", "nothing/here"]
    assert specs_below(tmp_path, names) == [f"{tmp_path}/{name}" for name in names]
    others = ["STSBenchmark", "starter:sts#9", str(tmp_path)]
    assert specs_below(tmp_path, others) == ["STSBenchmark", f"{starter['sts']}#9", str(tmp_path)]
    with pytest.raises(UnmaskError, match=r"There is no folder '.*sickr', and mteb has no task or task set 'sickr'\."):
        specs_below(tmp_path, ["sickr#200"])


def test_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    specs = [str(write_task(tmp_path / folder / "mine", "sts")) for folder in ("a", "b")]
    with pytest.raises(UnmaskError, match="Two tasks are called 'mine'"):
        resolve_tasks(specs)
    write_task(tmp_path / "b" / "mine", "sts", 'name = "other"')
    assert [task.name for task in resolve_tasks(specs)] == ["mine", "other"]
    with pytest.raises(UnmaskError, match="No task was given"):
        resolve_tasks([])


def test_a_folder_may_be_named_like_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "sts", "sts")
    monkeypatch.chdir(tmp_path)
    for spec in ("sts", "sts:sts", "sts#10"):
        [task] = resolve_tasks([spec])
        assert task.kind == "sts"


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("stsb", "sts", 1379),
        ("trec", "classification", 500),
        ("cranfield", "retrieval", 225),
        ("summeval", "summarization", 100),
    ],
)
def test_real_sets_are_read_as_what_they_are(name: str, kind: str, size: int, data: Path) -> None:
    task = read(data / name)
    assert (task.kind, task.size) == (kind, size)
