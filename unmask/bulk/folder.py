"""Embed a corpus into a folder of vectors, one file per shard. Running the same command again resumes an interrupted run.

A complete shard whose rows are unchanged is kept; everything else is recomputed. All vectors of a folder share one
description: a run with another model, design or option is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from pydantic import Field

from unmask.bulk.document_encoder import Counts
from unmask.bulk.embed_shard import Places, ShardRecord, finished
from unmask.bulk.job import Job
from unmask.bulk.kept_fit import remove_fits
from unmask.bulk.manifest import VectorSettings, key_of, settings_of
from unmask.bulk.repeated_ids import count_repeated
from unmask.bulk.report import Report, shown
from unmask.bulk.shards import Shard, Sources, read_sources, require_any_row, require_columns
from unmask.bulk.team import Listener, Team
from unmask.encoding.quantization import PrecisionLoss, mean_loss
from unmask.errors import UnmaskError
from unmask.io.files import remove
from unmask.io.records import Record
from unmask.io.rows import has_no_columns
from unmask.io.terminal import complain, counted, progress_bar, say
from unmask.runs import runs
from unmask.runs.runs import Run

_SAVED_EVERY = 60.0  # seconds, while files are read


class Manifest(Record):
    """What is in a folder of vectors. description: everything that they depend on; shards: in the order of the files.

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

    def told(self, folder: Path) -> str:
        """What is in the folder, in sentences."""
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


def check_folder(job: Job, *, prune: bool = False) -> list[Path]:
    """The files of a job. Raises UnmaskError for mistakes that can be found without reading the files through.

    prune: as in `embed_folder`.
    """
    files = job.files()
    texts = [file for file in files if has_no_columns(file)]
    tables = [file for file in files if not has_no_columns(file)]
    for file in tables or texts:
        require_columns(file, job.columns)
    if tables and texts and (job.id_column or job.keep):
        say(
            f"{counted(len(texts), '.txt file')} without columns, such as {texts[0]}: ids are FILE:NUMBER there, and columns to keep are "
            "empty."
        )
    runs.require_own(job.output)
    _require_given(files, job, prune)
    require_any_row(files, job)  # before the folder is made: a run with nothing to embed leaves none
    return files


def embed_folder(job: Job, team: Callable[[], Team], *, prune: bool = False) -> Manifest:
    """Embed all files of a job. team: makes what does the work, when it is needed; prune: remove vectors of files that are not given.

    Raises UnmaskError for a mistake in the job, for a folder that holds something else, and if another run holds it.
    """
    files = check_folder(job, prune=prune)
    with ExitStack() as stack:
        members: list[Team] = []

        def settings() -> VectorSettings:
            _require_given(files, job, prune)  # again: another run may have ended since the first check
            members.append(stack.enter_context(closing(team())))
            return settings_of(members[0].describe())

        try:
            run = stack.enter_context(runs.open(job.output, settings))
        except UnmaskError:
            if (before := Manifest.read(job.manifest)) is not None:
                remove_fits(job.output, before.description.get("fit_file"))
            raise
        return _embed_files(files, job, members[0], run)


def _embed_files(files: Sequence[Path], job: Job, members: Team, run: Run) -> Manifest:
    """Embed files into a folder that this run holds."""
    paths, description = Places(job.output), members.describe()
    remove_fits(job.output, description["fit_file"])
    sources = _read(files, job, paths)
    manifest = Manifest(
        complete=False,
        description=description,
        inputs=[{"file": source.file, "sha256": source.sha256, "rows": source.rows} for source in sources.files],
        shards=[shard.name for shard in sources.shards],
    )
    if outdated := paths.shards - set(manifest.shards):
        manifest.write(paths.manifest)  # first: after a kill, no manifest may call a folder complete that lacks a shard
        _clear(paths, outdated)
    key = key_of(description)
    records = _kept(sources.shards, key, paths)
    remaining = [shard for shard in sources.shards if shard.name not in records]
    run.start()
    if remaining:
        manifest.write(paths.manifest)
    failed = _embed(remaining, key, members, records)
    return _finish(manifest, paths, job, records, failed)


