"""Labelled texts from files and folders, and what is wrong with them, told before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tagged, write_rows, write_task
from unmask.errors import UnmaskError
from unmask.moe.routing.labelled_texts import read_labelled

ROWS = [{"text": f"t{n}", "topic": "ab"[n % 2], "level": n % 3, "note": "same"} for n in range(9)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", ROWS)


def test_texts_with_labels(rows: Path) -> None:
    found = read_labelled([str(rows)], ["topic", "level"])
    assert found.labels == ("topic", "level") and found.sources == ("rows",)
    assert [text.values for text in found.texts] == [("ab"[n % 2], str(n % 3)) for n in range(9)]
    assert found.values("level") == ["0", "1", "2"]
    assert read_labelled([str(rows)]).labels == ()


def test_several_sources_are_a_label(rows: Path, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "news", "clustering")
    found = read_labelled([str(rows), str(folder)])
    assert found.labels == ("source",) and found.values("source") == ["news", "rows"]
    assert len(found.texts) == 9 + 24


def test_a_limit_draws_by_the_seed(rows: Path) -> None:
    drawn = [[text.text for text in read_labelled([f"{rows}#4"], seed=seed).texts] for seed in (0, 0, 1)]
    assert len(drawn[0]) == 4 and drawn[0] == drawn[1] != drawn[2] and sorted(drawn[0]) == drawn[0]


def test_the_first_column_that_a_row_has(tmp_path: Path, rows: Path) -> None:
    other = write_rows(tmp_path / "questions.jsonl", [{"question": "q1"}, {"question": "q2"}])
    found = read_labelled([str(rows), str(other)], columns=["text", "question"])
    assert found.texts[-1].text == "q2"
    with pytest.raises(UnmaskError, match=r"questions.jsonl, line 1: column 'text' \(str\) is missing; there is question"):
        read_labelled([str(other)])


def test_words_with_a_label_each(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "words.jsonl", tagged(0, 6))
    for labels in ([], ["tags"]):
        found = read_labelled([str(file)], labels)
        assert found.token_labels == ("tags",) and found.labels == ()
        assert found.texts[0].text == " ".join(found.texts[0].words) and len(found.texts[0].tags[0]) == len(
            found.texts[0].words
        )
    conllu = tmp_path / "words.conllu"
    conllu.write_text("".join("\t".join(["1", word, "_", tag, *"______"]) + "\n\n" for word, tag in ("aX", "bY")))
    assert read_labelled([str(conllu)]).texts[1].tags == (("Y",),)
