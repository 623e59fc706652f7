"""Compressed files: their rows are those of the plain file, and damage is named."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.io.compressed import COMPRESSIONS, row_ending
from unmask.io.formats import Fault
from unmask.io.rows import find_starts, read_items, read_rows

CONTENT = "".join(f'{{"text": "row {number} ü"}}\n' for number in range(1200)).encode()


def zstd(content: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd}


def packed(folder: Path, ending: str, content: bytes = CONTENT, kind: str = ".jsonl") -> Path:
    file = folder / f"rows{kind}{ending}"
    file.write_bytes(PACKERS[ending](content))
    return file


def plain(folder: Path, content: bytes = CONTENT, kind: str = ".jsonl") -> Path:
    file = folder / f"rows{kind}"
    file.write_bytes(content)
    return file


def test_every_compression_is_tested() -> None:
    assert set(PACKERS) == set(COMPRESSIONS)


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("kind", [".jsonl", ".txt", ".csv"])
def test_the_rows_are_those_of_the_plain_file(kind: str, ending: str, tmp_path: Path) -> None:
    content, apart = (CONTENT, 60) if kind == ".jsonl" else (b'text\n"a\nb"\nc\n', 2)
    file, same = packed(tmp_path, ending, content, kind), plain(tmp_path, content, kind)
    assert list(read_rows(file)) == list(read_rows(same))
    assert find_starts(file, 1) == find_starts(same, 1)
    for start in find_starts(file, apart)[0]:
        assert list(islice(read_items(file, start), apart)) == list(islice(read_items(same, start), apart))


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("breaks", ["\r", "\n", "\r\n"])
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".txt"])
def test_reading_begins_at_every_row_whatever_ends_the_lines(kind: str, breaks: str, ending: str, tmp_path: Path) -> None:
    delimiter = "\t" if kind == ".tsv" else ","
    lines = [f"text{delimiter}id", *(f"row ü{delimiter}{number}" for number in range(6)), f'"two\rlines"{delimiter}6', ""]
    file = packed(tmp_path, ending, breaks.join(lines).encode(), kind)
    rows = list(read_items(file))
    starts, count = find_starts(file, 1)
    assert len(rows) == count >= 7
    for start in starts:
        assert list(read_items(file, start)) == rows[start.row :]


@pytest.mark.parametrize("ending", PACKERS)
def test_endings_may_be_in_capitals(ending: str, tmp_path: Path) -> None:
    rows = list(read_rows(file := packed(tmp_path, ending)))
    renamed = file.rename(tmp_path / f"A.JSONL{ending.upper()}")
    assert list(read_rows(renamed)) == rows and len(rows) == 1200


@pytest.mark.parametrize("ending", PACKERS)
def test_parts_that_were_joined_are_read_to_the_end(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows.jsonl{ending}"
    file.write_bytes(PACKERS[ending](CONTENT) * 2)
    assert len(list(read_rows(file))) == 2400


@pytest.mark.parametrize("ending", PACKERS)
def test_a_later_part_whose_head_is_damaged_is_named(ending: str, tmp_path: Path) -> None:
    part, file = PACKERS[ending](CONTENT), tmp_path / f"rows.jsonl{ending}"
    damaged = bytes([part[0] ^ 1]) + part[1:]
    file.write_bytes(part + damaged)
    items = [item for _, item in read_items(file)]
    read = len(items) - 1
    assert isinstance(items[-1], Fault) and items[-1].told.startswith(f" cannot be unpacked after line {read}: ")
    assert find_starts(file, 2000)[1] == read + 1
    assert read == 1200 or ending == ".zst"  # pyarrow drops some rows in front of the damage


@pytest.mark.parametrize("ending", PACKERS)
def test_a_file_without_a_byte_is_damaged_and_nothing_packed_is_not(ending: str, tmp_path: Path) -> None:
    assert list(read_rows(packed(tmp_path, ending, b""))) == []
    file = tmp_path / f"rows.jsonl{ending}"
    file.write_bytes(b"")
    with pytest.raises(UnmaskError, match=r"cannot be unpacked after line 0: the file is empty\.$"):
        list(read_rows(file))


@pytest.mark.parametrize("ending", PACKERS)
def test_a_file_that_was_cut_names_the_line(ending: str, tmp_path: Path) -> None:
    whole = packed(tmp_path, ending)
    whole.write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(UnmaskError, match=rf"rows\.jsonl\{ending} cannot be unpacked after line \d+: "):
        list(read_rows(whole))


@pytest.mark.parametrize("ending", PACKERS)
def test_a_file_that_is_not_compressed_is_named(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows.jsonl{ending}"
    file.write_bytes(CONTENT)
    with pytest.raises(UnmaskError, match="cannot be unpacked after line 0"):
        list(read_rows(file))


def test_a_byte_that_is_no_utf8_is_named_by_its_place_in_the_unpacked_text(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=rf"is not UTF-8 text \(line 1201, byte {len(CONTENT) + 2}\)"):
        list(read_rows(packed(tmp_path, ".gz", CONTENT + b"ab\xe9c\n")))


@pytest.mark.parametrize("name", ["rows.parquet.gz", "ROWS.PARQUET.GZ"])
def test_a_compressed_parquet_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        UnmaskError, match=r"a parquet file is compressed inside, so it is not read from '\.(gz|GZ)'. Unpack it"
    ):
        list(read_rows(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a.jsonl", ".jsonl"),
        ("a.jsonl.gz", ".jsonl"),
        ("a.b.csv.zst", ".csv"),
        ("A.Csv.GZ", ".csv"),
        ("a.gz", ""),
        ("gz", ""),
        ("a.tar", ".tar"),
    ],
)
def test_the_ending_of_rows_stands_before_that_of_the_compression(name: str, ending: str) -> None:
    assert row_ending(Path(name)) == ending
