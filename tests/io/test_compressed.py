"""Compressed files: their rows are those of the plain file, and damage is named."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.errors import UnmaskError
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


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("breaks", ["\r", "\n"])
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".txt"])
def test_reading_begins_at_every_row_whatever_ends_the_lines(kind: str, breaks: str, ending: str, tmp_path: Path) -> None:
    delimiter = "\t" if kind == ".tsv" else ","
    lines = [f"text{delimiter}id", *(f"row ü{delimiter}{number}" for number in range(6)), f'"two\rlines"{delimiter}6', ""]
    content = breaks.join(lines).encode()
    file = packed(tmp_path, ending, content, kind)
    rows = list(read_items(file))
    starts, count = find_starts(file, 1)
    assert len(rows) == count >= 7 and rows == list(read_items(plain(tmp_path, content, kind)))
    for start in starts:
        assert list(read_items(file, start)) == rows[start.row :]


@pytest.mark.parametrize("ending", PACKERS)
def test_parts_that_were_joined_are_read_to_the_end(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows.jsonl{ending}"
    file.write_bytes(PACKERS[ending](CONTENT) * 2)
    assert len(list(read_rows(file))) == 2400


@pytest.mark.parametrize("ending", PACKERS)
def test_a_file_that_was_cut_names_the_line(ending: str, tmp_path: Path) -> None:
    whole = packed(tmp_path, ending)
    whole.write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(UnmaskError, match=rf"rows\.jsonl\{ending} cannot be unpacked after line \d+: "):
        list(read_rows(whole))
