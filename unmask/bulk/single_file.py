"""One file of texts becomes one file of vectors, with ids and a manifest. Every row is checked first, and a bad one is an error.

Rows are read twice, so that memory holds one window of them and not the file. So standard input is copied to a temporary file.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.bulk.job import EmbedJob
from unmask.bulk.loading import describe
from unmask.bulk.row_encoder import Counts, RowEncoder
from unmask.bulk.shards import require_columns
from unmask.bulk.text_rows import DeadLetter, TextRow, read_text_rows, windows
from unmask.bulk.vector_writers import WRITERS
from unmask.encoding.encoder import warn_of_truncation
from unmask.encoding.quantization import PrecisionLoss, mean_loss
from unmask.errors import UnmaskError
from unmask.io.compressed import BadLine, open_text
from unmask.io.files import atomic, only_writer_of, remove, sync
from unmask.io.lines import UnlimitedLines
from unmask.io.rows import has_no_columns
from unmask.io.seals import hash_file
from unmask.io.terminal import progress_bar

if TYPE_CHECKING:
    from unmask.embedder import Embedder


@dataclass(frozen=True)
class CheckedFile:
    """A file of texts when it was checked: its rows, and its checksum. name: what the manifest calls it."""

    file: Path
    rows: int
    sha256: str
    name: str


@dataclass(frozen=True)
class EmbeddedFile:
    """How many vectors of how many dimensions were written, and what the precision changes in them."""

    texts: int
    dim: int
    loss: PrecisionLoss | None = None


def check_file(job: EmbedJob, name: str | None = None) -> CheckedFile:
    """Read every row, and find mistakes before a model is loaded. Raises UnmaskError, with file, line and column.

    name: what the manifest calls the file; its path if not given.
    """
    [file] = job.files()
    # a name that no row has would be a column of nulls; of a file without columns, the reader would take the lines
    require_columns(file, job.columns if has_no_columns(file) else job.keep)
    digest = hash_file(file)
    rows = sum(1 for _ in _documents(file, job))
    if not rows:
        raise UnmaskError(f"{file} holds no row.")
    return CheckedFile(file, rows, digest, name or str(file))


def embed_file(embedder: Embedder, job: EmbedJob, source: CheckedFile | None = None) -> EmbeddedFile:
    """Embed the texts of a job and write vectors and manifest. source: what `check_file` found.

    Both files are written atomically, and a manifest never accompanies vectors other than the ones it describes. Raises UnmaskError
    for a text without a finite vector, and if the file has changed since it was checked.
    """
    source = source or check_file(job)
    encoder = RowEncoder(embedder, job)
    counts, cut, losses = Counts(), list[int](), list[PrecisionLoss]()
    with (
        only_writer_of(job.output),
        only_writer_of(job.manifest),
        atomic(job.manifest) as described,
        atomic(job.output) as scratch,
    ):
        layout = replace(encoder.layout, rows=source.rows)
        with WRITERS[job.output.suffix](scratch, layout) as write, progress_bar("embedding", source.rows) as advance:
            for window in windows(_documents(source.file, job)):
                encoded = encoder.encode(window, lambda counts: advance(counts.rows))
                for letter in encoded.dead:
                    raise UnmaskError(f"{source.file}{letter.reason}")
                write(encoded.block)
                counts.add(encoded.counts)
                cut += encoded.cut
                losses += [encoded.loss] if encoded.loss else []
        if hash_file(source.file) != source.sha256:
            raise UnmaskError(f"{source.file} changed while it was embedded. Run the command again.")
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warn_of_truncation(cut, counts.rows, embedder.max_length)
        sync(scratch)
        loss = mean_loss(losses)
        manifest = {
            **describe(embedder, job, encoder.dim),
            "input": {"file": source.name, "sha256": source.sha256},
            "texts": counts.vectors,
            "truncated": counts.truncated,
            "tokens": counts.tokens,
            "precision_loss": loss.as_json() if loss else None,
            "output": {"file": str(job.output), "sha256": hash_file(scratch)},
        }
        described.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        sync(described)
        remove(job.manifest)  # then the vectors come, and the new manifest last
    return EmbeddedFile(counts.vectors, encoder.dim, loss)


def _documents(file: Path, job: EmbedJob) -> Iterator[TextRow]:
    for item in read_text_rows(file, job):
        if isinstance(item, DeadLetter):
            raise UnmaskError(f"{file}{item.reason}")
        yield item


@contextmanager
def stdin_copy() -> Iterator[Path]:
    """A temporary copy of standard input: JSON lines if its first line is a JSON object, else one text per line.

    Errors that name the copy name standard input instead.
    """
    with tempfile.TemporaryDirectory(prefix="unmask-") as folder:
        file = Path(folder, "stdin")
        with file.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        try:
            with open_text(file) as stream:
                is_json = isinstance(json.loads(next(UnlimitedLines(stream), "")), dict)
        except (ValueError, RecursionError, BadLine):
            is_json = False
        file = file.rename(file.with_suffix(".jsonl" if is_json else ".txt"))
        try:
            yield file
        except UnmaskError as error:
            raise UnmaskError(str(error).replace(str(file), "standard input")) from error
