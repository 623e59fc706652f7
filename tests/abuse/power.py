"""A disk for tests that loses what was not synced.

A `Disk` watches one folder in a process that is a copy of the tests (forking.py). It counts the operations that change files or make
changes durable, and ends the process just before one of them. Then it leaves in the folder what a disk may hold after a power cut:

    killed    everything: the process was killed and the machine keeps running
    power     only the names that a folder had at its last fsync, and the content that files had at theirs: what POSIX promises
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

Loss = Literal["killed", "power"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
CUT = 86
"""Exit code of a process that was cut."""
_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
Names = dict[str, tuple[int, str]]  # name -> inode and kind: "file", "folder" or the target of a link


@dataclass
class Disk:
    """What of a folder is durable. notes: a file that receives the number of operations."""

    root: Path
    notes: Path
    loss: Loss = "power"
    operations: int = 0
    cut: int | None = None
    _content: dict[int, bytes] = field(default_factory=dict)
    _names: dict[int, Names] = field(default_factory=dict)
    _held: list[int] = field(default_factory=list)
    _process: int = 0
    _watching: bool = False

    def attach(self, cut: int | None = None) -> None:
        """Take what the folder holds as durable, and watch this process from now on."""
        self.root, self.cut, self._process = Path(os.path.realpath(self.root)), cut, os.getpid()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for path in (self.root, *self.root.rglob("*")):
            if not path.is_symlink() and (path.is_dir() or path.is_file()):
                self._keep(os.open(path, os.O_RDONLY))
        self._patch_sync()
        sys.addaudithook(self._audit)
        self._watching = True

    def detach(self) -> None:
        """Note how many operations there were."""
        self._watching = False
        self.notes.write_text(str(self.operations))

    def _patch_sync(self) -> None:
        for name in ("fsync", "fdatasync"):
            original = getattr(os, name)

            def synced(handle: Any, original: Any = original) -> None:
                number = handle if isinstance(handle, int) else handle.fileno()
                self._step("fsync", f"/proc/self/fd/{number}")
                original(number)
                if self._ours():
                    self._watching = False
                    self._keep(os.dup(number))
                    self._watching = True

            setattr(os, name, synced)
        import unmask.io.files as files

        exchange = files._exchange

        def exchanged(first: Path, second: Path) -> bool:
            self._step("exchange", str(first))
            return exchange(first, second)

        files._exchange = exchanged

    def _ours(self) -> bool:
        return self._watching and os.getpid() == self._process

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if not self._watching or (event not in _CHANGES and event != "open"):
            return
        if event == "open":
            if isinstance(given[0], int) or not (isinstance(given[2], int) and given[2] & _WRITES):
                return
            self._step(event, given[0])
        else:
            where = next((one for one in reversed(given) if isinstance(one, int) and one >= 0), None)
            folder = f"/proc/self/fd/{where}/" if where is not None and event in ("os.remove", "os.rmdir") else ""
            self._step(event, folder + os.fsdecode(given[0]) if folder else given[0])

    def _step(self, event: str, path: Any) -> None:
        """Count an operation on a file of the folder, and die at the one that was chosen."""
        if not self._ours() or isinstance(path, int):
            return
        place = os.fsdecode(path)
        self._watching = False
        real = os.path.realpath(place if event == "fsync" else Path(place).parent)
        self._watching = True
        if not (real == str(self.root) or real.startswith(f"{self.root}{os.sep}")):
            return
        self.operations += 1
        if self.operations == self.cut:
            self._watching = False
            self.notes.write_text(json.dumps([event, place]))
            self._lose()
            os._exit(CUT)

    def _keep(self, handle: int) -> None:
        """Note what is durable of an open file or folder; the open handle keeps its inode from being used again."""
        self._held.append(handle)
        state = os.fstat(handle)
        if stat.S_ISDIR(state.st_mode):
            self._names[state.st_ino] = _names(Path(f"/proc/self/fd/{handle}"))
        elif stat.S_ISREG(state.st_mode):
            self._content[state.st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def _lose(self) -> None:
        if self.loss == "killed":
            return
        kept = self.root.with_name(f"{self.root.name}-survivors")
        shutil.rmtree(kept, ignore_errors=True)
        self._rebuild(self.root.stat().st_ino, kept)
        shutil.rmtree(self.root)
        kept.rename(self.root)

    def _rebuild(self, folder: int, target: Path) -> None:
        target.mkdir()
        for name, (inode, kind) in self._names.get(folder, {}).items():
            if kind == "folder":
                self._rebuild(inode, target / name)
            elif kind == "file":
                (target / name).write_bytes(self._content.get(inode, b""))
            else:
                (target / name).symlink_to(kind)


def _names(folder: Path) -> Names:
    found: Names = {}
    for entry in os.scandir(folder):
        kind = str(Path(entry.path).readlink()) if entry.is_symlink() else "folder" if entry.is_dir() else "file"
        found[entry.name] = (entry.inode(), kind)
    return found
