"""Calls that have to be refused: exit code 2, one sentence, and nothing written. They share a copy of this process, or have one each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.abuse.forking import Ran, command, run
from tests.proofs import ALL


@dataclass(frozen=True)
class Wrong:
    """A call that has to be refused. spoil: makes it wrong, in the folder; mend: puts the folder back."""

    name: str
    words: Sequence[str]
    spoil: Callable[[], None] = lambda: None
    mend: Callable[[], None] = lambda: None


def snapshot(here: Path) -> dict[str, bytes]:
    """Every file, but those that only say that somebody writes."""
    return {
        str(path.relative_to(here)): path.read_bytes()
        for path in sorted(here.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


def require_a_sentence(done: Ran) -> None:
    """Exit code 2, one sentence at the end, and no traceback."""
    assert done.code == 2, (done.code, done.err[-1500:])
    assert done.sentence.startswith("unmask: ") or "Error" in done.err, done.err[-1500:]
    assert "Traceback" not in done.err
    assert len(done.sentence) < 1000, f"a sentence of {len(done.sentence)} characters"


def faults(calls: Sequence[Wrong], here: Path, notes: Path) -> list[str]:
    """What is wrong with how calls are refused.

    A copy of this process costs more than a refusal. So calls of one command are made in one copy, one after another: each starts with
    the folder that the first one found. In `make test-all` each has a copy of its own.
    """
    found: list[str] = []
    for group in [[call] for call in calls] if ALL else [list(calls)]:
        told = notes / "told"
        told.unlink(missing_ok=True)
        done = run(partial(_make, group, here, notes, told), here, notes)
        answers = [json.loads(line) for line in told.read_text().splitlines()] if told.is_file() else []
        found += [f"{call.name}: {fault}"[:1500] for call, fault in zip(group, answers, strict=False) if fault]
        if len(answers) < len(group):
            found.append(f"{group[len(answers)].name}: it ended the process, exit code {done.code}: {done.err[-1500:]}")
    return found


def _make(calls: Sequence[Wrong], here: Path, notes: Path, told: Path) -> None:
    for call in calls:
        call.spoil()
        before = snapshot(here)
        done = _called(call.words, notes)
        fault = ""
        try:
            require_a_sentence(done)
            assert snapshot(here) == before, "something was written"
        except AssertionError as error:
            fault = str(error)
        call.mend()
        with told.open("a") as lines:
            lines.write(json.dumps(fault) + "\n")


def _called(words: Sequence[str], notes: Path) -> Ran:
    """Run the program in this process, whose output goes to files in `notes`."""
    before = [os.lseek(handle, 0, os.SEEK_CUR) for handle in (1, 2)]
    try:
        command(*words)()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = (
        (notes / name).read_bytes()[start:].decode("utf-8", "replace")
        for name, start in zip(("out", "err"), before, strict=True)
    )
    return Ran(code, out, err)
