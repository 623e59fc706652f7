"""Files: written whole and durable or not at all, held by one run at a time, and never on top of an input."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.paths import expanded

_SCRATCH = "unmask-part"
_LOCK = ".lock"
_MARKER = ".unmask-made"
_FULL = (errno.EIO, errno.EFBIG, errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomic(file: Path) -> Iterator[Path]:
    """A scratch file that replaces `file` when the block ends well, and vanishes when it fails.

    The content and then the folder are synced, so that a power cut leaves the old file or the new one. A link is
    followed. The mode is what the umask gives a new file.
    """
    file = _real(file)
    make_folder(file.parent)
    scratch = _scratch_beside(file)
    with name_in_errors(file), _claim(scratch):
        os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = stat.S_IMODE(scratch.stat().st_mode)
        try:
            yield scratch
            scratch.chmod(mode)  # some writers replace the file by one that only its owner may read
            sync(scratch)
            scratch.replace(file)
            sync(file.parent)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path, replaces: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """A scratch folder that takes the place of `folder` when the block ends well, and vanishes when it fails.

    replaces: says whether an existing folder may be replaced; the new one is durable before the old one goes. Raises
    UnmaskError, before the block runs and again after it, if `folder` exists with content and may not be replaced.
    """
    folder = _real(folder)
    _is_replaced(folder, replaces)
    make_folder(folder.parent)
    scratch = _scratch_beside(folder)
    with name_in_errors(folder), _claim(scratch):
        scratch.mkdir()
        try:
            yield scratch
            mode = stat.S_IMODE(scratch.stat().st_mode)
            for path in scratch.rglob("*"):  # some writers remove the permissions of other users
                if not path.is_symlink():
                    path.chmod(mode if path.is_dir() else mode & 0o666)
            sync_tree(scratch)
            _put_in_place(scratch, folder, _is_replaced(folder, replaces))
            sync(folder.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Hold a folder that grows in place for one run. Raises UnmaskError if another run holds it.

    A block that fails before it has written anything leaves nothing: no lock, no marker, and no folder that was not there before.
    """
    new = [new_folder for new_folder in (folder, *folder.parents) if not new_folder.exists()]
    before = set() if new else set(folder.iterdir())
    make_folder(folder)
    with _hold(folder / _LOCK, folder):
        patterns = (f"{depth}.*.{_SCRATCH}{lock}" for depth in ("", "*/", "*/*/", "*/*/*/") for lock in ("", _LOCK))
        _sweep(path for pattern in patterns for path in folder.glob(pattern))
        try:
            yield
        except BaseException:
            _leave_nothing(folder, before, new)
            raise


@contextmanager
def only_writer_of(output: Path) -> Iterator[None]:
    """Hold a file or folder that appears whole for one run. Raises UnmaskError if another run holds it."""
    output = _real(output)
    make_folder(output.parent)
    with _hold(output.with_name(f".{output.name}.lock"), output):
        _sweep(path for path in output.parent.iterdir() if _is_scratch_of(path, output))
        yield


