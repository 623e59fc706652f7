"""Rows: every reader gives the same rows, and every error says where."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiny import WRITERS, write_rows
from unmask.errors import UnmaskError
from unmask.io.rows import READERS, Row, field, read_rows

ROWS: list[dict[str, str]] = [
    {"text": "A man sings.", "label": "music"},
    {"text": 'He said "yes", twice.\tThen\nleft.', "label": "مرحبا 🙂"},
    {"text": "", "label": " "},
]


# a .tsv has no quoting, so no tab or line break fits into a field
TABLE = {".tsv": [{**row, "text": " ".join(row["text"].split())} for row in ROWS]}
FORMATS = list(WRITERS)
WITH_LINES = {ending: [2, 4, 5] if ending == ".csv" else [2, 3, 4] if ending == ".tsv" else [1, 2, 3] for ending in FORMATS}
WITH_LINES[".json"] = [2, 6, 10]


def written(folder: Path, ending: str, rows: list[dict[str, str]]) -> bytes:
    """The bytes of a file of rows."""
    return write_rows(folder / f"written{ending}", rows).read_bytes()


def jsonl(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, str]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue().to_pybytes())


def read(folder: Path, name: str, content: bytes) -> list[tuple[int, Row]]:
    file = folder / name
    file.write_bytes(content)
    return list(read_rows(file))


def refusal(folder: Path, name: str, content: bytes) -> str:
    with pytest.raises(UnmaskError) as refused:
        read(folder, name, content)
    assert name in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("ending", WRITERS)
def test_every_reader_gives_back_the_rows_with_their_lines(tmp_path: Path, ending: str) -> None:
    rows = TABLE.get(ending, ROWS)
    assert read(tmp_path, f"rows{ending}", written(tmp_path, ending, rows)) == list(zip(WITH_LINES[ending], rows, strict=True))


@pytest.mark.parametrize("ending", [ending for ending in FORMATS if ending != ".ndjson"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(rows=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=1, max_size=4))
def test_any_text_survives_every_reader(tmp_path: Path, ending: str, rows: list[str]) -> None:
    table = [{"text": re.sub("[\t\r\n]", " ", text) if ending == ".tsv" else text, "label": "a"} for text in rows]
    assert [row for _, row in read(tmp_path, f"rows{ending}", written(tmp_path, ending, table))] == table


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"a,b\n1,2\n3\n", "line 3: expected 2 columns"),
        ("a.tsv", b"a\tb\n1\t2\n\n1\t2\t3\n", "line 4: expected 2 columns, found 3."),
    ],
)
def test_a_row_of_another_width_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    assert says in refusal(tmp_path, name, content)


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".txt"])
@pytest.mark.parametrize("lines", [30_000])
def test_a_byte_that_is_no_utf8_is_named_wherever_it_is(tmp_path: Path, ending: str, lines: int) -> None:
    line = b'{"text": "abc"}\n' if ending == ".jsonl" else b"text\n"
    message = refusal(tmp_path, f"rows{ending}", line * lines + b"ab\xe9c\n")
    assert f"line {lines + 1}" in message
    assert f"byte {len(line) * lines + 2}" in message


@pytest.mark.parametrize("content", [b"", b"text", parquet(ROWS)[:-20], parquet(ROWS)[:40] + b"?" * 40 + parquet(ROWS)[80:]])
def test_a_broken_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "parquet" in refusal(tmp_path, "a.parquet", content)


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=r"no file '.*none\.jsonl'"):
        list(read_rows(tmp_path / "none.jsonl"))
    with pytest.raises(UnmaskError, match="no file"):
        list(read_rows(tmp_path))
    assert f"end with {', '.join(READERS)}, not '.xlsx'. Save the sheet as 'CSV UTF-8'." in refusal(tmp_path, "a.xlsx", b"")


@pytest.mark.parametrize(
    ("row", "kind", "says"),
    [
        ({"x": "1"}, (int, float), "a.jsonl, line 3, column 'x': expected int or float, found str '1'."),
        ({"x": True}, int, "a.jsonl, line 3, column 'x': expected int, found bool 'True'."),
        ({"y": 1, "z": 2}, str, "a.jsonl, line 3: column 'x' (str) is missing; there is y, z."),
    ],
)
def test_a_field_that_is_missing_or_of_another_kind_is_named(row: Row, kind: Any, says: str) -> None:
    with pytest.raises(UnmaskError) as refused:
        field(Path("a.jsonl"), 3, row, "x", kind)
    assert str(refused.value) == says
    assert field(Path("a.jsonl"), 3, {"x": True}, "x", (str, bool)) is True
