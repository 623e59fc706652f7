"""Sources: the files of rows that a command is given, as files, folders and patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from unmask.errors import UnmaskError
from unmask.io.compressed import COMPRESSIONS, row_ending
from unmask.io.paths import expanded
from unmask.io.rows import COLUMNAR, READERS, has_rows, require_rows
from unmask.io.terminal import counted, say


def find_files(names: Sequence[str | Path], output: Path | None = None) -> list[Path]:
    """The files that names, folders and patterns (`data/*.jsonl`, `data/**/*.parquet`) match, sorted, none of them twice.

    A folder, named or matched, means all files of rows below it. Links, hidden files and .json files in it are left out (many .json
    files hold settings); a link or .json file that is itself named or matched is read.
    output: a file or folder that the command writes; it is left out, with everything below it. Raises UnmaskError for a name or pattern
    that nothing matches, for a named folder without a file of rows, for a folder that cannot be read, and for a file with another ending.
    """
    files: dict[str, Path] = {}
    target = None if output is None else os.path.realpath(output)
    for name in names:
        for file in _below(name):
            real = os.path.realpath(file)
            if target is None or (real != target and not real.startswith(f"{target}{os.sep}")):
                files.setdefault(real, file)
    if not files:
        raise UnmaskError(f"The only files of rows are in the output '{output}'.")
    return sorted(files.values())


def _below(name: str | Path) -> Iterable[Path]:
    path = expanded(name)
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        require_rows(path)
        return [path]
    if not glob.has_magic(str(name)):
        raise UnmaskError(f"There is no file or folder '{name}'.")
    files: list[Path] = []
    for match in sorted(Path(found) for found in glob.glob(str(path), recursive=True)):  # noqa: PTH207 (Path.glob takes no absolute pattern)
        if match.is_dir():  # here, an empty folder is not a mistake
            files += _files_and_links(match)[0]
        elif match.is_file():
            require_rows(match)
            files.append(match)
    if not files:
        raise UnmaskError(f"No file matches '{name}'.")
    return files


def _refuse(error: OSError) -> NoReturn:
    """Raise UnmaskError for a folder that cannot be read: its files would be missing silently."""
    raise UnmaskError(
        f"'{error.filename}' cannot be read: {error.strerror}. Allow it, or give only what can be read."
    ) from error


def _in_folder(folder: Path) -> list[Path]:
    files, links = _files_and_links(folder)
    if not files:
        hint = ""
        if links:  # a snapshot of the Hugging Face hub, say: what its links lead to has no ending
            pattern = f"{folder}/**/*{links[0].suffix}"
            hint = f" It holds links to files, which are not followed. Give them by name, or by a quoted pattern: '{pattern}'."
        elif any(folder.rglob("*.json")):
            hint = (
                f" Its .json files may be settings. Name the files that hold rows, or by a quoted pattern: '{folder}/*.json'."
            )
        raise UnmaskError(
            f"'{folder}' holds no file of rows. Such files end with {', '.join(READERS)}; all but {', '.join(COLUMNAR)} may be compressed "
            f"({', '.join(COMPRESSIONS)}).{hint}"
        )
    return files


def _files_and_links(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of rows below a folder, and the links to such files."""
    files, links, json_files = list[Path](), list[Path](), list[Path]()
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            if has_rows(path) and path.is_file():
                (links if path.is_symlink() else json_files if row_ending(path) == ".json" else files).append(path)
    if files and json_files:
        say(
            f"{folder}: {counted(len(json_files), '.json file')} left out, such as {json_files[0]}. Name them if they hold rows."
        )
    return files, links
