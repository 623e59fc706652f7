"""Small corpora in several formats, and what a run makes of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.conftest import TEXTS
from tests.tiny import write_rows
from unmask.bulk.folder import Manifest, embed_folder
from unmask.bulk.job import EmbedJob
from unmask.bulk.loading import EmbedderArguments
from unmask.bulk.team import ThisProcess

PICO = EmbedderArguments("pico", "causal/plain/mean", {"device": "cpu", "dtype": "float32"})
BAD = ['{"text": 3}', "no json", '{"name": "x"}', '{"text": "\\ud800", "name": "y"}']
ROWS = 40


def write_corpus(folder: Path) -> Path:
    """Three files of 40 rows: jsonl with four bad lines of which one is none, csv packed by gzip, parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"{TEXTS[number % 6]} {'word ' * (number % 17)}{number}" for number in range(3 * ROWS)]
    rows = [{"text": text, "name": f"n{number}", "year": str(number)} for number, text in enumerate(texts)]
    lines = [json.dumps(row) for row in rows[: ROWS - len(BAD)]]
    (folder / "a.jsonl").write_text("\n".join([*lines[:10], *BAD, *lines[10:]]) + "\n")
    plain = write_rows(folder / "b.csv", rows[ROWS : 2 * ROWS])
    (folder / "b.csv.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
    write_rows(folder / "c.parquet", rows[2 * ROWS :])
    return folder


def job_of(folder: Path, **options: Any) -> EmbedJob:
    """Embed `corpus` into `out`, in shards of 16 rows."""
    return EmbedJob(**{"inputs": (folder / "corpus",), "output": folder / "out", "shard_rows": 16, **options})


def run(job: EmbedJob, arguments: EmbedderArguments = PICO, prune: bool = False) -> Manifest:
    """Embed in this process."""
    return embed_folder(job, lambda: ThisProcess(job, arguments), prune=prune)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder of vectors, without locks."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of all shards, in their order."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return [row for name in manifest["shards"] for row in pq.read_table(folder / "vectors" / f"{name}.parquet").to_pylist()]


def letters_of(folder: Path) -> list[dict[str, Any]]:
    """All dead letters."""
    files = sorted((folder / "dead-letters").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
