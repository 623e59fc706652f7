"""The corpus: all rows of a small file, a fair sample of a large one, and errors that name file, line and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny import write_rows
from unmask.errors import UnmaskError
from unmask.ui.corpus import read_corpus


def test_a_small_file_is_kept_whole_and_in_order(tmp_path: Path) -> None:
    rows = [{"body": f"text {number}", "kind": number % 3} for number in range(7)]
    corpus = read_corpus(write_rows(tmp_path / "texts.jsonl", rows), "body", "kind")
    assert corpus.texts == tuple(row["body"] for row in rows) and corpus.rows == 7
    assert corpus.labels == ("0", "1", "2", "0", "1", "2", "0") and corpus.label_names == ["0", "1", "2"]
    assert corpus.name == "texts.jsonl"


def test_without_a_label_there_is_none(tmp_path: Path) -> None:
    corpus = read_corpus(write_rows(tmp_path / "texts.jsonl", [{"text": "x"}]))
    assert corpus.labels is None and corpus.label_names == []


def test_a_large_file_is_sampled_fairly_in_order_and_again_the_same(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "texts.jsonl", [{"text": str(number)} for number in range(2000)])
    corpus = read_corpus(file, most=500)
    places = [int(text) for text in corpus.texts]
    assert corpus.rows == 2000 and len(places) == 500
    assert places == sorted(set(places))
    assert abs(np.mean(places) - 1000) < 4 * 577 / 500**0.5  # four standard errors
    assert read_corpus(file, most=500) == corpus != read_corpus(file, most=500, seed=1)


def test_each_row_is_as_likely_as_another(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "texts.jsonl", [{"text": str(number)} for number in range(10)])
    counts = np.zeros(10)
    for seed in range(600):
        counts[[int(text) for text in read_corpus(file, most=3, seed=seed).texts]] += 1
    assert np.abs(counts - 180).max() < 5 * (600 * 0.3 * 0.7) ** 0.5


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "x"}, "line 2: column 'kind'"),
        ({"kind": "x"}, "line 2: column 'text'"),
        ({"text": 3, "kind": "x"}, "line 2, column 'text'"),
        ({"text": "x", "kind": [1]}, "line 2, column 'kind'"),
    ],
)
def test_a_wrong_row_is_named(row: dict[str, object], said: str, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "texts.jsonl", [{"text": "a", "kind": "b"}, row])
    with pytest.raises(UnmaskError, match=said):
        read_corpus(file, "text", "kind", most=1)  # also a row that is not drawn


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="holds no row"):
        read_corpus(write_rows(tmp_path / "texts.jsonl", []))
