"""Formats: a row that cannot be read spares the others, and reading begins at any row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tiny import write_rows
from unmask.errors import UnmaskError
from unmask.io import formats
from unmask.io.formats import FORMATS, Fault
from unmask.io.rows import find_starts, read_items, read_rows

ROWS = [{"text": text, "label": str(place)} for place, text in enumerate(["a", 'x "y",\tz\nw\rv', "", "ü", " "] * 3)]


def told(file: Path, **options: Any) -> list[tuple[int, str]]:
    """Line and message of every fault, and the texts of the rows."""
    return [(line, item.told if isinstance(item, Fault) else item["text"]) for line, item in read_items(file, **options)]


def rows_in(folder: Path, ending: str) -> Path:
    file = folder / f"rows{ending}"
    if ending == ".txt":
        file.write_bytes(b"a\n\nb\r\n c\n" * 3)
        return file
    return write_rows(file, [row | {"text": " ".join(row["text"].split())} for row in ROWS] if ending == ".tsv" else ROWS)


@pytest.mark.parametrize("every", [1, 2, 7, 100])
@pytest.mark.parametrize("ending", FORMATS)
def test_reading_begins_at_any_row(ending: str, every: int, tmp_path: Path) -> None:
    file = rows_in(tmp_path, ending)
    whole = list(read_items(file))
    starts, rows = find_starts(file, every)
    assert rows == len(whole) and [start.row for start in starts] == list(range(0, rows, every))
    for start in starts:
        assert list(read_items(file, start)) == whole[start.row :]


def test_reading_of_a_parquet_file_begins_in_any_row_group(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [str(number) for number in range(5000)]}), file, row_group_size=700)
    for start in find_starts(file, 350)[0]:
        assert next(read_items(file, start)) == (start.row + 1, {"text": str(start.row)})
    assert sum(1 for _ in read_items(file)) == 5000


def test_a_parquet_file_of_large_rows_is_read_a_few_rows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "rows.parquet", list[int]()
    texts = [f"{number} " + "x" * (10 if number < 1500 else 5000) for number in range(2500)]
    pq.write_table(pa.table({"text": texts, "other": ["y" * 10_000] * 2500}), file, row_group_size=1500, compression="none")
    rows = formats._rows

    def noted(batch: Any, before: int) -> Any:
        seen.append(batch.nbytes)
        return rows(batch, before)

    monkeypatch.setattr(formats, "_rows", noted)
    monkeypatch.setattr(formats, "_BYTES", 100_000)
    assert [row["text"] for _, row in read_rows(file, columns=["text"])] == texts
    assert max(seen) < 200_000 and len(seen) < 100


def test_a_parquet_file_yields_the_columns_that_are_needed(tmp_path: Path) -> None:
    file = rows_in(tmp_path, ".parquet")
    assert next(read_rows(file, columns=["label"]))[1] == {"label": "0"}
    assert set(next(read_rows(file, columns=["label", "none"]))[1]) == {"text", "label"}  # the error names them all


def test_a_faulty_line_of_json_spares_the_others(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    deep = "[" * 100_000
    digits = '{"text": ' + "1" * 5000 + "}"
    file.write_bytes(f'{{"text": "a"}}\n{{"text"\n[1]\n{deep}\n{digits}\n\n'.encode() + b'"\xff"\n{"text": "b"}')
    found = told(file)
    assert [line for line, _ in found] == [1, 2, 3, 4, 5, 7, 8]
    assert [found[0][1], found[-1][1]] == ["a", "b"]
    for (_, message), part in zip(found[1:-1], ["no JSON", "found list", "too deep", "no JSON", "not UTF-8"], strict=True):
        assert part in message
    assert find_starts(file, 1)[1] == 7


def test_a_faulty_row_of_a_csv_spares_the_others(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'text,n\na,1\n"b"x,2\nc\n\xff,4\n"d\ne",5\n')
    found = told(file)
    assert [line for line, _ in found] == [2, 3, 4, 5, 7]
    assert [found[0][1], found[-1][1]] == ["a", "d\ne"]
    starts, rows = find_starts(file, 1)
    assert rows == 5
    assert [next(read_items(file, start)) for start in starts] == list(read_items(file))


def test_a_header_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"\xff\na\nb\n")
    assert len(told(file)) == find_starts(file, 1)[1] == 1


@pytest.mark.parametrize(("ending", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_a_header_with_two_columns_of_one_name_is_one_fault(ending: str, delimiter: str, tmp_path: Path) -> None:
    file = tmp_path / f"a{ending}"
    file.write_text("\ntext,label,text\na,b,c\nd,e,f\n".replace(",", delimiter))
    assert told(file) == [(2, ", line 2: the header has two columns 'text'. Rename one of them.")]
    assert find_starts(file, 1)[1] == 1
    with pytest.raises(UnmaskError, match=rf"a\{ending}, line 2: the header has two columns 'text'"):
        list(read_rows(file))


def test_columns_without_a_name_may_be_several(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,,\na,,\n")
    assert told(file) == [(2, "a")]


@pytest.mark.parametrize("ending", [".jsonl", ".txt", ".csv"])
def test_a_line_that_is_too_long_spares_the_others(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"a{ending}"
    line = (lambda text: json.dumps({"text": text})) if ending == ".jsonl" else str
    texts = ["text", "a", "x" * 500, "b"] if ending == ".csv" else ["a", "x" * 500, "b"]
    file.write_text("\n".join(map(line, texts)))
    found = [message for _, message in told(file, longest=100)]
    assert (found[0], found[2]) == ("a", "b") and ("more than 100" if ending == ".csv" else "100 are allowed") in found[1]
    assert find_starts(file, 1, longest=100)[1] == 3


def test_a_string_that_is_not_utf8_spares_the_other_rows_of_a_parquet_file(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    raw = pa.array([b"a", b"\xff", b"b"], pa.binary())
    texts = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"text": texts}), file)
    assert told(file) == [(1, "a"), (2, ", line 2: a string is not UTF-8."), (3, "b")]


def test_a_parquet_file_that_is_damaged_is_one_fault(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(b"PAR1")
    assert find_starts(file, 1)[1] == len(list(read_items(file))) == 1
