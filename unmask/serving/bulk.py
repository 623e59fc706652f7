"""Bulk: a file of texts -> a file of vectors, with ids and a manifest of everything that the vectors depend on."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.encode import Tally
from unmask.errors import UnmaskError
from unmask.io.files import atomic, check_output, only_writer_of, remove, sync
from unmask.io.rows import field, read_rows
from unmask.io.seals import hash_file
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import dtype_name
from unmask.models.provenance import versions

if TYPE_CHECKING:
    from unmask.embedder import Embedder
    from unmask.encoding.features import Fit
    from unmask.encoding.precision import Precision

Ids = list[str]
Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Given:
    """What a file of texts held when it was read: ids and texts by row, and the checksum of the file."""

    rows: Rows
    sha256: str


@dataclass(frozen=True)
class Job:
    """What to embed, and how to write it."""

    texts: Path
    output: Path
    column: str = "text"
    id_column: str | None = None
    instruction: str | None = None
    dim: int | None = None
    normalize: bool = False
    precision: Precision = "float32"

    @property
    def manifest(self) -> Path:
        """The file that says how the vectors were made."""
        return Path(f"{self.output}.manifest.json")

    def check(self) -> Given:
        """Read every row, and find mistakes before a model is loaded. Raises UnmaskError."""
        for file in (self.output, self.manifest):
            check_output(file, [self.texts])
        if self.output.suffix not in WRITERS:
            raise UnmaskError(f"'{self.output}': vectors are written to {', '.join(WRITERS)}, not '{self.output.suffix}'.")
        if self.output.suffix == ".npy" and self.id_column:
            raise UnmaskError("A .npy file has no room for ids; write parquet or jsonl, or leave --id-column out.")
        given = Given(read_texts(self.texts, self.column, self.id_column), hash_file(self.texts))
        if not given.rows:
            raise UnmaskError(f"{self.texts} holds no row.")
        return given


@dataclass(frozen=True)
class Done:
    """How many vectors of how many dimensions were written."""

    texts: int
    dim: int


def read_texts(file: Path, column: str, id_column: str | None) -> Rows:
    """(id, text) of every row. Raises UnmaskError, with file, line and column, for a row without them or an id that comes twice."""
    rows, seen = [], set()
    for number, (line, row) in enumerate(read_rows(file)):
        name = str(field(file, line, row, id_column, (str, int))) if id_column else str(number)
        if name in seen:
            raise UnmaskError(f"{file}, line {line}, column '{id_column}': the id '{name}' comes twice.")
        seen.add(name)
        rows.append((name, field(file, line, row, column)))
    return rows


def embed_file(embedder: Embedder, job: Job, given: Given | None = None) -> Done:
    """Embed the texts of a job and write vectors and manifest. given: what `job.check` has read, so that it is not read again.

    Both files appear whole or not at all. A manifest never lies beside other vectors than those that it describes.
    """
    given, tally = given or job.check(), Tally()
    encode = partial(
        embedder.encode, instruction=job.instruction, dim=job.dim, normalize=job.normalize, precision=job.precision
    )
    encode([])  # says what is wrong with the options
    with only_writer_of(job.output):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            vectors = encode([text for _, text in given.rows], tally=tally)
        _write(job, [name for name, _ in given.rows], vectors, _manifest(embedder, job, given, tally, vectors))
    return Done(*vectors.shape)


def _write(job: Job, ids: Ids, vectors: NDArray[Any], manifest: dict[str, Any]) -> None:
    """Write both files beside their places; then the old manifest goes, the vectors come, and the new manifest last."""
    with atomic(job.manifest) as described, atomic(job.output) as scratch:
        WRITERS[job.output.suffix](scratch, ids, vectors)
        sync(scratch)
        written = {"output": {"file": str(job.output), "sha256": hash_file(scratch)}}
        described.write_text(json.dumps({**manifest, **written}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        sync(described)
        remove(job.manifest)


def _manifest(embedder: Embedder, job: Job, given: Given, tally: Tally, vectors: NDArray[Any]) -> dict[str, Any]:
    identity = identity_of_loaded(embedder.backbone.model)
    return {
        "model": asdict(embedder.source) | {"fingerprint": identity.revision, "identity": identity.as_json()},
        "design": embedder.design.name,
        "prompt": embedder.prompt.prompt.template,
        "attention": embedder.backbone.proof.summary,
        "max_length": embedder.prompt.max_length,
        "batch_tokens": embedder.batch_tokens,
        "alpha": embedder.fitted.alpha,
        "fit": _standardisation(embedder.fitted),
        "dtype": dtype_name(embedder.backbone.model),
        "attn_implementation": attention_implementation(embedder.backbone.model),
        "device": str(embedder.backbone.device),
        "input": {"file": str(job.texts), "sha256": given.sha256},
        "options": {key: value for key, value in asdict(job).items() if key not in ("texts", "output")},
        "texts": tally.texts,
        "truncated": tally.truncated,
        "tokens": tally.tokens,
        "dim": vectors.shape[1],
        "versions": versions(),
    }


def _standardisation(fit: Fit) -> str | None:
    """A hash of the means, deviations and whitenings that were fitted."""
    digest = hashlib.sha256(b"".join(part.float().cpu().numpy().tobytes() for part in fit.tensors.values()))
    return digest.hexdigest()[:16] if fit.tensors else None


def _write_parquet(file: Path, ids: Ids, vectors: NDArray[Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    pq.write_table(pa.table({"id": pa.array(ids), "vector": column}), file)


def _write_npy(file: Path, _: Ids, vectors: NDArray[Any]) -> None:
    with file.open("wb") as stream:
        np.save(stream, vectors)


def _write_jsonl(file: Path, ids: Ids, vectors: NDArray[Any]) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for name, vector in zip(ids, vectors, strict=True):
            lines.write(json.dumps({"id": name, "vector": [float(str(value)) for value in vector]}, ensure_ascii=False) + "\n")


WRITERS: dict[str, Callable[[Path, Ids, NDArray[Any]], None]] = {
    ".parquet": _write_parquet,
    ".npy": _write_npy,
    ".jsonl": _write_jsonl,
}