def check_output(output: Path, inputs: Iterable[str | Path | None] = (), *, folder: bool = False) -> None:
    """Raise UnmaskError for an output that is one of the inputs or that cannot be written; to be called before any work.

    Links and hard links are followed. An input that does not exist here (a hub id, a bundled name) is passed over.
    """
    target = _real(output)
    for source in inputs:
        path = None if source is None else _real(Path(source))
        if path is not None and (path == target or (path.exists() and target.exists() and path.samefile(target))):
            raise UnmaskError(f"'{output}' is an input, and the output would overwrite it: give another output.")
    if folder and target.exists() and not target.is_dir():
        raise UnmaskError(f"'{output}' is a file, and the output is a folder: give another name.")
    if not folder and target.exists() and not target.is_file():
        kind = "folder" if target.is_dir() else "device"
        raise UnmaskError(f"'{output}' is a {kind}, and the output is a file: give a file name.")
    existing = next(parent for parent in ((target, *target.parents) if folder else target.parents) if parent.exists())
    if not existing.is_dir():
        raise UnmaskError(f"'{output}' cannot be written: '{existing}' is a file, not a folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UnmaskError(f"'{output}' cannot be written: missing permission to write in '{existing}'.")


def inside(folder: Path, name: str) -> Path:
    """folder / name. Raises UnmaskError for a name that is not a plain name of one file or folder in it."""
    if name in ("", ".", "..") or any(char in name for char in "/\\\0"):
        raise UnmaskError(f"{name!r} is not a plain file name, so it is not looked for in '{folder}'.")
    return folder / name


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def make_own(folder: Path) -> None:
    """Create a folder that this program may remove: it carries a marker."""
    if not (folder / _MARKER).is_file():
        make_folder(folder)
        (folder / _MARKER).touch()


def is_own(folder: Path) -> bool:
    """Whether `make_own` created a folder, or may create it: no file of anybody else is in it."""
    return (folder / _MARKER).is_file() or not folder.is_dir() or not any(folder.iterdir())


def remove_own(folder: Path) -> None:
    """Remove a folder that `make_own` created; leave any other folder alone."""
    if (folder / _MARKER).is_file():
        remove(folder)


def refuse_foreign(file: Path, marks: Iterable[str], give: str = "folder") -> None:
    """Raise UnmaskError if a file that is about to be replaced has content without any of the marks that ours has.

    give: the user's choice that causes the conflict.
    """
    if file.is_dir():
        raise UnmaskError(f"'{file}' is a folder, and a file of that name is written there: give another {give}.")
    if file.is_file() and (content := file.read_bytes()) and not any(mark.encode() in content for mark in marks):
        raise UnmaskError(f"'{file}' was not written by unmask, so it is not overwritten: give another {give}.")


def remove(path: Path) -> None:
    """Remove a file or a folder that this program made, so that a kill never leaves half of it under its name."""
    gone = _scratch_beside(path)
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    sync(path.parent)
    _delete(gone)


def remove_with_scratch(path: Path) -> None:
    """Remove a path that this program made, and what killed runs left of writing or removing it. The caller holds its lock."""
    remove(path)
    if path.parent.is_dir():
        _sweep(sibling for sibling in path.parent.iterdir() if _is_scratch_of(sibling, path))


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if path.is_file():  # some file systems cannot sync a folder; a file that cannot be synced is a failure
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Sync every file and folder below a folder, and the folder itself."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            sync(path)


def write_json(file: Path, content: Any) -> None:
    """Write JSON so that the file appears whole."""
    with atomic(file) as scratch:
        scratch.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def append_line(file: Path, line: str) -> None:
    """Add a line to a file, durably. What a kill left of the line before is cut off first."""
    is_new = not file.exists()
    with file.open("a+b") as lines:
        # only the writer may cut it off: a reader may see a line that is being written
        size = lines.seek(0, os.SEEK_END)
        lines.seek(max(0, size - 1))
        if size and lines.read(1) != b"\n":
            lines.seek(0)
            lines.truncate(lines.read().rfind(b"\n") + 1)
        lines.write(line.encode() + b"\n")
        lines.flush()
        os.fsync(lines.fileno())
    if is_new:
        sync(file.parent)


def _leave_nothing(folder: Path, before: set[Path], new: list[Path]) -> None:
    """Remove locks and our marker from a folder if a run has put nothing else there, and then the new folders. before: what was there."""
    with suppress(OSError):  # the folder is gone, or somebody has put something there meanwhile
        remaining = set(folder.iterdir()) - before
        if all(file.name == _MARKER or (file.name.startswith(".") and file.name.endswith(_LOCK)) for file in remaining):
            for file in sorted(remaining, key=lambda file: file.name == _LOCK):  # the lock that this run holds goes last
                file.unlink()
            for path in new:
                path.rmdir()


def _real(path: Path) -> Path:
    return Path(os.path.realpath(expanded(path)))


def _is_replaced(folder: Path, replaces: Callable[[Path], bool] | None) -> bool:
    """Whether a folder has content that a new folder replaces. Raises UnmaskError if it may not be replaced."""
    replacing = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if replacing and not (replaces and folder.is_dir() and replaces(folder)):
        raise UnmaskError(f"'{folder}' exists, so it is not overwritten: give another folder.")
    return replacing


def _scratch_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{_SCRATCH}")


def _is_scratch_of(path: Path, output: Path) -> bool:
    """Whether a path is scratch of an output, or the lock of such scratch."""
    return re.fullmatch(rf"\.{re.escape(output.name)}\.[0-9a-f]{{8}}\.{_SCRATCH}({_LOCK})?", path.name) is not None


def _lock_of(scratch: Path) -> Path:
    return scratch.with_name(f"{scratch.name}{_LOCK}")


@contextmanager
def _claim(scratch: Path, timeout: float = -1) -> Iterator[None]:
    """Hold scratch, so that no other run takes it for the leftover of a killed run. Raises OSError if another run still holds it then.

    The lock is a separate file, since some writers put another file in the place of the scratch itself.
    """
    from filelock import FileLock

    lock = _lock_of(scratch)
    holder = FileLock(lock, timeout=timeout, thread_local=False)
    holder.acquire()
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # while it is held: whoever waits for it then makes a new one
        with suppress(OSError):
            holder.release()


def _sweep(paths: Iterable[Path]) -> None:
    """Remove scratch files and folders that no run holds any more, and their locks. paths: of scratch, or of its locks."""
    for scratch in sorted({path.with_name(path.name.removesuffix(_LOCK)) for path in paths}):
        # an older version or a removal left scratch without a lock; a full disk may have no room for a new one
        with suppress(OSError), _claim(scratch, timeout=0) if _lock_of(scratch).exists() else nullcontext():
            _delete(scratch)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _put_in_place(scratch: Path, folder: Path, replacing: bool) -> None:
    if not replacing:
        scratch.replace(folder)
        return
    if not _exchange(scratch, folder):
        old = _scratch_beside(folder)
        with _claim(old):
            folder.replace(old)
            try:
                scratch.replace(folder)
            except BaseException:
                old.replace(folder)
                raise
        scratch = old
    sync(folder.parent)
    shutil.rmtree(scratch, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step, so that the name is never without a folder. False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and renameat2(cwd, os.fsencode(first), cwd, os.fsencode(second), exchange) == 0


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Name the file in an error of the system: a full disk does not say where, and some libraries do not even say that it is full."""
    try:
        yield
    except OSError as error:
        if error.errno:
            error.filename = error.filename or str(path)
        raise
    except Exception as error:
        if match := re.search(r"\(os error (\d+)\)", str(error)):  # safetensors
            number = int(match[1])
            if number in _FULL:
                raise OSError(number, os.strerror(number), str(path)) from error
        if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):  # torch.save
            raise UnmaskError(f"'{path}' cannot be written: the disk may be full.") from error
        raise


@contextmanager
def _hold(lock: Path, output: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    holder = FileLock(lock, timeout=0)
    try:
        holder.acquire()
    except Timeout:
        raise UnmaskError(f"Another run is writing to '{output}'.") from None
    try:
        yield
    finally:
        with suppress(OSError):
            holder.release()
