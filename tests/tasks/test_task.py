"""A task folder is what its files say, is refused where they are wrong, and is named by its data."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import FILES, labelled, pairs, write_rows, write_task
from unmask.errors import UnmaskError
from unmask.starter import starter_folders
from unmask.tasks.find import find_task, item_file, recognised_kind, resolve_tasks, specs_below
from unmask.tasks.folder import TaskFile, open_folder
from unmask.tasks.kinds import KINDS, TEXT_KINDS
from unmask.tasks.task import LocalTask


def read(folder: Path, spec: str = "", limit: int | None = None) -> LocalTask:
    task = find_task(f"{folder}{spec}" + (f"#{limit}" if limit is not None else ""))
    assert isinstance(task, LocalTask)
    return task


def sts(folder: Path, toml: str = "") -> LocalTask:
    return read(write_task(folder, "sts", toml))


def refusal(folder: Path, spec: str = "", limit: int | None = None) -> str:
    with pytest.raises(UnmaskError) as caught:
        find_task(f"{folder}{spec}" + (f"#{limit}" if limit is not None else ""))
    return str(caught.value)


# --- kinds -----------------------------------------------------------------------------------------------------------


def test_every_kind_has_a_tiny_set() -> None:
    assert set(FILES) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_is_a_task_of_that_kind(kind: str, tmp_path: Path) -> None:
    for name, row in KINDS[kind].example.items():
        write_rows(tmp_path / name, [row])
    folder = open_folder(tmp_path)
    assert recognised_kind(folder) is KINDS[kind]
    assert KINDS[kind].size(KINDS[kind].read(folder)) == 1
    assert all(name in KINDS[kind].layout for name in KINDS[kind].example)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_follows_from_files_and_columns(kind: str, tmp_path: Path) -> None:
    task = read(write_task(tmp_path / "mine", kind))
    sizes = {"sts": 24, "pair-classification": 24, "classification": 12, "clustering": 24, "summarization": 4, "word-level": 10}
    assert (task.name, task.kind, task.size) == ("mine", kind, sizes.get(kind, 6))


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_a_table_of_another_format_holds_the_same_task(ending: str, tmp_path: Path) -> None:
    rows = pairs("score", lambda n: (n % 6, n % 6))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    write_rows(tmp_path / "a" / "test.jsonl", rows)
    write_rows(tmp_path / "b" / f"test{ending}", rows)
    assert read(tmp_path / "b").data == read(tmp_path / "a").data


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_the_tables_of_a_search_may_have_another_format(ending: str, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, rows in FILES["retrieval"]().items():
        write_rows(tmp_path / "b" / f"{Path(name).stem}{ending}", rows)
    expected, task = read(write_task(tmp_path / "a", "retrieval")), read(tmp_path / "b")
    assert (task.kind, task.data) == ("retrieval", expected.data)


def test_one_labelled_file_is_clustering_until_the_path_says_otherwise(tmp_path: Path) -> None:
    write_rows(tmp_path / "all.jsonl", labelled(0, 20))
    assert read(tmp_path).kind == "clustering"
    task = read(tmp_path, ":classification")
    assert (task.kind, len(task.data["train"]), len(task.data["test"])) == ("classification", 10, 10)


def test_a_test_file_without_its_train_file_is_no_clustering_unless_that_is_said(tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", labelled(0, 20))
    for spec in ("", "/test.jsonl"):
        message = refusal(tmp_path, spec)
        assert "there is no train.jsonl beside it" in message and f"'{tmp_path}:clustering' clusters these texts" in message
    assert read(tmp_path, ":clustering").kind == "clustering"
    assert read(tmp_path, "/test.jsonl:clustering").kind == "clustering"
    (tmp_path / "task.toml").write_text('kind = "clustering"')
    assert read(tmp_path).kind == "clustering"


@pytest.mark.parametrize("kind", ["classification", "word-level"])
def test_a_task_is_not_tested_on_its_training_rows(kind: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path, kind)
    for spec in ("/train.jsonl", f"/train.jsonl:{kind}", "/train.jsonl#3"):
        assert f"'{folder}/train.jsonl' holds the training rows of a task" in refusal(folder, spec)
    (folder / "task.toml").write_text('split = "train"')
    assert "holds the training rows of a task" in refusal(folder)
    (folder / "task.toml").unlink()
    (folder / "test.jsonl").unlink()
    (folder / "test.jsonl").symlink_to("train.jsonl")
    assert "holds the training rows of a task" in refusal(folder)
    if kind == "classification":
        assert read(folder, "/train.jsonl:clustering").kind == "clustering"


def test_a_task_is_tested_on_another_of_its_files(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "classification")
    write_rows(folder / "dev.jsonl", labelled(28, 8))
    task = read(folder, "/dev.jsonl")
    assert (task.kind, task.name, len(task.data["train"]), task.size) == ("classification", "mine-dev", 16, 8)


def test_the_file_that_is_given_is_the_one_that_is_read(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "sts")
    (folder / "test.conll").write_text("A DET\n")
    message = refusal(folder, "/test.conll")
    assert "test.conll' would not be read, because" in message and "test.jsonl' is read instead: keep one of the two" in message


@pytest.mark.parametrize("stem", ["train", "test"])
@pytest.mark.parametrize("spec", ["", "/test.jsonl"])
def test_a_table_in_two_formats_is_refused(stem: str, spec: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path, "classification")
    write_rows(folder / f"{stem}.csv", labelled(50, 8))
    assert f"'{folder}/{stem}.jsonl' and '{folder}/{stem}.csv' are one table in two formats" in refusal(folder, spec)


def test_judgements_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "retrieval")
    qrels = FILES["retrieval"]()["qrels_test.tsv"]
    write_rows(folder / "qrels_test.tsv", [*qrels, qrels[0]])
    assert read(folder).size == 6, "the same judgement twice says the same"
    write_rows(folder / "qrels_test.tsv", [*qrels, qrels[0] | {"score": 0}])
    assert "query 'q0' and document 'd0' have 0 here and 2 above" in refusal(folder)


@pytest.mark.parametrize(("kind", "text"), [("classification", "text"), ("word-level", "tokens")])
def test_scored_texts_that_are_training_texts_are_told_once(
    kind: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "unmask")
    folder = write_task(tmp_path / "mine", kind)
    read(folder)
    assert not caplog.messages
    train, test = FILES[kind]().values()
    write_rows(folder / "test.jsonl", [*test, test[0] | {text: train[0][text]}])
    read(folder)
    [message] = caplog.messages
    assert message.startswith(f"mine: 1 of its {len(test) + 1} test texts (") and "in its own train file" in message


def test_the_path_wins_over_task_toml(tmp_path: Path) -> None:
    write_task(tmp_path, "classification", 'kind = "classification"')
    assert read(tmp_path, ":clustering").kind == "clustering"


def test_a_reranking_query_without_positives_or_negatives_is_skipped(tmp_path: Path) -> None:
    rows = FILES["reranking"]()["test.jsonl"]
    rows[0]["positive"], rows[1]["negative"] = [], []
    write_rows(tmp_path / "test.jsonl", rows)
    assert [row["query"] for row in read(tmp_path).data["test"]] == [row["query"] for row in rows[2:]]


def test_queries_without_a_relevant_document_are_not_asked(tmp_path: Path) -> None:
    files = write_task(tmp_path, "retrieval") / "qrels_test.tsv"
    files.write_text(files.read_text().replace("q3\td3\t2", "q3\td3\t0").replace("q3\td9\t1", "q3\td9\t0"))
    assert [row["_id"] for row in read(tmp_path).data["queries"]] == ["q0", "q1", "q2", "q4", "q5"]


def test_human_scores_of_a_summary_are_averaged_over_their_dimensions(tmp_path: Path) -> None:
    systems = [{"summary": "a", "scores": {"fluency": 2, "coverage": 5}}, {"summary": "b", "score": 1}]
    write_rows(tmp_path / "test.jsonl", [{"source": "s", "references": ["r"], "systems": systems}])
    assert read(tmp_path).data["test"] == [{"source": "s", "references": ["r"], "summaries": [("a", 3.5), ("b", 1.0)]}]


def test_words_with_tags_need_sentences_to_fit_a_probe_on(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["X", "Y"]}]
    write_rows(tmp_path / "test.jsonl", rows)
    assert "has no train.jsonl, and a word-level probe has to be fitted on something" in refusal(tmp_path)
    write_rows(tmp_path / "train.jsonl", [{"tokens": ["a", "b"], "tags": ["X", "X"]}])
    assert "all words of the training sentences have one tag" in refusal(tmp_path)
    write_rows(tmp_path / "train.jsonl", rows)
    assert read(tmp_path).data == {"train": rows, "test": rows}


def test_a_word_without_a_tag_is_refused_with_its_place(tmp_path: Path) -> None:
    write_task(tmp_path, "word-level")
    write_rows(tmp_path / "test.jsonl", [{"tokens": ["a"], "tags": ["X"]}, {"tokens": ["a", "b"], "tags": ["X"]}])
    assert "test.jsonl, line 2: 2 words, but 1 tags." in refusal(tmp_path)


def test_a_limit_on_words_is_of_test_sentences_and_keeps_five_times_as_many_to_fit_on(tmp_path: Path) -> None:
    task = read(write_task(tmp_path, "word-level"), limit=3)
    assert (task.size, len(task.data["test"]), len(task.data["train"])) == (3, 3, 15)
    whole = read(tmp_path)
    assert (whole.size, len(whole.data["train"])) == (10, 24)
    assert all(row in whole.data["train"] for row in task.data["train"])
    assert len(read(tmp_path, limit=6).data["train"]) == 24


def test_columns_of_no_kind_are_refused_with_what_was_found_and_what_there_is(tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", [{"question": "a", "answer": "b"}])
    message = refusal(tmp_path)
    assert "test.jsonl has the columns answer, question" in message
    assert all(kind in message for kind in KINDS)


def test_a_folder_without_a_file_of_rows_is_refused(tmp_path: Path) -> None:
    assert "has none of test.jsonl, all.jsonl" in refusal(tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").touch()
    assert "has the columns (none)" in refusal(tmp_path)
    assert "holds no item to score" in refusal(tmp_path, ":reranking")


def test_a_kind_that_does_not_exist_gives_the_nearest_match(tmp_path: Path) -> None:
    message = refusal(write_task(tmp_path, "sts"), ":retreival")
    assert "Unknown kind of task 'retreival'. Did you mean 'retrieval'?" in message


# --- task.toml -------------------------------------------------------------------------------------------------------


def test_task_toml_states_the_name(tmp_path: Path) -> None:
    assert sts(tmp_path, 'name = "mine"').name == "mine"


def test_task_toml_states_the_kind(tmp_path: Path) -> None:
    assert read(write_task(tmp_path, "classification", 'kind = "clustering"')).kind == "clustering"


def test_task_toml_states_the_split(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "sts", 'split = "dev"')
    write_rows(folder / "dev.jsonl", pairs("score", lambda n: (n % 6, n), 7))
    assert read(folder).size == 7


def test_a_file_of_a_folder_is_that_split_under_a_name_of_its_own(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "sts")
    write_rows(folder / "dev.jsonl", pairs("score", lambda n: (n % 5, n % 7))[:10])
    dev, test = find_task(f"{folder}/dev.jsonl"), find_task(str(folder))
    assert isinstance(dev, LocalTask) and isinstance(test, LocalTask)
    assert (dev.name, dev.size, test.name, test.size) == ("mine-dev", 10, "mine", 24)
    assert read(folder, "/dev.jsonl", limit=4).size == 4
    assert dev.revision != test.revision


def test_task_toml_states_the_split_of_the_judgements(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "retrieval", 'split = "dev"')
    write_rows(folder / "qrels_dev.tsv", [{"query-id": "q1", "corpus-id": "d0", "score": 1}])
    assert [row["_id"] for row in read(folder).data["queries"]] == ["q1"]


def test_a_file_of_judgements_is_that_split(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "retrieval")
    write_rows(folder / "qrels_dev.tsv", [{"query-id": "q1", "corpus-id": "d0", "score": 1}])
    task = read(folder, "/qrels_dev.tsv")
    assert (task.kind, task.name, [row["_id"] for row in task.data["queries"]]) == ("retrieval", "mine-qrels_dev", ["q1"])
    (folder / "task.toml").write_text('split = "dev"')
    assert read(folder).data == task.data
    (folder / "task.toml").write_text('split = "valid"')
    assert f"There is no file '{folder}/qrels_valid.jsonl', and none of that name in another format" in refusal(folder)


def test_task_toml_states_the_limit_and_an_argument_wins(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", "sts", "limit = 9")
    assert (read(folder).size, read(folder).name) == (9, "mine#9")
    assert read(folder, limit=5).size == 5


def test_task_toml_states_the_seed_of_the_sample(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "sts", "limit = 9\nseed = 1")
    first = read(folder).data
    (folder / "task.toml").write_text("limit = 9\nseed = 2")
    assert read(folder).data != first


def test_task_toml_states_the_columns_of_text_and_label(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "classification", 'text = "utterance"\nlabel = "intent"')
    expected = {"train": labelled(0, 16), "test": labelled(16, 12)}
    for part, rows in expected.items():
        write_rows(folder / f"{part}.jsonl", [{"utterance": row["text"], "intent": row["label"]} for row in rows])
    assert read(folder).data == expected


def test_task_toml_states_the_label_of_pairs(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "renamed", "pair-classification", 'label = "duplicate"')
    rows = FILES["pair-classification"]()["test.jsonl"]
    renamed = [{"sentence1": row["sentence1"], "sentence2": row["sentence2"], "duplicate": row["label"]} for row in rows]
    write_rows(folder / "test.jsonl", renamed)
    plain, task = read(write_task(tmp_path / "plain", "pair-classification")), read(folder)
    assert (task.kind, task.data, task.revision) == (plain.kind, plain.data, plain.revision)


@pytest.mark.parametrize("key", ["text", "label"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_for_a_column_that_the_kind_does_not_have_is_refused(kind: str, key: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path, kind, f'{key} = "{key}"')
    if key in KINDS[kind].named:
        assert read(folder).kind == kind
    else:
        assert f"task.toml: '{key}' would change nothing, because a {kind} task has no column" in refusal(folder)


def test_task_toml_states_the_instruction(tmp_path: Path) -> None:
    assert sts(tmp_path, 'instruction = "Find paraphrases."').instruction == "Find paraphrases."


def test_an_unknown_key_is_refused_with_the_keys_that_there_are(tmp_path: Path) -> None:
    message = refusal(write_task(tmp_path, "sts", "limits = 5"))
    assert "task.toml: limits: " in message
    assert f"(keys: {', '.join(TaskFile.model_fields)})" in message


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            'kind = "retreival"',
            "task.toml: Unknown kind of task 'retreival'. Did you mean 'retrieval'? Allowed: classification,",
        ),
        ('limit = "many"', "limit: Input should be a valid integer"),
        ("limit = -3", "limit: Input should be greater than or equal to 2"),
        ("limit = ", "this is not TOML"),
        ('split = "dev"', "has none of dev.jsonl"),
        ('split = "../other/test"', "is not a plain file name"),
    ],
)
def test_a_wrong_value_in_task_toml_is_refused(toml: str, message: str, tmp_path: Path) -> None:
    assert message in refusal(write_task(tmp_path, "sts", toml))


# --- one file, two halves --------------------------------------------------------------------------------------------


def halves(folder: Path, seed: int) -> LocalTask:
    folder.mkdir(exist_ok=True)
    write_rows(folder / "all.jsonl", labelled(0, 40))
    (folder / "task.toml").write_text(f'kind = "classification"\nseed = {seed}')
    return read(folder)


def test_a_single_file_is_split_in_disjoint_halves_by_the_seed(tmp_path: Path) -> None:
    task = halves(tmp_path, 0)
    train, test = ({row["text"] for row in task.data[part]} for part in ("train", "test"))
    assert (len(train), len(test), train & test) == (20, 20, set())
    assert halves(tmp_path, 0).data == task.data
    assert halves(tmp_path, 1).data != task.data


@pytest.mark.parametrize("seed", range(10))
def test_each_half_of_a_single_file_has_half_of_every_class(seed: int, tmp_path: Path) -> None:
    sizes = {"one": 1, "two": 2, "three": 3, "many": 20}
    rows = [{"text": f"{label} {number}", "label": label} for label, size in sizes.items() for number in range(size)]
    write_rows(tmp_path / "all.jsonl", rows)
    (tmp_path / "task.toml").write_text(f"seed = {seed}")
    data = read(tmp_path, ":classification").data
    assert sorted(row["text"] for part in data.values() for row in part) == sorted(row["text"] for row in rows)
    for label, size in sizes.items():
        train, test = (sum(row["label"] == label for row in data[part]) for part in ("train", "test"))
        assert (train, test) == (size - size // 2, size // 2), "the odd text of a class is one to fit on"


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_samples_the_same_items_each_time_and_names_the_task_after_it(kind: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", kind)
    whole, part = read(folder), read(folder, limit=3)
    scored = "queries" if kind == "retrieval" else "test"
    assert (part.name, part.size) == ("mine#3", 3)
    assert all(row in whole.data[scored] for row in part.data[scored])
    assert part.data == read(folder, limit=3).data
    assert part.revision != whole.revision


def test_a_limit_that_keeps_everything_changes_nothing(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "sts")
    assert read(folder, limit=24) == read(folder)


def test_relevant_documents_stay_under_a_limit_and_ten_others_a_query(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "retrieval")
    more = [{"_id": f"more{number}", "text": f"more {number}"} for number in range(100)]
    write_rows(folder / "corpus.jsonl", FILES["retrieval"]()["corpus.jsonl"] + more)
    data = read(folder, limit=2).data
    relevant = {row["corpus-id"] for row in data["qrels"]}
    assert {row["query-id"] for row in data["qrels"]} == {row["_id"] for row in data["queries"]}
    assert len(relevant) == 4
    assert relevant <= {row["_id"] for row in data["corpus"]}
    assert len(data["corpus"]) == 4 + 20


def test_the_training_texts_of_a_classification_are_not_limited(tmp_path: Path) -> None:
    assert len(read(write_task(tmp_path, "classification"), limit=3).data["train"]) == 16


@pytest.mark.parametrize("limit", [1, 0, -1])
def test_a_limit_below_two_is_refused(limit: int, tmp_path: Path) -> None:
    assert f"A limit is at least 2 items, not {limit}" in refusal(write_task(tmp_path, "sts"), limit=limit)


def test_a_limit_that_leaves_one_label_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", [{"sentence1": "a", "sentence2": f"b{n}", "label": int(n == 0)} for n in range(500)])
    assert "#2': all items have one label" in refusal(tmp_path, limit=2)


# --- malformed rows --------------------------------------------------------------------------------------------------

GOOD: dict[str, dict[str, Any]] = {kind: next(iter(FILES[kind]().values()))[0] for kind in KINDS}
SUMMARY = {"summary": "a", "score": 1}


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("sts", {"sentence1": None}, "column 'sentence1': expected str, found NoneType"),
        ("sts", {"sentence2": 5}, "column 'sentence2': expected str, found int '5'"),
        ("sts", {"score": "high"}, "column 'score': expected a number, found 'high'"),
        ("sts", {"score": float("nan")}, "column 'score': expected a number, found nan"),
        ("sts", {"score": True}, "column 'score': expected int or float or str, found bool"),
        ("pair-classification", {"label": 2}, "column 'label': expected 0 or 1, found 2"),
        ("pair-classification", {"label": "yes"}, "column 'label': expected a number, found 'yes'"),
        ("classification", {"text": ["a"]}, "column 'text': expected str, found list"),
        ("classification", {"label": 1.5}, "column 'label': expected str or int, found float '1.5'"),
        ("clustering", {"label": None}, "column 'label': expected str or int, found NoneType"),
        ("retrieval", {"_id": 7.5}, "column '_id': expected str or int, found float '7.5'"),
        ("retrieval", {"_id": "d1"}, "column '_id': 'd1' comes twice"),
        ("retrieval", {"text": None}, "column 'text': expected str, found NoneType"),
        ("retrieval", {"title": 5}, "column 'title': expected str, found int '5'"),
        ("reranking", {"query": 1}, "column 'query': expected str, found int"),
        ("reranking", {"positive": "a"}, "column 'positive': expected list, found str"),
        ("reranking", {"negative": ["a", 3]}, "column 'negative': expected a list of str, found int in it"),
        ("summarization", {"source": 1}, "column 'source': expected str, found int"),
        ("summarization", {"references": []}, "column 'references': expected at least one"),
        ("summarization", {"references": [None]}, "column 'references': expected a list of str, found NoneType in it"),
        ("summarization", {"systems": []}, "column 'systems': expected at least one"),
        ("summarization", {"systems": ["a"]}, "column 'systems': expected objects with 'summary' and 'scores'"),
        ("summarization", {"systems": [{"score": 1}]}, "column 'summary' (str) is missing; there is score"),
        ("summarization", {"systems": [SUMMARY, {"summary": "a"}]}, "expected human scores as numbers, found None"),
        ("summarization", {"systems": [{**SUMMARY, "score": True}]}, "expected human scores as numbers, found True"),
        ("summarization", {"systems": [{**SUMMARY, "score": float("inf")}]}, "expected human scores as numbers, found inf"),
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


_EXPECTED = {"word-level": "list", "retrieval": "str or int"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_is_named_with_the_columns_that_there_are(kind: str, tmp_path: Path) -> None:
    name, rows = next(iter(FILES[kind]().items()))
    column = next(iter(rows[0]))
    del rows[1][column]
    write_task(tmp_path, kind)
    write_rows(tmp_path / name, rows)
    assert f"{name}, line 2: column '{column}' ({_EXPECTED.get(kind, 'str')}) is missing; there is" in refusal(
        tmp_path, f":{kind}"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{'text': 1}", "line 2, column 2: no JSON"),
        ("[1, 2]", "line 2: expected a JSON object, found list"),
        ("\ufeff{}", "line 2, column 1: no JSON"),
    ],
)
def test_a_line_that_is_no_json_object_is_named(line: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps(GOOD["sts"]) + f"\n{line}\n", encoding="utf-8")
    assert f"{tmp_path / 'test.jsonl'}, {expected}" in refusal(tmp_path)


def test_a_csv_row_names_its_line_whatever_stands_above_it(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text('sentence1,sentence2,score\n"two\nlines",b,1\na,b,high\n')
    assert f"{tmp_path / 'test.csv'}, line 4, column 'score': expected a number, found 'high'" in refusal(tmp_path)


def test_a_csv_row_with_too_few_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("sentence1,sentence2,score\na,b,1\na,b\n")
    assert f"{tmp_path / 'test.csv'}, line 3: expected 3 columns" in refusal(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_bytes(b'{"text": "\xff"}\n')
    assert "test.jsonl is not UTF-8 text" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("q99\td0\t1", "column 'query-id': no query 'q99' in"),
        ("q0\td0\tgood", "column 'score': expected a number, found 'good'"),
        ("q0\td0\t0.5", "column 'score': expected a whole number, found 0.5"),
        ("q0\td0", "expected 3 columns"),
    ],
)
def test_a_malformed_judgement_is_named_by_file_line_and_column(row: str, expected: str, tmp_path: Path) -> None:
    file = write_task(tmp_path, "retrieval") / "qrels_test.tsv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], "", row, *lines[3:]]))
    message = refusal(tmp_path)
    assert f"{file}, line 5" in message
    assert expected in message


def test_a_query_id_that_comes_twice_is_named(tmp_path: Path) -> None:
    file = write_task(tmp_path, "retrieval") / "queries.jsonl"
    write_rows(file, [*FILES["retrieval"]()["queries.jsonl"], {"_id": "q2", "text": "again"}])
    assert f"{file}, line 7, column '_id': 'q2' comes twice" in refusal(tmp_path)


# --- what cannot tell models apart -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "column"),
    [("sts", "score"), ("pair-classification", "label"), ("classification", "label"), ("clustering", "label")],
)
def test_items_of_one_label_are_refused(kind: str, column: str, tmp_path: Path) -> None:
    write_task(tmp_path, kind)
    for name, rows in FILES[kind]().items():
        write_rows(tmp_path / name, [{**row, column: 1} for row in rows])
    assert f"have one {column}" in refusal(tmp_path)


def test_summaries_that_humans_scored_alike_are_refused(tmp_path: Path) -> None:
    rows = FILES["summarization"]()["test.jsonl"]
    for row in rows:
        row["systems"] = [{**system, "scores": {"fluency": 3}} for system in row["systems"]]
    write_rows(tmp_path / "test.jsonl", rows)
    assert "humans gave all summaries of a text the same score" in refusal(tmp_path)


def test_a_test_label_without_training_texts_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "classification")
    write_rows(folder / "test.jsonl", [{"text": "a", "label": "music"}, {"text": "b", "label": "art"}])
    assert "no training text has the label 'art'" in refusal(folder)


def test_judgements_that_call_nothing_relevant_are_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "retrieval")
    write_rows(folder / "qrels_test.tsv", [{"query-id": "q0", "corpus-id": "d0", "score": 0}])
    assert "holds no item to score" in refusal(folder)


# --- revision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_revision_changes_with_any_value_of_any_file(kind: str, tmp_path: Path) -> None:
    before = read(write_task(tmp_path, kind)).revision
    for name, rows in FILES[kind]().items():
        column = "score" if name.endswith("tsv") else "sentence2" if "sentence2" in rows[0] else list(rows[0])[-1]
        write_rows(tmp_path / name, [*rows[:-1], {**rows[-1], column: another(rows[-1][column])}])
        assert read(tmp_path).revision != before, name
        write_rows(tmp_path / name, rows)
    assert read(tmp_path).revision == before


def another(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, list):
        return [*value[:-1], another(value[-1])] if isinstance(value[-1], str) else value[:-1]
    return {"music": "sport", "sport": "music"}.get(value, value + "x") if isinstance(value, str) else value + 1


def test_the_revision_is_that_of_the_data_and_not_of_how_they_are_stored(tmp_path: Path) -> None:
    rows = pairs("score", lambda n: (n % 6, n % 6))
    before = sts(tmp_path / "a", "").revision
    (tmp_path / "b").mkdir()
    write_rows(tmp_path / "b" / "test.jsonl", rows)
    plain = read(tmp_path / "b").revision
    assert plain != before
    write_rows(tmp_path / "b" / "test.jsonl", [{"note": "x", **dict(reversed(row.items()))} for row in rows])
    (tmp_path / "b" / "task.toml").write_text('name = "renamed"\nkind = "sts"\nseed = 5')
    assert read(tmp_path / "b").revision == plain


def test_the_revision_changes_with_the_instruction_that_texts_are_read_under(tmp_path: Path) -> None:
    before = sts(tmp_path).revision
    assert sts(tmp_path, 'instruction = "Find paraphrases."').revision != before


def hash_of_data(task: LocalTask) -> str:
    """The revision of a task without marks, as it was in every version."""
    return hashlib.sha256(repr((task.instruction, sorted(task.data.items()))).encode()).hexdigest()[:16]


@pytest.mark.parametrize("kind", KINDS)
def test_the_revision_of_a_usual_task_is_the_hash_of_its_data(kind: str, tmp_path: Path) -> None:
    task = read(write_task(tmp_path, kind))
    assert task.revision == hash_of_data(task)


@pytest.mark.parametrize(("text", "judged", "ignored"), [("{} ", False, True), ("{} other", False, False), ("{}", True, False)])
def test_queries_that_are_documents_too_are_told_by_id_and_text(text: str, judged: bool, ignored: bool, tmp_path: Path) -> None:
    folder, files = write_task(tmp_path, "retrieval"), FILES["retrieval"]()
    query = files["queries.jsonl"][0]
    copied = {"_id": query["_id"], "title": "", "text": text.format(query["text"])}
    write_rows(folder / "corpus.jsonl", [*files["corpus.jsonl"], copied])
    judgement = {"query-id": query["_id"], "corpus-id": query["_id"], "score": int(judged)}
    write_rows(folder / "qrels_test.tsv", [*files["qrels_test.tsv"], judgement])
    task = read(folder)
    assert TEXT_KINDS["retrieval"].mteb_settings(task.data) == ({"ignore_identical_ids": True} if ignored else {})
    assert (task.revision != hash_of_data(task)) is ignored, "scores of older versions are not those of such a task"


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "nowhere:sts"])
def test_a_path_that_is_no_folder_is_refused(spec: str) -> None:
    with pytest.raises(UnmaskError, match=f"There is no task folder '{spec.removesuffix(':sts')}'"):
        find_task(spec)


def test_an_unknown_name_of_mteb_gives_the_nearest_match() -> None:
    with pytest.raises(UnmaskError, match=r"Unknown task 'STSBenchmrk'\. Did you mean 'STSBenchmark'") as caught:
        find_task("STSBenchmrk")
    assert "a folder, 'starter', a task set" in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_name_of_mteb_has_a_kind_and_a_revision() -> None:
    task = find_task("STSBenchmark")
    assert (task.name, task.kind) == ("STSBenchmark", "sts")
    assert re.fullmatch("[0-9a-f]{40}", task.revision)


def test_a_limit_on_a_task_of_mteb_is_refused() -> None:
    with pytest.raises(UnmaskError, match="A limit works on local folders only, and 'STSBenchmark'"):
        find_task("STSBenchmark#5")


def test_a_task_of_mteb_that_embeds_no_text_is_refused() -> None:
    with pytest.raises(UnmaskError, match="kinds that can be compared are sts, pair-classification"):
        find_task("CIFAR10")


def test_starter_stands_for_all_starter_tasks() -> None:
    assert [task.name for task in resolve_tasks(["starter"])] == [f"starter-{folder.name}" for folder in starter_folders()]


def test_a_starter_task_has_a_name_everywhere() -> None:
    (task,), (sample,) = resolve_tasks(["starter:sts"]), resolve_tasks(["starter:sts#9"])
    assert task.name == "starter-sts"
    assert sample.name == "starter-sts#9"
    assert isinstance(sample, LocalTask) and sample.size == 9
    with pytest.raises(UnmaskError, match=r"Unknown starter task 'stss'\. Did you mean 'sts'\?"):
        resolve_tasks(["starter:stss"])


def test_names_below_a_folder_are_paths_in_it_and_other_specs_stay(tmp_path: Path) -> None:
    write_task(tmp_path / "sets" / "mine", "classification")
    starter = {folder.name: str(folder) for folder in starter_folders()}
    names = ["mine", "mine#10", "mine/test.jsonl", "mine:classification#10", "nothing/here", "STSBenchmark", "starter:sts#9"]
    below = str(tmp_path / "sets")
    assert specs_below(tmp_path / "sets", names) == [
        *(f"{below}/{name}" for name in names[:5]),
        "STSBenchmark",
        f"{starter['sts']}#9",
    ]
    assert specs_below(tmp_path, ["starter"]) == list(starter.values())
    assert specs_below(tmp_path, [below]) == [below], "an absolute path"
    with pytest.raises(UnmaskError, match=r"Unknown starter task 'stss'\. Did you mean 'sts'\?"):
        specs_below(tmp_path, ["starter:stss"])
    for lost in ("sickr", "sickr#200"):
        with pytest.raises(UnmaskError, match=r"There is no folder '.*sickr', and mteb has no task or task set 'sickr'\."):
            specs_below(tmp_path, [lost])


def test_all_specs_of_one_set_of_items_have_one_file(tmp_path: Path) -> None:
    folder = str(write_task(tmp_path / "mine", "classification"))
    shutil.copyfile(tmp_path / "mine" / "test.jsonl", tmp_path / "mine" / "dev.jsonl")
    test, dev = str(tmp_path / "mine" / "test.jsonl"), str(tmp_path / "mine" / "dev.jsonl")
    for spec in (folder, f"{folder}#5", f"{folder}:clustering#5", f"{folder}/../mine", test, f"{test}#7"):
        assert item_file(spec) == test
    assert item_file(dev) == item_file(f"{dev}#9") == dev
    documents = str(write_task(tmp_path / "search", "retrieval"))
    assert item_file(documents) == item_file(f"{documents}#3") == documents
    assert item_file("STSBenchmark") == "STSBenchmark"


def test_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    specs = [str(write_task(tmp_path / place / "mine", "sts")) for place in ("a", "b")]
    with pytest.raises(UnmaskError, match="Two tasks are called 'mine'"):
        resolve_tasks(specs)
    write_task(tmp_path / "b" / "mine", "sts", 'name = "other"')
    assert [task.name for task in resolve_tasks(specs)] == ["mine", "other"]


def test_no_task_at_all_is_refused() -> None:
    with pytest.raises(UnmaskError, match="No task was given"):
        resolve_tasks([])


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("stsb", "sts", 1379),
        ("mrpc", "pair-classification", 1725),
        ("trec", "classification", 500),
        ("cranfield", "retrieval", 225),
        ("trecqa", "reranking", 68),
        ("summeval", "summarization", 100),
    ],
)
def test_real_sets_are_read_as_what_they_are(name: str, kind: str, size: int, data: Path) -> None:
    task = read(data / name)
    assert (task.kind, task.size) == (kind, size)


def test_a_folder_may_be_named_like_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "sts", "sts")
    monkeypatch.chdir(tmp_path)
    for spec in ("sts", "sts:sts", "sts#10"):
        [task] = resolve_tasks([spec])
        assert task.kind == "sts"


@pytest.mark.parametrize(
    ("kind", "file", "row", "told"),
    [
        ("reranking", "test.jsonl", {"query": "Why?", "positive": ["So."], "negative": []}, "1 of {} queries lack good or bad"),
        (
            "retrieval",
            "qrels_test.tsv",
            {"query-id": "q1", "corpus-id": "d1", "score": 0},
            "1 queries are left out, since none",
        ),
    ],
)
def test_queries_that_are_left_out_are_told(
    kind: str, file: str, row: dict[str, Any], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "unmask")
    folder = write_task(tmp_path / "mine", kind)
    size = read(folder).size
    assert not caplog.messages
    rows = FILES[kind]()[file]
    rows = [*rows, row] if kind == "reranking" else [*(one for one in rows if one["query-id"] != row["query-id"]), row]
    write_rows(folder / file, rows)
    assert read(folder).size == (size if kind == "reranking" else size - 1)
    [message] = caplog.messages
    assert message.startswith(f"mine: {told.format(size + 1)}")
