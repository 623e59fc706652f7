"""The starter tasks: complete, balanced, free of duplicates, consistent, and not solved by counting shared words."""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import spearmanr

STARTER = Path(__file__).parents[1] / "unmask" / "starter"
KINDS = ("sts", "classification", "clustering", "retrieval")
ROWS = {
    "sts/test.jsonl": (120, {"sentence1", "sentence2", "score"}),
    "classification/train.jsonl": (72, {"text", "label"}),
    "classification/test.jsonl": (84, {"text", "label"}),
    "clustering/all.jsonl": (120, {"text", "label"}),
    "retrieval/corpus.jsonl": (80, {"_id", "title", "text"}),
    "retrieval/queries.jsonl": (50, {"_id", "text"}),
}
PER_LABEL = {"classification/train.jsonl": 12, "classification/test.jsonl": 14, "clustering/all.jsonl": 20}


def rows(file: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (STARTER / file).read_text(encoding="utf-8").splitlines()]


def texts(file: str) -> list[str]:
    """Every text to be embedded; a base sentence of the graded pairs, which recurs by design, counts once."""
    if file.startswith("sts"):
        return [*{row["sentence1"] for row in rows(file)}, *(row["sentence2"] for row in rows(file))]
    return [row["text"] for row in rows(file)]


def scores() -> list[float]:
    return [float(row["score"]) for row in rows("sts/test.jsonl")]


def qrels() -> list[tuple[str, str, int]]:
    header, *lines = (STARTER / "retrieval/qrels_test.tsv").read_text(encoding="utf-8").splitlines()
    assert header == "query-id\tcorpus-id\tscore"
    return [(query, passage, int(score)) for query, passage, score in (line.split("\t") for line in lines)]


def reference() -> list[str]:
    return (STARTER / "reference.txt").read_text(encoding="utf-8").splitlines()


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def jaccard(a: str, b: str) -> float:
    return len(words(a) & words(b)) / len(words(a) | words(b))


def measured_overlap() -> float:
    overlaps = [jaccard(row["sentence1"], row["sentence2"]) for row in rows("sts/test.jsonl")]
    return float(spearmanr(overlaps, scores()).statistic)


@pytest.mark.parametrize("kind", KINDS)
def test_folder_states_its_kind_and_name(kind: str) -> None:
    stated = tomllib.loads((STARTER / kind / "task.toml").read_text(encoding="utf-8"))
    assert stated == {"kind": kind, "name": f"starter-{kind}"}


@pytest.mark.parametrize("file", ROWS)
def test_files_have_the_stated_size_and_columns(file: str) -> None:
    count, columns = ROWS[file]
    assert len(rows(file)) == count
    assert all(set(row) == columns for row in rows(file))


@pytest.mark.parametrize("file", PER_LABEL)
def test_labels_are_balanced(file: str) -> None:
    assert list(Counter(row["label"] for row in rows(file)).values()) == [PER_LABEL[file]] * 6


def test_a_label_is_not_given_away_by_its_own_words() -> None:
    messages = rows("classification/train.jsonl") + rows("classification/test.jsonl")
    for label in {row["label"] for row in messages}:
        own = [row["text"].lower() for row in messages if row["label"] == label]
        for word in label.split("-"):
            assert 2 * sum(word.removesuffix("ing").removesuffix("s") in text for text in own) <= len(own), word


@pytest.mark.parametrize("file", ROWS)
def test_no_text_occurs_twice(file: str) -> None:
    assert [text for text, count in Counter(texts(file)).items() if count > 1] == []


def test_train_and_test_share_no_text() -> None:
    assert not set(texts("classification/train.jsonl")) & set(texts("classification/test.jsonl"))


def test_grades_are_within_range_and_each_is_used() -> None:
    counts = Counter(scores())
    assert set(counts) <= {0, 1, 2, 3, 4, 5}
    assert all(counts[grade] >= 12 for grade in range(6))


def test_word_overlap_alone_ranks_the_pairs_badly() -> None:
    assert measured_overlap() < 0.6


def test_the_readme_states_the_measured_overlap() -> None:
    readme = (STARTER / "README.md").read_text(encoding="utf-8")
    assert f"Spearman {measured_overlap():.2f} (Jaccard overlap)" in readme


def test_judgements_name_existing_questions_and_passages() -> None:
    queries = [row["_id"] for row in rows("retrieval/queries.jsonl")]
    passages = [row["_id"] for row in rows("retrieval/corpus.jsonl")]
    assert len(set(queries)) == len(queries) and len(set(passages)) == len(passages)
    assert len({(query, passage) for query, passage, _ in qrels()}) == len(qrels())
    assert {query for query, _, _ in qrels()} <= set(queries)
    assert {passage for _, passage, _ in qrels()} <= set(passages)
    assert {score for _, _, score in qrels()} <= {1, 2}


def test_every_question_has_one_or_two_relevant_passages() -> None:
    relevant = Counter(query for query, _, _ in qrels())
    assert all(1 <= relevant[row["_id"]] <= 2 for row in rows("retrieval/queries.jsonl"))


def test_reference_lines_are_unique_and_occur_in_no_task() -> None:
    assert len(reference()) == len(set(reference())) == 240
    assert all(4 <= len(line.split()) <= 40 for line in reference())
    assert not set(reference()) & {text for file in ROWS for text in texts(file)}
