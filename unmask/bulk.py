"""Bulk: a file of texts -> a file of vectors, with ids and a manifest of everything that the vectors depend on."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.encoding import Tally
from unmask.errors import UnmaskError
from unmask.files import atomic, write_json
from unmask.identity import attention_implementation, identity_of_loaded
from unmask.loading import dtype_name
from unmask.persistence import versions
from unmask.rows import field, read_rows

if TYPE_CHECKING:
    from unmask.embedder import Embedder, Precision
    from unmask.features import Fit

Ids = list[str]


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

    def check(self) -> None:
        """Find mistakes before a model is loaded. Raises UnmaskError."""
        if self.output.suffix not in WRITERS:
            raise UnmaskError(f"'{self.output}': vectors are written to {', '.join(WRITERS)}, not '{self.output.suffix}'.")
        if self.output.suffix == ".npy" and self.id_column:
            raise UnmaskError("A .npy file has no room for ids; write parquet or jsonl, or leave --id-column out.")
        next(read_rows(self.texts), None)


@dataclass(frozen=True)
class Done:
    """How many vectors of how many dimensions were written."""

    texts: int
    dim: int


def read_texts(file: Path, column: str, id_column: str | None) -> list[tuple[str, str]]:
    """(id, text) of every row. Raises UnmaskError, with file, line and column, for a row without them or an id that comes twice."""
    found, seen = [], set()
    for number, (line, row) in enumerate(read_rows(file)):
        name = str(field(file, line, row, id_column, (str, int))) if id_column else str(number)
        if name in seen:
            raise UnmaskError(f"{file}, line {line}, column '{id_column}': the id '{name}' comes twice.")
        seen.add(name)
        found.append((name, field(file, line, row, column)))
    return found


def embed_file(embedder: Embedder, job: Job) -> Done:
    """Embed the texts of a job and write vectors and manifest; both files appear whole or not at all."""
    rows = read_texts(job.texts, job.column, job.id_column)
    if not rows:
        raise UnmaskError(f"{job.texts} holds no row.")
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        vectors = embedder.encode(
            [text for _, text in rows],
            instruction=job.instruction,
            dim=job.dim,
            normalize=job.normalize,
            precision=job.precision,
            tally=tally,
        )
    manifest = _manifest(embedder, job, tally, vectors)
    with atomic(job.output) as scratch:
        WRITERS[job.output.suffix](scratch, [name for name, _ in rows], vectors)
    write_json(Path(f"{job.output}.manifest.json"), manifest)
    return Done(*vectors.shape)


def _manifest(embedder: Embedder, job: Job, tally: Tally, vectors: NDArray[Any]) -> dict[str, Any]:
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
        "input": {"file": str(job.texts), "sha256": hashlib.sha256(job.texts.read_bytes()).hexdigest()},
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
