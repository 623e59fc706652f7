"""Formats: a row that cannot be read spares the others, and reading begins at any row."""

from __future__ import annotations

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
    return [(line, item.reason if isinstance(item, Fault) else item["text"]) for line, item in read_items(file, **options)]


def rows_in(folder: Path, ending: str) -> Path:
    file = folder / f"rows{ending}"
    if ending == ".txt":
        file.write_bytes(b"a\n\nb\r\n c\n" * 3)
        return file
    return write_rows(file, [row | {"text": " ".join(row["text"].split())} for row in ROWS] if ending == ".tsv" else ROWS)


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("ending", FORMATS)
def test_reading_begins_at_any_row(ending: str, every: int, tmp_path: Path) -> None:
    file = rows_in(tmp_path, ending)
    whole = list(read_items(file))
    starts, rows = find_starts(file, every)
    assert rows == len(whole) and [start.row for start in starts] == list(range(0, rows, every))
    for start in starts:
        assert list(read_items(file, start)) == whole[start.row :]


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
    for start in find_starts(file, 350)[0]:  # also in the second row group
        assert next(read_items(file, start, columns=["text"])) == (start.row + 1, {"text": texts[start.row]})


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


@pytest.mark.parametrize(("ending", "delimiter"), [(".tsv", "\t")])
def test_a_header_with_two_columns_of_one_name_is_one_fault(ending: str, delimiter: str, tmp_path: Path) -> None:
    file = tmp_path / f"a{ending}"
    file.write_text("\ntext,label,text\na,b,c\nd,e,f\n".replace(",", delimiter))
    assert told(file) == [(2, ", line 2: the header has two columns 'text'. Rename one of them.")]
    assert find_starts(file, 1)[1] == 1
    with pytest.raises(UnmaskError, match=rf"a\{ending}, line 2: the header has two columns 'text'"):
        list(read_rows(file))


def test_a_string_that_is_not_utf8_spares_the_other_rows_of_a_parquet_file(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    raw = pa.array([b"a", b"\xff", b"b"], pa.binary())
    texts = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"text": texts}), file)
    assert told(file) == [(1, "a"), (2, ", line 2: a string is not UTF-8."), (3, "b")]
