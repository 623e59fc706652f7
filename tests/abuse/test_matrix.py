"""The matrix of abuse: every command against bad input, bad outputs, a full disk and a second run.

Allowed is the right answer, or exit code 2 with one sentence and nothing changed. Kills and power cuts are in test_power.py, outputs
that are inputs in tests/cli/test_every_command.py.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.examples import ALIKE, EXAMPLES, WRITERS
from tests.abuse.forking import command, run, start, wait
from tests.abuse.recovery import Case, case_of
from tests.abuse.refusals import Wrong, faults, require_a_sentence, snapshot
from tests.proofs import ALL

Command = tuple[str, ...]
Rows = list[dict[str, Any]]

SLOW = set() if ALL else {*ALIKE, ("recommend",)}
"""Commands of which `make test` tries only what they refuse."""
READERS = [path for path, example in EXAMPLES.items() if example.source and example.column]
STRANGE = [
    "[bold]x[/bold] [/] [INST] {text} [link=file:///]y[/link]",
    "<script>alert(1)</script> <img src=x onerror=alert(1)> &amp; ]]>",
    "../../../etc/passwd",
    "nul\0 bell\x07 escape\x1b[31m red\x1b[0m",
    "emoji \U0001f600\U0001f468‍\U0001f469‍\U0001f467 combined é rtl ‮abc",
    "line one\nline two\r\nline three separator",
    "'; DROP TABLE x; -- \" ` $(ls) %s {0} {{}}",
    "",
    "   ",
]


def read(file: Path) -> Rows:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write(file: Path, rows: Rows) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def as_text(row: dict[str, Any], column: str, text: str) -> dict[str, Any]:
    """A row that says another text; a list of words stays a list."""
    return {**row, column: [text, *row[column][1:]] if isinstance(row[column], list) else text}


def strange_texts(file: Path, column: str) -> None:
    rows = read(file)
    write(file, [as_text(row, column, STRANGE[n % len(STRANGE)]) for n, row in enumerate(rows)])


def not_utf8(file: Path, column: str) -> None:
    first, value, rest = file.read_bytes().partition(f'"{column}": '.encode())
    file.write_bytes(first + value + rest.replace(b'"', b'"\xff\xfe', 1))


def no_column(file: Path, column: str) -> None:
    write(file, [{key: value for key, value in row.items() if key != column} for row in read(file)])


def wrong_type(file: Path, column: str) -> None:
    rows = read(file)
    write(file, [*rows[:-1], {**rows[-1], column: {"a": [1]}}])


def gone(file: Path, _: str) -> None:
    file.unlink()


REFUSED: list[Callable[[Path, str], None]] = [not_utf8, no_column, wrong_type, gone]


@pytest.mark.sample(4)
@pytest.mark.parametrize("path", READERS, ids=" ".join)
def test_bad_input_is_refused_in_a_sentence(path: Command, here: Path, tmp_path: Path) -> None:
    example = EXAMPLES[path]
    source, words = here / str(example.source), example.line(path)
    content = source.read_bytes()

    def mend() -> None:
        source.write_bytes(content)

    calls = [Wrong(abuse.__name__, words, partial(abuse, source, str(example.column)), mend) for abuse in REFUSED]
    found = faults(calls, here, tmp_path / "notes")
    assert not found, "\n".join(found)


@pytest.mark.sample(5)
@pytest.mark.parametrize("path", [path for path in READERS if path not in SLOW], ids=" ".join)
def test_strange_input_is_taken_or_refused(path: Command, here: Path, tmp_path: Path) -> None:
    example = EXAMPLES[path]
    strange_texts(here / str(example.source), str(example.column))
    before = snapshot(here)
    done = run(command(*example.line(path)), here, tmp_path / "notes")
    assert "Traceback" not in done.err, done.err[-1500:]
    assert "\x1b[31m" not in done.out + done.err, "a text's control characters reached the terminal"
    if done.code == 0:
        assert done.out.strip() or example.output
        return
    require_a_sentence(done)
    assert snapshot(here) == before, "something was written"


def measured_case(path: Command, furnished: Path, tmp_path: Path) -> Case:
    """A command that ran undisturbed."""
    case = case_of(path, furnished, tmp_path)
    case.measure()
    return case


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", [path for path in WRITERS if path not in SLOW], ids=" ".join)
def test_a_full_disk_is_told_and_the_same_command_goes_on(path: Command, furnished: Path, tmp_path: Path) -> None:
    case = measured_case(path, furnished, tmp_path)
    work = case.work

    def cramped() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        command(*EXAMPLES[path].line(path))()  # figures are drawn: a sketch might be small enough

    case.begin()
    case.work = cramped
    done = case.run()
    case.work = work
    if done.code != 0:
        assert "Traceback" not in done.err, done.err[-1500:]
        assert done.code == 2, done.err
        assert "File too large" in done.err or "the disk may be full" in done.err, done.err[-500:]
    after = case.run()
    assert after.code == 0 or done.code == 0, after.err
    assert case.difference("after a full disk") is None


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", [path for path in WRITERS if path not in SLOW], ids=" ".join)
def test_two_at_once_do_not_disturb_each_other(path: Command, furnished: Path, tmp_path: Path) -> None:
    case = measured_case(path, furnished, tmp_path)
    case.begin()
    notes = [tmp_path / f"notes-{number}" for number in range(2)]
    copies = [start(case.work, case.here, place) for place in notes]
    ended = [wait(copy, place) for copy, place in zip(copies, notes, strict=True)]
    assert 0 in [one.code for one in ended], [one.err[-500:] for one in ended]
    for one in ended:
        if one.code != 0:
            require_a_sentence(one)
    assert case.difference("two at once") is None
