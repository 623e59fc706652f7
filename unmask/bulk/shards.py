"""Shards: a corpus, divided into pieces that are embedded one by one. A shard is one file, or a slice of it if it has many rows.

The division is recorded. A file with the same size and modification time is not read again, and one with other content is divided again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from unmask.bulk.job import LONGEST, EmbedJob
from unmask.errors import UnmaskError
from unmask.io.formats import Fault
from unmask.io.lines import Start
from unmask.io.records import Record
from unmask.io.rows import find_starts, read_items
from unmask.io.seals import hash_file
from unmask.io.terminal import counted

_CHECKED_ROWS = 100  # in which a column has to occur
_NAME = 80  # characters of a file's name in a shard's name
_DIGITS = 16  # of a hash of its path: with eight, a hundred thousand files of one name would hardly all differ
_SHARD_NAME = re.compile(r"[\w.-]*-[0-9a-f]{16}-\d{5,}", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """Some rows of a file. name: of its output; file: as the user gave it; size, changed, sha256: of the file when it was read."""

    name: str
    file: str
    size: int
    changed: int
    sha256: str
    start: Start
    rows: int

    def require_unchanged(self) -> None:
        """Raise UnmaskError if the file is another one than when it was read."""
        if _state(Path(self.file)) != (self.size, self.changed):
            raise UnmaskError(f"{self.file} changed while it was embedded. Run the command again: the other files are kept.")


class SourceFile(BaseModel):
    """The division of a file. starts: row, line and byte where each shard begins."""

    model_config = ConfigDict(frozen=True)
    file: str
    size: int
    changed: int
    sha256: str
    rows: int
    starts: list[tuple[int, int, int]]

    def shards(self) -> list[Shard]:
        """The shards of the file, in their order."""
        ends = [*(start[0] for start in self.starts), self.rows][1:]
        return [
            Shard(
                _shard_name(self.file, number),
                file=self.file,
                size=self.size,
                changed=self.changed,
                sha256=self.sha256,
                start=Start(*start),
                rows=end - start[0],
            )
            for number, (start, end) in enumerate(zip(self.starts, ends, strict=True))
        ]


class Sources(Record):
    """Contents of the input files when they were divided into shards, with the limits on rows per shard and bytes per line."""

    shard_rows: int
    longest: int
    files: list[SourceFile]

    @property
    def shards(self) -> list[Shard]:
        """All shards, in the order of the files."""
        return [shard for file in self.files for shard in file.shards()]


def read_sources(files: Sequence[Path], job: EmbedJob, before: Sources | None) -> Iterator[Sources]:
    """Divide files into shards. Yields the sources so far after each file. before: of an earlier run. Raises UnmaskError for no rows."""
    cached = {}
    if before is not None and (before.shard_rows, before.longest) == (job.shard_rows, LONGEST):
        cached = {source.file: source for source in before.files}
    sources = Sources(shard_rows=job.shard_rows, longest=LONGEST, files=[])
    for file in files:
        size, changed = _state(file)
        source = cached.get(str(file))
        if source is None or (source.size, source.changed) != (size, changed):
            digest = hash_file(file)  # first: content that is added meanwhile makes the sizes differ
            starts, rows = find_starts(file, job.shard_rows, longest=LONGEST)
            positions = [(start.row, start.line, start.offset) for start in starts]
            source = SourceFile(file=str(file), size=size, changed=changed, sha256=digest, rows=rows, starts=positions)
        sources.files.append(source)
        yield sources
    if not any(source.rows for source in sources.files):
        raise _without_rows(files, job)


def require_any_row(files: Sequence[Path], job: EmbedJob) -> None:
    """Raise UnmaskError if there are no rows. Files are read up to the first row."""
    items = (item for file in files for item in read_items(file, longest=LONGEST, columns=job.columns))
    if next(items, None) is None:
        raise _without_rows(files, job)


def _without_rows(files: Sequence[Path], job: EmbedJob) -> UnmaskError:
    return UnmaskError(f"{', '.join(map(str, job.inputs))}: no row in {counted(len(files), 'file')}.")


def require_columns(file: Path, names: Sequence[str]) -> None:
    """Raise UnmaskError if none of the first rows of a file has a column of these names. Values of other columns are not read."""
    if not names:
        return
    items = islice(read_items(file, longest=LONGEST, columns=names), _CHECKED_ROWS)
    rows = [item for _, item in items if not isinstance(item, Fault)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in names if rows else ():
        if name not in columns:
            raise UnmaskError(
                f"{file}: none of its first rows has a column '{name}'; there is {', '.join(columns) or 'nothing'}."
            )


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def is_shard_name(name: str) -> bool:
    """Whether a name is one that shards get."""
    return _SHARD_NAME.fullmatch(name) is not None


def _shard_name(file: str, number: int) -> str:
    """A name that no other shard has, in this run or the next: it does not depend on the other files."""
    plain = re.sub(r"[^\w.-]", "_", Path(file).name, flags=re.ASCII).lstrip(".")[:_NAME]
    return f"{plain}-{hashlib.sha256(file.encode('utf-8', 'surrogateescape')).hexdigest()[:_DIGITS]}-{number:05d}"