def _require_given(files: Sequence[Path], job: Job, prune: bool) -> None:
    """Raise UnmaskError if the folder holds vectors of a file that is not given, unless they are to be removed."""
    recorded = {record.file for record in _records(Places(job.output)).values() if record is not None}
    if (gone := sorted(recorded - set(map(str, files)))) and not prune:
        raise UnmaskError(
            f"'{job.output}' holds vectors of {counted(len(gone), 'file')} not given, such as '{gone[0]}'. Give them too, or --prune to "
            "remove their vectors, or another folder."
        )


def _read(files: Sequence[Path], job: Job, paths: Places) -> Sources:
    """Read what the files hold, recording it incrementally."""
    saved = [time.monotonic()]
    with progress_bar("reading files", len(files)) as advance:

        def note(sources: Sources) -> None:
            advance(1)
            if time.monotonic() - saved[0] > _SAVED_EVERY:
                sources.write(paths.sources)
                saved[0] = time.monotonic()

        before = Sources.read(paths.sources) if paths.sources.is_file() else None
        sources = read_sources(files, job, before, note)
    if sources != before:
        sources.write(paths.sources)
    return sources


def _records(paths: Places) -> dict[str, ShardRecord | None]:
    """The record of every shard in the folder by its name, or None if it is damaged."""
    return {file.stem: ShardRecord.read(file) for file in sorted(paths.records.glob("*.json"))}


def _clear(paths: Places, outdated: set[str]) -> None:
    """Remove shards that the files no longer have, and what a kill left of such shards."""
    for name in outdated:
        for part in reversed(paths.parts(name)):  # the record last: it says that there is something to remove
            remove(part)


def _kept(shards: Sequence[Shard], key: str, paths: Places) -> dict[str, ShardRecord]:
    """Records of the shards that are done, by name."""
    records = {}
    with progress_bar("checking shards", len(shards)) as advance:
        for shard in shards:
            if record := finished(paths, shard, key):
                records[shard.name] = record
            advance(1)
    if records:
        say(f"{len(records)} of {len(shards)} shards are done and as before.")
    return records


def _embed(remaining: Sequence[Shard], key: str, team: Team, records: dict[str, ShardRecord]) -> dict[str, str]:
    """Embed shards, and add their records to those that are there. Returns the reasons of shards that failed."""
    failed: dict[str, str] = {}
    report = Report(sum(shard.rows for shard in remaining), len(remaining))
    with shown(report) as draw:

        def note(counts: Counts) -> None:
            report.done.add(counts)
            draw()

        def done(shard: Shard, record: ShardRecord) -> None:
            records[shard.name] = record
            report.shards_done += 1
            draw()

        def fail(shard: Shard, reason: str) -> None:
            failed[shard.name] = reason
            complain(
                f"Shard {shard.name} ({shard.file}, rows {shard.start.row} to {shard.start.row + shard.rows - 1}): {reason}"
            )

        if remaining:
            team.embed(remaining, key, Listener(note, done, fail))
    if remaining:
        say(report.summary)
    return failed


def _finish(manifest: Manifest, paths: Places, job: Job, records: dict[str, ShardRecord], failed: dict[str, str]) -> Manifest:
    """Write the manifest of the current state."""
    total = Counts()
    for record in records.values():
        total.add(record.counts)
    names = [name for name in manifest.shards if name in records]
    changes = {
        "complete": len(records) == len(manifest.shards),
        "texts": total.vectors,
        "dead_letters": total.dead_letters,
        "truncated": total.truncated,
        "tokens": total.tokens,
        "padded": total.padded,
        "repeated_ids": _repeated_ids([paths.vectors(name) for name in names], job),
        "failed": failed,
        "loss": mean_loss([record.loss for name in names if (record := records[name]).loss]),
    }
    updated = manifest.model_copy(update=changes)
    if Manifest.read(paths.manifest) != updated:
        updated.write(paths.manifest)
    return updated


def _repeated_ids(files: Sequence[Path], job: Job) -> int:
    """How many ids are in more than one file. Ids that we make differ."""
    return count_repeated(files, chunked=job.chunking is not None) if job.id_column else 0
