"""Records: what is written is read again, a damaged one is missing, and another content is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.io.records import Record
from unmask.io.seals import write_record


class Walk(Record):
    steps: int
    note: str | None = None


def test_a_record_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "walk.json"
    assert Walk.read(file) is None
    Walk(steps=3, note="é").write(file)
    assert Walk.read(file) == Walk(steps=3, note="é")
    write_record(file, {"steps": 3, "of a later version": 1})
    assert Walk.read(file) == Walk(steps=3)


@pytest.mark.parametrize(
    ("content", "problem"), [({}, "steps: it is missing"), ({"steps": "three"}, "steps: Input should be a")]
)
def test_another_content_is_refused_in_one_sentence(content: dict[str, str], problem: str, tmp_path: Path) -> None:
    write_record(tmp_path / "walk.json", content)
    with pytest.raises(UnmaskError, match=rf"walk.json' is not what this version of unmask wrote: {problem}") as told:
        Walk.read(tmp_path / "walk.json")
    assert "\n" not in str(told.value)
