"""Files as people have them: what spreadsheets, Spark, pandas, `datasets` and Windows write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import UnmaskError
from unmask.io.formats import Fault
from unmask.io.rows import find_starts, read_items, read_rows

TEXTS = ["Grüße aus Köln", 'she said "no"', '"Hello" she said', '"an open quote', "日本語 🙂", "a; b"]


def rows_of(file: Path) -> list[dict[str, Any]]:
    """All rows. Reading from any start gives the same."""
    items = list(read_items(file))
    starts, count = find_starts(file, 1)
    assert count == len(items) and [next(read_items(file, start)) for start in starts] == items
    for _, item in items:
        assert not isinstance(item, Fault), item.reason
    return [row for _, row in read_rows(file)]


def refusal(file: Path) -> str:
    with pytest.raises(UnmaskError) as refused:
        list(read_rows(file))
    starts, count = find_starts(file, 1)
    assert count == len(list(read_items(file))) == len(starts)
    return str(refused.value)


def labelled(texts: list[str] = TEXTS) -> list[dict[str, str]]:
    return [{"text": text, "label": str(number)} for number, text in enumerate(texts)]


def table(delimiter: str, rows: list[dict[str, str]]) -> str:
    return "\r\n".join(delimiter.join(cells) for cells in [list(rows[0]), *(list(row.values()) for row in rows), []])


def test_a_quote_in_a_tsv_is_a_character(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text(table("\t", labelled()), encoding="utf-8", newline="")
    assert rows_of(file) == labelled()


@pytest.mark.parametrize("content", ['"text"\t"label"\n"a"\t"1"\n', 'text\tlabel\n"two\nlines"\t1\n'])
def test_a_quoted_tsv_is_told_what_to_do(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text(content)
    assert "rename it to .csv (tabs are recognised there)" in refusal(file)
    assert [row["label"] for row in rows_of(file.rename(tmp_path / "rows.csv"))] == ["1"]


@pytest.mark.parametrize(
    ("name", "delimiter", "encoding"),
    [("rows.csv", ";", "utf-8-sig"), ("rows.csv", "\t", "utf-16-le"), ("rows.tsv", "\t", "utf-32"), ("sep.csv", "|", "utf-8")],
)
def test_spreadsheets_export_many_encodings_and_separators(tmp_path: Path, name: str, delimiter: str, encoding: str) -> None:
    rows = labelled(["Grüße", "a, b", "日本語 🙂"])
    content = table(delimiter, rows)
    if name == "sep.csv":
        content = f"sep={delimiter}\r\n{content}"
    mark = "\ufeff" if encoding.endswith(("le", "be")) else ""
    file = tmp_path / name
    file.write_bytes((mark + content).encode(encoding))
    assert rows_of(file) == rows


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("a.csv", "text\nGrüße\n".encode("cp1252"), "iconv -f WINDOWS-1252 -t UTF-8"),
        ("a.xlsx", b"PK\x03\x04" + bytes(40), "Save the sheet as 'CSV UTF-8'"),
        ("a.jsonl", b"\x1f\x8b\x08", "Add .gz to its name"),
        ("a.csv", b"PAR1PAR1", "Rename it to .parquet"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("a.json", b'{\n "data": [{"text": "a"}]\n}', "jq -c '.KEY[]'"),
    ],
)
def test_a_file_that_cannot_be_read_names_the_remedy(tmp_path: Path, name: str, content: bytes, remedy: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    if name.endswith("xlsx"):
        with pytest.raises(UnmaskError, match=remedy):
            next(read_rows(file))
    else:
        assert remedy in refusal(file)


@pytest.mark.parametrize("lines", [1, None])
def test_a_json_file_is_an_array_or_json_lines(tmp_path: Path, lines: int | None) -> None:
    """`indent` of Python; without one, all on one line."""
    (tmp_path / "array.json").write_text("\n " + json.dumps(labelled(), indent=lines) + " \n")
    (tmp_path / "lines.json").write_text("".join(json.dumps(row) + "\n" for row in labelled()))
    (tmp_path / "lines.ndjson").write_text("".join(json.dumps(row) + "\n" for row in labelled()))
    for name in ("array.json", "lines.json", "lines.ndjson"):
        assert rows_of(tmp_path / name) == labelled()
    (tmp_path / "empty.json").write_text("[]")
    assert rows_of(tmp_path / "empty.json") == []


def test_a_saved_data_set_is_a_stream_of_arrow(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(labelled()).save_to_disk(str(tmp_path / "saved"))
    [file] = (tmp_path / "saved").glob("*.arrow")
    assert rows_of(file) == labelled()
