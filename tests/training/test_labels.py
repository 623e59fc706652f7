"""Texts with labels as pairs: partners share the label, negatives do not, and neither order nor other data sets change what is drawn."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from unmask.errors import UnmaskError
from unmask.training.collate import PairCollator
from unmask.training.data import DataSet, DataSource
from unmask.training.labels import read_related
from unmask.training.schedule import contrastive_schedule

ROWS = [{"text": f"text {number}", "label": f"label {number % 5}"} for number in range(60)]
Read = Callable[..., DataSet]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write rows and read them as the stage does."""

    def make(rows: list[dict[str, Any]], seed: int = 0, name: str = "set", **options: Any) -> DataSet:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return read_related(name, DataSource(path="rows.jsonl", **options), tmp_path, seed)

    return make


def drawn(found: DataSet) -> set[tuple[str, ...]]:
    return {example.texts for example in found.examples}


@pytest.mark.parametrize("negatives", [None, 0, 7])
def test_partners_share_the_label_and_negatives_do_not(read: Read, negatives: int | None) -> None:
    found = read(ROWS, negatives=negatives)
    label_of = {row["text"]: row["label"] for row in ROWS}
    assert len(found.examples) == len(ROWS) and found.skipped == {} and found.kind == "pairs"
    for example in found.examples:
        assert len(set(example.texts)) == len(example.texts) == 2 + (1 if negatives is None else negatives)
        anchor, positive, *others = (label_of[text] for text in example.texts)
        assert anchor == positive and anchor not in others
        numbers = {label: number for number, label in enumerate(sorted(set(label_of.values())))}
        assert example.classes == tuple(numbers[label_of[text]] for text in example.texts)
    assert [example.row for example in found.examples] == list(range(1, 61))
    assert len(found.columns) == len(found.examples[0].texts)


def test_what_is_drawn_follows_from_the_seed_and_not_from_the_order(read: Read) -> None:
    found = read(ROWS, 1, negatives=3)
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    assert drawn(read(shuffled, 1, negatives=3)) == drawn(found) == drawn(read(ROWS, 1, negatives=3))
    assert drawn(read(ROWS, 2, negatives=3)) != drawn(found) != drawn(read(ROWS, 1, name="other", negatives=3))
    in_order = {example.texts: example.classes for example in found.examples}
    assert in_order == {example.texts: example.classes for example in read(shuffled, 1, negatives=3).examples}


