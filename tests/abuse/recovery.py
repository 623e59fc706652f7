"""Cut a command at one of its writes, run it again, and compare what it leaves with what an undisturbed run leaves."""

from __future__ import annotations

import fnmatch
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.abuse.examples import EXAMPLES
from tests.abuse.forking import Ran, command, run
from tests.abuse.power import CUT, LOSSES, Disk, Loss
from tests.proofs import ALL

FIRST, MORE = 20, 20
"""Cuts in a whole sweep: so many from the first on, and so many of the others."""
UNTOLD = ("*.lock", ".lock", ".unmask-made", "events.out.tfevents*", "*.unmask-part", "*.checked")
"""Files that tell nothing of a result."""


@dataclass
class Case:
    """Work in a folder that it starts from. timed: patterns of files that tell seconds, and differ from run to run."""

    name: str
    work: Callable[[], object]
    start: Path
    place: Path
    timed: tuple[str, ...] = ()
    operations: int = 0
    undisturbed: dict[str, bytes] = field(default_factory=dict)
    again: Ran | None = None

    @property
    def here(self) -> Path:
        return self.place / "here"

    def begin(self) -> None:
        """Put the folder back to the start."""
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.start, self.here, symlinks=True)

    def run(self, cut: int | None = None, loss: Loss = "power") -> Ran:
        disk = Disk(self.here, self.place / "notes" / "disk", loss)
        return run(self.work, self.here, self.place / "notes", disk, cut)

    def measure(self) -> None:
        """Run undisturbed, and then once more over what that left. The answer lies beside the start, for other tests."""
        kept = self.start.parent / f"{self.name}.measured"
        if not kept.is_file():
            self._measure()
            scratch = self.place / "measured"
            scratch.write_bytes(pickle.dumps((self.operations, self.undisturbed, self.again)))
            scratch.replace(kept)
        self.operations, self.undisturbed, self.again = pickle.loads(kept.read_bytes())

    def _measure(self) -> None:
        self.begin()
        done = self.run()
        assert done.code == 0, done.err
        self.operations = int((self.place / "notes" / "disk").read_text())
        self.undisturbed = self.state()
        self.again = self.run()
        assert self.again.code in (0, 2), self.again.err
        assert self.state() == self.undisturbed, "the same command once more changes what it left"

    def state(self) -> dict[str, bytes]:
        """What the folder holds, without what tells nothing of a result."""
        found = {}
        for path in sorted(self.here.rglob("*")):
            name = str(path.relative_to(self.here))
            if path.is_file() and not any(fnmatch.fnmatch(path.name, pattern) for pattern in UNTOLD):
                timed = any(fnmatch.fnmatch(path.name, pattern) for pattern in self.timed)
                if not timed:
                    found[name] = _content(path)
        return found

    def recovers(self, cut: int, loss: Loss) -> str | None:
        """Cut the work at an operation and do it again; what went wrong, if anything did."""
        self.begin()
        died = self.run(cut, loss)
        where = f"{self.name}: {loss} lost before operation {cut} {(self.place / 'notes' / 'disk').read_text()}"
        if died.code != CUT:
            return f"{where}: not reached, exit code {died.code}\n{died.err}"
        after = self.run()
        assert self.again is not None
        complete = after.code == self.again.code and after.sentence == self.again.sentence
        if after.code != 0 and not complete:
            return f"{where}: the command cannot go on, exit code {after.code}\n{after.err}"
        return self.difference(where)

    def difference(self, where: str) -> str | None:
        """How what the folder holds differs from what an undisturbed run leaves."""
        state = self.state()
        if state == self.undisturbed:
            return None
        missing, more = self.undisturbed.keys() - state.keys(), state.keys() - self.undisturbed.keys()
        changed = [name for name in state.keys() & self.undisturbed.keys() if state[name] != self.undisturbed[name]]
        return f"{where}: missing {sorted(missing)}, too many {sorted(more)}, changed {sorted(changed)}"


def case_of(path: tuple[str, ...], start: Path, place: Path) -> Case:
    """The case of a command's example, measured, with sketched figures."""
    example = EXAMPLES[path]
    case = Case(" ".join(path), command(*example.line(path), drawn=False), start, place, example.timed)
    case.measure()
    return case


def cuts(operations: int, seed: str) -> list[tuple[int, Loss]]:
    """Operations to cut at: three, with losses by turns; in `make test-all`, up to 40 with every loss."""
    chance = random.Random(seed)
    if not ALL:
        chosen = sorted(chance.sample(range(1, operations + 1), min(3, operations)))
        return [(cut, LOSSES[number % 2]) for number, cut in enumerate(chosen)]
    places = list(range(1, operations + 1))
    if operations > FIRST + MORE:
        places = [*places[:FIRST], *sorted(chance.sample(places[FIRST:], MORE))]
    return [(cut, loss) for cut in places for loss in LOSSES]


def _content(file: Path) -> bytes:
    """What a file says: of a list of results, the lines in whatever order they were measured."""
    content = file.read_bytes()
    return b"\n".join(sorted(set(content.splitlines()))) if file.name in ("results.jsonl", "failures.jsonl") else content
