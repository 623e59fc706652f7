"""One shard: its vectors, its dead letters and its record, each written atomically, and the record last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unmask.bulk.row_encoder import Counts, RowEncoder
from unmask.bulk.shards import Shard, is_shard_name
from unmask.bulk.text_rows import DeadLetter, TextRow, read_text_rows, windows
from unmask.bulk.vector_writers import WRITERS
from unmask.encoding.quantization import PrecisionLoss, mean_loss
from unmask.errors import UnmaskError
from unmask.io.files import atomic, inside, remove, sync
from unmask.io.records import Record
from unmask.io.seals import hash_file
from unmask.io.terminal import counted

ReportCounts = Callable[[Counts], None]
ENDING = ".parquet"


class ShardRecord(Record):
    """Inputs and outputs of a shard. description: digest of the settings of its vectors (`settings_digest`)."""

    file: str
    file_sha256: str
    first_row: int
    rows: int
    vectors: int
    dead_letters: int
    truncated: int
    tokens: int
    padded: int
    description: str
    output_sha256: str
    dead_letters_sha256: str | None = None
    loss: PrecisionLoss | None = None

    @property
    def counts(self) -> Counts:
        """What was done for the shard."""
        return Counts(self.rows, self.vectors, self.dead_letters, self.truncated, self.tokens, self.padded)


@dataclass(frozen=True)
class ShardPaths:
    """The files in a folder of vectors."""

    folder: Path

    @property
    def records(self) -> Path:
        """The folder of records."""
        return self.folder / "records"

    def record(self, shard: str) -> Path:
        """The record of a shard."""
        return inside(self.records, f"{shard}.json")

    def vectors(self, shard: str) -> Path:
        """The file of vectors of a shard."""
        return inside(self.folder / "vectors", f"{shard}{ENDING}")

    def dead_letters(self, shard: str) -> Path:
        """The dead letters of a shard; the file exists only if there are any."""
        return inside(self.folder / "dead-letters", f"{shard}.jsonl")

    @property
    def shards(self) -> set[str]:
        """The names of shards with at least one file."""
        files = (file for path in (self.record, self.vectors, self.dead_letters) for file in path("a").parent.glob("*"))
        return {file.stem for file in files if is_shard_name(file.stem)}

    def remove(self, shard: str) -> None:
        """Remove the files of a shard, the record last: it says that there is something to remove."""
        for path in (self.dead_letters, self.vectors, self.record):
            remove(path(shard))


def finished_record(paths: ShardPaths, shard: Shard, digest: str) -> ShardRecord | None:
    """The record of a complete shard with the same rows and settings and unchanged files; None otherwise. digest: of the settings."""
    file = paths.record(shard.name)
    record = ShardRecord.read(file) if file.is_file() else None
    expected = (shard.file, shard.sha256, shard.start.row, digest)
    if record is None or (record.file, record.file_sha256, record.first_row, record.description) != expected:
        return None
    hashes = {paths.vectors(shard.name): record.output_sha256, paths.dead_letters(shard.name): record.dead_letters_sha256}
    intact = all((hash_file(part) if part.is_file() else None) == sha256 for part, sha256 in hashes.items())
    return record if intact else None


def embed_shard(encoder: RowEncoder, paths: ShardPaths, shard: Shard, digest: str, progress: ReportCounts) -> ShardRecord:
    """Embed a shard and write its files. digest: of the settings; progress: takes what was done since its last call.

    Raises UnmaskError if the file of texts has changed since it was read, or gives fewer rows now.
    """
    counts, dead, losses = Counts(), list[DeadLetter](), list[PrecisionLoss]()

    def note(delta: Counts) -> None:
        counts.add(delta)
        progress(delta)

    def text_rows() -> Iterator[TextRow]:
        for item in read_text_rows(Path(shard.file), encoder.job, shard.start, shard.rows):
            if isinstance(item, TextRow):
                yield item
            else:
                dead.append(item)
                note(Counts(rows=1, dead_letters=1))

    with atomic(paths.vectors(shard.name)) as scratch:
        with WRITERS[ENDING](scratch, encoder.layout) as write:
            for window in windows(text_rows()):
                encoded = encoder.encode(window, note)
                if encoded.block.ids:
                    write(encoded.block)
                dead += encoded.dead
                losses += [encoded.loss] if encoded.loss else []
        # a file may end early only with a dead letter, which says that its rest cannot be read
        if counts.rows < shard.rows and all(letter.row != shard.start.row + counts.rows - 1 for letter in dead):
            shard.require_unchanged()  # the usual reason
            raise UnmaskError(
                f"{shard.file}: {counted(shard.rows, 'row')} from row {shard.start.row} on were counted, but only {counts.rows} could be "
                "read. Give the file in another format, such as .jsonl."
            )
        sync(scratch)
        output_digest = hash_file(scratch)
        shard.require_unchanged()
        remove(paths.record(shard.name))
        letters_digest = _write_dead_letters(paths.dead_letters(shard.name), shard.file, dead)
    record = ShardRecord(
        file=shard.file,
        file_sha256=shard.sha256,
        first_row=shard.start.row,
        **vars(counts),
        description=digest,
        output_sha256=output_digest,
        dead_letters_sha256=letters_digest,
        loss=mean_loss(losses),
    )
    record.write(paths.record(shard.name))
    return record


def _write_dead_letters(file: Path, source: str, dead: list[DeadLetter]) -> str | None:
    """Write dead letters in the order of their rows, and return the digest of the file; no file for none."""
    if not dead:
        remove(file)
        return None
    lines = [json.dumps(letter.as_json(source), ensure_ascii=False) for letter in sorted(dead, key=lambda letter: letter.row)]
    with atomic(file) as scratch:
        # JSON reads the escapes as the surrogates they were
        scratch.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")
        return hash_file(scratch)
