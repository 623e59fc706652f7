"""Commands against bad and strange input, a full disk and a second run at the same time.

Allowed is the right answer, or exit code 2 with one sentence and nothing changed. Power cuts are in test_power.py.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.examples import EXAMPLES, READERS, WRITERS
from tests.abuse.forking import command, run, start, wait
from tests.abuse.recovery import case_of
from tests.in_process import run_program

Command = tuple[str, ...]
Rows = list[dict[str, Any]]

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


def strange_texts(file: Path, column: str) -> None:
    rows = read(file)
    for number, row in enumerate(rows):
        text = STRANGE[number % len(STRANGE)]
        row[column] = [text, *row[column][1:]] if isinstance(row[column], list) else text
    write(file, rows)


def not_utf8(file: Path, column: str) -> None:
    first, value, rest = file.read_bytes().partition(f'"{column}": '.encode())
    file.write_bytes(first + value + rest.replace(b'"', b'"\xff\xfe', 1))


def no_column(file: Path, column: str) -> None:
    write(file, [{key: value for key, value in row.items() if key != column} for row in read(file)])


def wrong_type(file: Path, column: str) -> None:
    rows = read(file)
    write(file, [*rows[:-1], {**rows[-1], column: {"a": [1]}}])


def snapshot(here: Path) -> dict[str, bytes]:
    """Every file without locks."""
    files = sorted(path for path in here.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(here)): path.read_bytes() for path in files}


def require_a_sentence(code: int, error: str) -> None:
    """Exit code 2, and one sentence at the end of standard error."""
    last = (error.strip().splitlines() or [""])[-1]
    assert code == 2 and "Traceback" not in error, (code, error[-1500:])
    assert last.startswith("unmask: ") and len(last) < 1000, last


@pytest.mark.sample(7)
@pytest.mark.parametrize("path", READERS, ids=" ".join)
@pytest.mark.parametrize("spoil", [not_utf8, no_column, wrong_type, Path.unlink], ids=lambda spoil: spoil.__name__)
def test_bad_input_is_refused_in_a_sentence(
    spoil: Any, path: Command, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    example = EXAMPLES[path]
    spoil(here / example.source, *([] if spoil is Path.unlink else [example.column]))
    before = snapshot(here)
    monkeypatch.chdir(here)
    code, _, error = run_program(example.line(path), monkeypatch, capfd)
    require_a_sentence(code, error)
    assert snapshot(here) == before, "something was written"


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", READERS, ids=" ".join)
def test_strange_input_is_taken_or_refused(path: Command, here: Path, tmp_path: Path) -> None:
    example = EXAMPLES[path]
    strange_texts(here / example.source, example.column)
    before = snapshot(here)
    done = run(command(*example.line(path)), here, tmp_path / "notes")
    assert "Traceback" not in done.err, done.err[-1500:]
    assert "\x1b[31m" not in done.out + done.err, "a text's control characters reached the terminal"
    if done.code == 0:
        assert done.out.strip() or example.output
        return
    require_a_sentence(done.code, done.err)
    assert snapshot(here) == before, "something was written"


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", WRITERS, ids=" ".join)
def test_a_full_disk_is_reported_and_the_same_command_continues(path: Command, furnished: Path, tmp_path: Path) -> None:
    case = case_of(path, furnished, tmp_path)
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
@pytest.mark.parametrize("path", WRITERS, ids=" ".join)
def test_two_at_once_do_not_disturb_each_other(path: Command, furnished: Path, tmp_path: Path) -> None:
    case = case_of(path, furnished, tmp_path)
    case.begin()
    folders = [tmp_path / f"notes-{number}" for number in range(2)]
    processes = [start(case.work, case.here, notes) for notes in folders]
    results = [wait(process, notes) for process, notes in zip(processes, folders, strict=True)]
    assert 0 in [result.code for result in results], [result.err[-500:] for result in results]
    for result in results:
        if result.code != 0:
            require_a_sentence(result.code, result.err)
    assert case.difference("two at once") is None
