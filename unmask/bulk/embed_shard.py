"""One shard: its vectors, its dead letters and its record, each whole, the record last. Where it lies and fits, the shard is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unmask.bulk.document_encoder import Counts, DocumentEncoder
from unmask.bulk.documents import DeadLetter, Document, read_documents, windows
from unmask.bulk.shards import Shard, is_shard_name
from unmask.bulk.vector_writers import WRITERS
from unmask.encoding.quantization import PrecisionLoss, mean_loss
from unmask.errors import UnmaskError
from unmask.io.files import atomic, inside, remove, sync
from unmask.io.records import Record
from unmask.io.seals import hash_file
from unmask.io.terminal import counted

Progress = Callable[[Counts], None]
ENDING = ".parquet"


class ShardRecord(Record):
    """Inputs and outputs of a shard. description: hash of everything except the texts that its vectors depend on."""

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
class Places:
    """Where the parts of a folder of vectors lie."""

    folder: Path

    def vectors(self, shard: str) -> Path:
        """The file of vectors of a shard."""
        return inside(self.folder / "vectors", f"{shard}{ENDING}")

    @property
    def records(self) -> Path:
        """The folder of records."""
        return self.folder / "records"

    def record(self, shard: str) -> Path:
        """The record of a shard."""
        return inside(self.records, f"{shard}.json")

    def dead_letters(self, shard: str) -> Path:
        """The dead letters of a shard; the file exists only if there are any."""
        return inside(self.folder / "dead-letters", f"{shard}.jsonl")

    def parts(self, shard: str) -> list[Path]:
        """All files of a shard, the record first: without it, the others count for nothing."""
        return [self.record(shard), self.vectors(shard), self.dead_letters(shard)]

    @property
    def shards(self) -> set[str]:
        """The names of shards with at least one file."""
        parts = (
            *self.records.glob("*.json"),
            *self.vectors("a").parent.glob(f"*{ENDING}"),
            *self.dead_letters("a").parent.glob("*.jsonl"),
        )
        return {file.stem for file in parts if is_shard_name(file.stem)}

    @property
    def manifest(self) -> Path:
        """What all vectors depend on."""
        return self.folder / "manifest.json"

    @property
    def sources(self) -> Path:
        """What the files of texts held."""
        return self.folder / "sources.json"


def finished(paths: Places, shard: Shard, description: str) -> ShardRecord | None:
    """The record of a complete shard with the same rows and description and unchanged files; None otherwise."""
    file = paths.record(shard.name)
    record = ShardRecord.read(file) if file.is_file() else None
    expected = (shard.file, shard.sha256, shard.start.row, description)
    if record is None or (record.file, record.file_sha256, record.first_row, record.description) != expected:
        return None
    sums = {paths.vectors(shard.name): record.output_sha256, paths.dead_letters(shard.name): record.dead_letters_sha256}
    return record if all(_sum(part) == digest for part, digest in sums.items()) else None


def embed_shard(encoder: DocumentEncoder, paths: Places, shard: Shard, description: str, progress: Progress) -> ShardRecord:
    """Embed a shard and write its files. progress: takes what was done since its last call.

    Raises UnmaskError if the file of texts has changed since it was read, or gives fewer rows now.
    """
    counts, dead, losses = Counts(), list[DeadLetter](), list[PrecisionLoss]()

    def note(delta: Counts) -> None:
        counts.add(delta)
        progress(delta)

    def documents() -> Iterator[Document]:
        for item in read_documents(Path(shard.file), encoder.job, shard.start, shard.rows):
            if isinstance(item, Document):
                yield item
            else:
                dead.append(item)
                note(Counts(rows=1, dead_letters=1))

    with atomic(paths.vectors(shard.name)) as scratch:
        with WRITERS[ENDING](scratch, encoder.layout) as write:
            for window in windows(documents()):
                encoded = encoder.encode(window, note)
                if encoded.block.ids:
                    write(encoded.block)
                dead += encoded.dead
                losses += [encoded.loss] if encoded.loss else []
        _require_all_rows(shard, counts.rows, dead)
        sync(scratch)
        output_sum = hash_file(scratch)
        shard.require_unchanged()
        remove(paths.record(shard.name))
        letters_sum = _write_dead_letters(paths.dead_letters(shard.name), shard.file, dead)
    record = ShardRecord(
        file=shard.file,
        file_sha256=shard.sha256,
        first_row=shard.start.row,
        **vars(counts),
        description=description,
        output_sha256=output_sum,
        dead_letters_sha256=letters_sum,
        loss=mean_loss(losses),
    )
    record.write(paths.record(shard.name))
    return record


def _require_all_rows(shard: Shard, rows_read: int, dead: list[DeadLetter]) -> None:
    """Raise UnmaskError if rows are missing. A file may end early only with a dead letter, which says that its rest cannot be read."""
    ends_in_dead_letter = any(letter.row == shard.start.row + rows_read - 1 for letter in dead)
    if rows_read < shard.rows and not ends_in_dead_letter:
        shard.require_unchanged()  # the usual reason
        raise UnmaskError(
            f"{shard.file}: {counted(shard.rows, 'row')} from row {shard.start.row} on were counted, but only {rows_read} could be read. "
            "Give the file in another format, such as .jsonl."
        )


def _write_dead_letters(file: Path, source: str, dead: list[DeadLetter]) -> str | None:
    """Write dead letters in the order of their rows; no file for none. Returns its checksum."""
    if not dead:
        remove(file)
        return None
    with atomic(file) as scratch:
        with scratch.open(
            "w", encoding="utf-8", errors="backslashreplace"
        ) as lines:  # which JSON reads as the surrogates they were
            for letter in sorted(dead, key=lambda letter: letter.row):
                lines.write(json.dumps(letter.as_json(source), ensure_ascii=False) + "\n")
        return hash_file(scratch)


def _sum(file: Path) -> str | None:
    return hash_file(file) if file.is_file() else None
