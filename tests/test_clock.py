"""No test replaces the clock of the whole process. The event loop of a page that other tests use would read it, and sleep for hours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# a module's own name `time` may be replaced; what is in `time` is everybody's
WHOLE_PROCESS = re.compile(r"setattr\(\s*(?:time,|\"(?:[\w.]+\.)?time\.\w+\")")


def test_no_test_replaces_the_clock() -> None:
    files = [file for file in sorted(TESTS.rglob("*.py")) if file != Path(__file__)]
    assert [str(file) for file in files if WHOLE_PROCESS.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ('setattr("unmask.ui.corpus_map.time.monotonic", clock)', True),
        ('setattr("time.time", clock)', True),
        ('setattr(time, "time", clock)', True),
        ('setattr("unmask.ui.corpus_map.time", clocks)', False),
        ('setattr(terminal, "time", clocks)', False),
    ],
)
def test_a_replaced_clock_is_seen(line: str, seen: bool) -> None:
    assert bool(WHOLE_PROCESS.search(line)) is seen
