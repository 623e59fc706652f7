"""Embed a corpus into a folder of vectors, one file per shard. Running the same command again resumes an interrupted run.

A complete shard whose rows are unchanged is kept; everything else is recomputed. All vectors of a folder share their
settings: a run with another model, design or option is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from xxhash import xxh3_64_intdigest

from unmask.bulk.embed_shard import ShardPaths, ShardRecord, finished_record
from unmask.bulk.job import EmbedJob
from unmask.bulk.loading import remove_fits, settings_digest, vector_settings
from unmask.bulk.row_encoder import Counts
from unmask.bulk.shards import Shard, Sources, read_sources, require_any_row, require_columns
from unmask.bulk.team import Team
from unmask.encoding.quantization import PrecisionLoss, mean_loss
from unmask.errors import UnmaskError
from unmask.io.records import Record
from unmask.io.rows import has_no_columns
from unmask.io.terminal import complain, counted, progress_bar, say
from unmask.runs import runs
from unmask.runs.runs import Run

_SAVED_EVERY = 60.0  # seconds, while files are read
_BATCH = 65_536


class Manifest(Record):
    """The content of a folder of vectors. description: everything that they depend on; shards: in the order of the files.

    complete: whether every shard is there; failed: reasons by shard; repeated_ids: ids that are in more than one shard; texts: vectors,
    of which a document in chunks has several; loss: what the precision changes, measured on samples of the shards' own vectors.
    """

    complete: bool
    description: dict[str, Any]
    inputs: list[dict[str, Any]]
    shards: list[str]
    texts: int = 0
    dead_letters: int = 0
    truncated: int = 0
    tokens: int = 0
    padded: int = 0
    repeated_ids: int = 0
    failed: dict[str, str] = Field(default_factory=dict)
    loss: PrecisionLoss | None = None

    @property
    def flawless(self) -> bool:
        """Whether every row of the input has a vector and a unique id."""
        return self.complete and not self.dead_letters and not self.repeated_ids

    def summary(self, folder: Path) -> str:
        """The content of the folder, in sentences."""
        parts = [
            f"{counted(self.texts, 'vector')} of {self.description['dim']} dimensions in {folder / 'vectors'} "
            f"({counted(len(self.shards), 'shard')})."
        ]
        if self.loss:
            parts.append(f"{self.loss}.")
        if self.dead_letters:
            parts.append(f"Not embedded: {counted(self.dead_letters, 'row')}. {folder / 'dead-letters'} says which, and why.")
        if self.repeated_ids:
            parts.append(f"Ids that are in another shard, too: {self.repeated_ids}.")
        if not self.complete:
            parts.append(f"{counted(len(self.failed), 'shard')} failed. Run the command again: it does what is missing.")
        return " ".join(parts)


def check_folder(job: EmbedJob) -> list[Path]:
    """The files of a job. Raises UnmaskError for mistakes that can be found without reading the files through."""
    files = job.files()
    for file in [file for file in files if not has_no_columns(file)] or files:
        require_columns(file, job.columns)
    runs.require_own(job.output)
    require_any_row(files, job)  # before the folder is made: a run with nothing to embed leaves none
    return files


def embed_folder(job: EmbedJob, team: Callable[[], Team], *, prune: bool = False) -> Manifest:
    """Embed all files of a job. team: makes the team, once the folder is held; prune: remove vectors of files that are not given.

    Raises UnmaskError for a mistake in the job, for a folder that holds something else, and if another run holds it.
    """
    files = check_folder(job)
    with runs.hold(job.output):
        _require_given(files, job, prune)
        with closing(team()) as members:
            description = members.describe()
            try:
                run = Run(job.output, vector_settings(description))
            except UnmaskError:
                if (before := Manifest.read(job.manifest)) is not None:
                    remove_fits(job.output, before.description.get("fit_file"))
                raise
            remove_fits(job.output, description["fit_file"])
            sources = _divide(files, job)
            manifest = Manifest(
                complete=False,
                description=description,
                inputs=[{"file": source.file, "sha256": source.sha256, "rows": source.rows} for source in sources.files],
                shards=[shard.name for shard in sources.shards],
            )
            paths = ShardPaths(job.output)
            if outdated := paths.shards - set(manifest.shards):
                manifest.write(job.manifest)  # first: after a kill, no manifest may call a folder complete that lacks a shard
                for name in outdated:
                    paths.remove(name)
            digest, records = settings_digest(description), dict[str, ShardRecord]()
            with progress_bar("checking shards", len(sources.shards)) as advance:
                for shard in sources.shards:
                    if record := finished_record(paths, shard, digest):
                        records[shard.name] = record
                    advance(1)
            if records:
                say(f"{len(records)} of {len(sources.shards)} shards are done and as before.")
            run.start()
            failed = {}
            if remaining := [shard for shard in sources.shards if shard.name not in records]:
                manifest.write(job.manifest)
                failed = _embed_shards(remaining, digest, members, records)
        manifest = _with_counts(manifest, paths, job, records, failed)
        if Manifest.read(job.manifest) != manifest:
            manifest.write(job.manifest)
        return manifest


def _require_given(files: Sequence[Path], job: EmbedJob, prune: bool) -> None:
    """Raise UnmaskError if the folder holds vectors of a file that is not given, unless they are to be removed."""
    records = map(ShardRecord.read, sorted(ShardPaths(job.output).records.glob("*.json")))
    if (gone := sorted({record.file for record in records if record} - set(map(str, files)))) and not prune:
        raise UnmaskError(
            f"'{job.output}' holds vectors of {counted(len(gone), 'file')} not given, such as '{gone[0]}'. Give them too, or --prune to "
            "remove their vectors, or another folder."
        )


def _divide(files: Sequence[Path], job: EmbedJob) -> Sources:
    """Divide the files into shards, and record this incrementally."""
    record, saved = job.output / "sources.json", time.monotonic()
    before = Sources.read(record) if record.is_file() else None
    with progress_bar("reading files", len(files)) as advance:
        for sources in read_sources(files, job, before):
            advance(1)
            if time.monotonic() - saved > _SAVED_EVERY:
                sources.write(record)
                saved = time.monotonic()
    if sources != before:
        sources.write(record)
    return sources


def _embed_shards(shards: Sequence[Shard], digest: str, team: Team, records: dict[str, ShardRecord]) -> dict[str, str]:
    """Embed shards, and add their records to those that exist. Returns the reasons of shards that failed."""
    failed: dict[str, str] = {}
    total, start = Counts(), time.monotonic()
    with progress_bar("embedding", sum(shard.rows for shard in shards)) as advance:

        def note(counts: Counts) -> None:
            total.add(counts)
            advance(counts.rows)

        for shard, result in team.embed(shards, digest, note):
            if isinstance(result, ShardRecord):
                records[shard.name] = result
            else:
                failed[shard.name] = result
                last = shard.start.row + shard.rows - 1
                complain(f"Shard {shard.name} ({shard.file}, rows {shard.start.row} to {last}): {result}")
    seconds = max(time.monotonic() - start, 1e-9)
    padding = 1 - total.tokens / total.padded if total.padded else 0.0
    cut = f" Texts that were cut: {total.truncated}." if total.truncated else ""
    say(
        f"{total.tokens} tokens in {seconds:.0f} s: {total.tokens / seconds:.0f} tokens/s, "
        f"{padding:.1%} of the computed tokens were padding.{cut}"
    )
    return failed


def _with_counts(
    manifest: Manifest, paths: ShardPaths, job: EmbedJob, records: dict[str, ShardRecord], failed: dict[str, str]
) -> Manifest:
    """The manifest of the current state."""
    total = Counts()
    for record in records.values():
        total.add(record.counts)
    names = [name for name in manifest.shards if name in records]
    chunked, vectors = job.chunking is not None, [paths.vectors(name) for name in names]
    changes = {
        "complete": len(records) == len(manifest.shards),
        "texts": total.vectors,
        "dead_letters": total.dead_letters,
        "truncated": total.truncated,
        "tokens": total.tokens,
        "padded": total.padded,
        "repeated_ids": count_repeated_ids(vectors, chunked=chunked) if job.id_column else 0,  # ids that we make differ
        "failed": failed,
        "loss": mean_loss([record.loss for name in names if (record := records[name]).loss]),
    }
    return manifest.model_copy(update=changes)


def count_repeated_ids(files: Sequence[Path], *, chunked: bool) -> int:
    """The number of documents with an id that an earlier document has. Within a file, ids differ. Memory holds nine bytes for each row.

    chunked: whether the rows are chunks of documents, all of which have the id of their document.
    """
    import pyarrow.parquet as pq

    if len(files) < 2:
        return 0
    hashes = np.empty(sum(pq.read_metadata(file).num_rows for file in files), np.uint64)
    count = 0
    for batch in (batch for file in files for batch in _hashed_ids(file, chunked)):
        hashes[count : count + len(batch)] = batch
        count += len(batch)
    hashes = hashes[:count]
    hashes.sort()
    return int(np.count_nonzero(hashes[1:] == hashes[:-1]))


def _hashed_ids(file: Path, chunked: bool) -> Iterator[NDArray[np.uint64]]:
    """The hashes of the ids of a file, once for each document."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as table:
        for batch in table.iter_batches(_BATCH, columns=["id", "chunk"] if chunked else ["id"]):
            names = batch["id"].to_pylist()
            if chunked:
                names = [name for name, number in zip(names, batch["chunk"].to_pylist(), strict=True) if number == 0]
            yield np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64)
