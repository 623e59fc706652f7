"""Lines of a csv: a bad line costs its own record, and no text is taken for rows that are not there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from unmask.io.formats import Fault
from unmask.io.lines import not_utf8
from unmask.io.rows import find_starts, read_items

HEAD, TAIL = b"text,n\nfirst,1\n", b"last,9\n"


def told(folder: Path, middle: bytes, longest: int | None = 100) -> list[str]:
    """What is read of a file with this in its middle. Reading begins anywhere with the same result."""
    file = folder / "a.csv"
    file.write_bytes(HEAD + middle + TAIL)
    items = list(read_items(file, longest=longest))
    starts, rows = find_starts(file, 1, longest=longest)
    assert rows == len(items)
    assert [next(read_items(file, start, longest=longest)) for start in starts] == items
    return [item.reason if isinstance(item, Fault) else item["text"] for _, item in items]


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (b'"begins\n\xff\nb,3\nc",2\n', not_utf8(4, 23)),
        (b"x" * 200 + b" screen,2\n", ", line 3: a field has more than 100 characters: is a quote left open?"),
        (b'"b"x,"begins\nb,3\nends"\n', ", line 3: ',' expected after '\"'."),
    ],
)
def test_a_bad_line_in_a_quoted_field_costs_its_record_alone(middle: bytes, reason: str, tmp_path: Path) -> None:
    assert told(tmp_path, middle) == ["first", reason, "last"]


def test_random_tables_with_bad_lines_have_no_invented_rows(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(200):
        fields = ["".join(chance.choices(["a", ",", '""', "\n", "\r\n", "é"], k=chance.randrange(1, 20))) for _ in range(6)]
        rows = [f'"{number} {field}",{number}\n'.encode() for number, field in enumerate(fields)]
        bad = chance.randrange(6)
        place = chance.randrange(1, rows[bad].rindex(b'"'))
        while not place >= 1 or rows[bad][place - 1 : place + 1] == b'""' or rows[bad][place] >= 0x80:
            place -= 1
        extra = chance.choice([b"\xff", b"y" * 120])
        rows[bad] = rows[bad][: max(1, place)] + extra + rows[bad][max(1, place) :]
        file = tmp_path / "a.csv"
        file.write_bytes(b"text,n\n" + b"".join(rows))
        found = [item if isinstance(item, Fault) else item["text"][0] for _, item in read_items(file, longest=100)]
        assert [one for one in found if not isinstance(one, Fault)] == [str(number) for number in range(6) if number != bad]
        assert isinstance(found[bad], Fault) and len(found) == 6
