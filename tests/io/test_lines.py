"""Lines: those of Python's own text files, in bounded memory, with places that reading can go on from."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.io.compressed import BadLine
from unmask.io.lines import Lines, Start

PIECES = st.lists(st.sampled_from(["a", "ü", "\n", "\r", "\r\n", "\u2028", "\ufeff", "\0", " "]), max_size=12).map("".join)


def lines_of(content: bytes, longest: int | None = None) -> Lines:
    return Lines(io.BytesIO(content), longest)


@given(PIECES)
def test_lines_are_those_of_a_text_file(text: str) -> None:
    with io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8-sig", newline="") as same:
        expected = list(same)
    lines = lines_of(text.encode())
    assert list(lines) == expected
    assert lines.number == len(expected)


@given(PIECES)
def test_reading_goes_on_from_every_line(text: str) -> None:
    lines = lines_of(text.encode())
    places, found = [Start()], []
    for line in lines:
        found.append(line)
        places.append(Start(len(found), lines.number, lines.offset))
    for start in places:
        again = lines_of(text.encode())
        again.seek(start)
        assert list(again) == found[start.line :]


@pytest.mark.parametrize("size", [11, 3_000_000])
def test_a_line_that_is_too_long_is_named_and_the_next_one_is_read(size: int) -> None:
    lines = lines_of(b"short\n" + b"x" * size + b"\nlast", longest=10)
    assert next(lines) == "short\n"
    with pytest.raises(BadLine) as bad:
        next(lines)
    assert bad.value.reason == f", line 2: the line has {size + 1} bytes; 10 are allowed."
    assert (bad.value.line, bad.value.text) == (2, "x" * min(11, size))
    assert lines.offset == len(b"short\n") + size + 1
    assert (next(lines), lines.number) == ("last", 3)


def test_memory_holds_no_more_of_a_long_line_than_a_block(tmp_path: Path) -> None:
    import tracemalloc

    file = tmp_path / "long"
    with file.open("wb") as stream:
        stream.truncate(200_000_000)  # null bytes, which take no room on the disk
    with file.open("rb") as stream:
        tracemalloc.start()
        with pytest.raises(BadLine, match="200000000 bytes"):
            next(Lines(stream, 1000))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8_000_000