def test_what_cannot_be_used_is_left_out_and_counted(read: Read) -> None:
    rows = [
        *ROWS[:10],
        {"text": "alone", "label": "rare"},
        {"text": " text 0 ", "label": "label 0"},
        {"text": "unclear", "label": "label 1"},
        {"text": "unclear", "label": "label 2"},
        {"text": "unclear", "label": "label 1"},
    ]
    found = read(rows)
    assert found.skipped == {"repeated": 1, "with two labels": 3, "the only text of its label": 1}
    assert [example.row for example in found.examples] == list(range(1, 11))
    assert not {"unclear"} & {text for example in found.examples for text in example.texts}
    two = [{"text": f"{label}{number}", "label": label} for label, size in (("a", 5), ("b", 2)) for number in range(size)]
    assert read(two, negatives=3).skipped == {"too few negatives": 5}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "x"}], "all texts have the label 'x'. Training on labels needs texts of two"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], "all rows of .*rows.jsonl were left out: 2 the only text of its"),
        ([*ROWS, {"text": "a", "label": " "}], "line 61, column 'label' is empty"),
        ([*ROWS, {"text": " ", "label": "x"}], "line 61, column 'text' is empty"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_refused_in_words(read: Read, rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UnmaskError, match=said):
        read(rows)


def test_labels_are_known_by_their_columns_or_named(read: Read) -> None:
    numbered = [{"sentence": row["text"], "intent": int(row["label"][-1]), "text": "other"} for row in ROWS]
    named = read(numbered, columns={"text": "sentence", "label": "intent"})
    assert drawn(named) == drawn(read(ROWS))
    pairs = read([{"query": "q", "answer": "a", "text": "t", "label": 1}], where={"label": 1})
    assert drawn(pairs) == {("q", "a")} and not pairs.examples[0].classes, "columns of a pair come first"
    with pytest.raises(UnmaskError, match=r'\{text = "...", label = "..."\} for texts with labels'):
        read([{"text": "a", "intent": "x"}])
    with pytest.raises(ValidationError, match="a label goes with a text, and not with anchor, negative_1"):
        DataSource(path="x", columns={"label": "a", "anchor": "b", "negative_1": "c"})


def test_a_named_score_grades_pairs(read: Read) -> None:
    rows = [{"sentence1": f"a{number}", "sentence2": f"b{number}", "score": str(number / 4)} for number in range(9)]
    rows.append({"sentence1": "A0", "sentence2": "b5", "score": "2"})
    graded = read(rows, columns={"score": "score"})
    assert [example.score for example in graded.examples] == [*(number / 4 for number in range(9)), 2.0]
    assert not graded.positives and not graded.unread, "that two pairs share an anchor does not make their texts positives"
    assert graded.revision != read(rows[::-1], columns={"score": "score"}).revision
    assert graded.revision != read([{**row, "score": "1"} for row in rows[:9]] + rows[9:], columns={"score": "score"}).revision
    assert read([{**row, "negative": "c"} for row in rows], columns={"score": "score"}).columns == ("anchor", "positive")
    with pytest.raises(UnmaskError, match="all pairs have the score 1, so there is no order"):
        read([{**row, "score": 1} for row in rows], columns={"score": "score"})
    with pytest.raises(UnmaskError, match="line 1, column 'score': expected a number, found 'high'"):
        read([{**row, "score": "high"} for row in rows], columns={"score": "score"})
    with pytest.raises(ValidationError, match="pairs with a score have no negatives: leave out negative"):
        DataSource(path="x", columns={"score": "a", "negative": "b"})


def test_labels_of_a_pair_are_no_classes(read: Read) -> None:
    """The first column of a pair, named as the text, must not turn entailment into a class."""
    inference = [{"premise": row["text"], "hypothesis": "b", "label": row["label"]} for row in ROWS]
    with pytest.raises(UnmaskError, match=r'but none of labels.*columns = \{text = "premise", label = "label"\}'):
        read(inference, columns={"text": "premise"})
    assert read(inference, columns={"text": "premise", "label": "label"}).examples[0].classes
    with pytest.raises(UnmaskError, match=r"the column 'label' of .* may say that a pair does not match"):
        read(inference)
    assert not read(inference, where={"label": "label 0"}).examples[0].classes
    both = [{"text": "t", **row} for row in inference]
    with pytest.raises(UnmaskError, match="none of these pairs of columns"):
        read(both, columns={"negative": "hypothesis"})


@pytest.mark.parametrize("labels", [2, 30])
def test_a_batch_has_no_text_twice_and_every_false_negative_is_known(read: Read, tokenizer: Any, labels: int) -> None:
    """Whatever the number of labels: a batch of 8 from 2 labels is full of texts of one label, and the classes say which."""
    from unmask.encoding.tokenization import PromptTokenizer

    rows = [{"text": f"text {number}", "label": str(number % labels)} for number in range(60)]
    label_of = {row["text"]: row["label"] for row in rows}
    schedule = contrastive_schedule([read(rows)], 12, 8, 0)
    collator = PairCollator(PromptTokenizer(tokenizer, "plain", 16), 1 << 20)
    for start in range(0, len(schedule), 8):
        batch = schedule[start : start + 8]
        texts = [[row.example.texts[column] for row in batch] for column in range(3)]
        assert len({text for column in texts for text in column}) == 24
        collated = collator(batch)
        assert collated["candidate_ids"].shape == (2, 8) and collated["positive_ids"].shape == (8, 1)
        alike = collated["positive_ids"] == collated["candidate_ids"].flatten()
        expected = [[label_of[anchor] == label_of[other] for column in texts[1:] for other in column] for anchor in texts[0]]
        assert alike.tolist() == expected
