"""One billion documents on paper: hours, cost, storage, failures and files. docs/scale.md shows the tables.

    python -m benchmarks.scale [--tokens-per-second 1000] [--price 0.1] [--failure-rate 0.001] [--documents 1e9] ...
    python -m benchmarks.scale --measure [--rows 2000]

The first form computes from its options only, so it prints the same on every machine. The second measures the sizes that it computes with:
tokens of a document (SciFact's abstracts), bytes of a document in a parquet file that `unmask embed` writes, and bytes in an index file of
usearch (HNSW).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _inputs
from unmask.encoding.quantization import PRECISIONS, finish

BYTES = {"float32": 2311.0, "float16": 1111.0, "int8": 585.0, "binary": 80.0}
"""Bytes of a document in a parquet file with its id, at 576 dimensions, as `--measure` printed them."""
INDEX_BYTES = {"float32": 2452.0, "float16": 1300.0, "int8": 724.0, "binary": 220.0}
"""Bytes of a document in an index file of usearch, at 576 dimensions, as `--measure` printed them."""
MACHINES = (1, 10, 1000)
_HOUR, _DAY, _YEAR = 3600.0, 24 * 3600.0, 365 * 24 * 3600.0
_USEARCH = {"float32": "f32", "float16": "f16", "int8": "i8", "binary": "b1"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all tables, or the sizes that they need."""
    given = _options().parse_args(arguments)
    if given.smoke or given.measure:
        measure_tokens("pico" if given.smoke else "smollm2", given.smoke)
        measure_bytes(100 if given.smoke else given.rows, 64 if given.smoke else given.dim)
    if not given.measure:
        print("\n\n".join("\n".join(table) for table in (work(given), machines(given), storage(given))))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="measure a few rows, and print the tables")
    parser.add_argument("--measure", action="store_true", help="measure sizes, and print no table")
    parser.add_argument("--rows", type=int, default=2000, help="vectors to measure sizes on")
    parser.add_argument("--dim", type=int, default=576)
    parser.add_argument("--documents", type=float, default=1e9)
    parser.add_argument("--tokens-per-document", type=float, default=313.0)
    parser.add_argument("--tokens-per-second", type=float, default=1000.0, help="of one machine")
    parser.add_argument("--cores", type=int, default=2, help="of one machine")
    parser.add_argument("--price", type=float, default=0.1, help="of one machine for an hour")
    parser.add_argument("--failure-rate", type=float, default=0.001, help="failures of one machine in an hour")
    parser.add_argument("--load-seconds", type=float, default=30.0, help="until a machine that starts again computes")
    parser.add_argument("--shard-rows", type=int, default=50_000)
    parser.add_argument("--read-megabytes", type=float, default=500.0, help="that a machine reads and checks in a second")
    return parser


# --- tables ----------------------------------------------------------------------------------------------------------


def work(given: argparse.Namespace) -> list[str]:
    """What there is to do, on however many machines."""
    hours, shards = _hours(given), _shards(given)
    shard = given.shard_rows * given.tokens_per_document / given.tokens_per_second
    failures = hours * given.failure_rate
    lost = failures * (shard / 2 + given.load_seconds) / _HOUR
    return [
        "| what | figure | from |",
        "|---|--:|---|",
        f"| tokens | {_short(given.documents * given.tokens_per_document)} | documents x tokens of a document |",
        f"| machine hours | {hours:,.0f} | tokens / tokens per second |",
        f"| core hours | {hours * given.cores:,.0f} | machine hours x cores |",
        f"| cost | {hours * given.price:,.0f} | machine hours x price |",
        f"| shards | {shards:,.0f} | documents / rows of a shard |",
        f"| time of a shard | {_time(shard)} | rows x tokens of a document / tokens per second |",
        f"| failures expected | {failures:,.0f} | machine hours x failure rate |",
        f"| work lost to failures | {lost:,.0f} machine hours ({lost / hours:.2%}) | failures x (half a shard + loading) |",
    ]


def machines(given: argparse.Namespace) -> list[str]:
    """What changes with the number of machines."""
    hours, shards = _hours(given), _shards(given)
    shard = given.shard_rows * given.tokens_per_document / given.tokens_per_second
    checked = given.documents * BYTES["float32"] / (given.read_megabytes * 1e6)
    rows = {
        "time of the run": [_time(hours * _HOUR / count) for count in MACHINES],
        "shards of a machine": [f"{shards / count:,.0f}" for count in MACHINES],
        "last shard, of the whole time": [f"{shard / (hours * _HOUR / count):.2%}" for count in MACHINES],
        "a failure somewhere": [f"every {_time(_HOUR / (given.failure_rate * count))}" for count in MACHINES],
        "check of all float32 files": [_time(checked / count) for count in MACHINES],
    }
    head = ["| machines | " + " | ".join(f"{count:,}" for count in MACHINES) + " |", "|---|" + "--:|" * len(MACHINES)]
    return head + [f"| {name} | " + " | ".join(values) + " |" for name, values in rows.items()]


def storage(given: argparse.Namespace) -> list[str]:
    """Bytes by precision."""
    lines = ["| precision | bytes of a document | files | index |", "|---|--:|--:|--:|"]
    for precision in PRECISIONS:
        files, index = (sizes[precision] * given.documents / 1e12 for sizes in (BYTES, INDEX_BYTES))
        lines.append(f"| `{precision}` | {BYTES[precision]:,.0f} | {files:,.2f} TB | {index:,.2f} TB |")
    return lines


def _hours(given: argparse.Namespace) -> float:
    return float(given.documents * given.tokens_per_document / given.tokens_per_second / _HOUR)


def _shards(given: argparse.Namespace) -> float:
    return float(np.ceil(given.documents / given.shard_rows))


def _short(number: float) -> str:
    return f"{number / 1e9:,.0f} billion"


def _time(seconds: float) -> str:
    """A time in the largest unit that fits."""
    for unit, name in ((_YEAR, "years"), (_DAY, "days"), (_HOUR, "hours"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.1f} s"


# --- sizes -----------------------------------------------------------------------------------------------------------


def measure_tokens(model: str, smoke: bool) -> None:
    """Print the mean tokens of SciFact's documents, cut to the default limit."""
    from transformers import AutoTokenizer

    from unmask.encoding.tokenization import MAX_LENGTH, PromptTokenizer
    from unmask.models.bundled import resolve

    texts = [f"{row['title']} {row['text']}".strip() for row in _inputs.rows("scifact/corpus.jsonl", smoke)]
    prompts = PromptTokenizer(AutoTokenizer.from_pretrained(resolve(model)), "plain", MAX_LENGTH)
    tokens = [len(text.ids) for text in prompts.tokenize(texts)]
    print(f"{len(texts)} documents of SciFact, cut to {MAX_LENGTH} tokens: {np.mean(tokens):.0f} tokens each")


def measure_bytes(rows: int, dim: int) -> None:
    """Print the bytes of a vector in each kind of file. Values are random: real ones compress as little."""
    vectors = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for precision, written in _written(vectors):
            files = _parquet_bytes(Path(folder) / f"{precision}.parquet", written) / rows
            index = _index_bytes(Path(folder) / f"{precision}.usearch", written, dim, precision) / rows
            print(
                f"{precision:8} {rows} vectors of {dim}: parquet {files:.0f} bytes each, usearch {index:.0f} bytes each",
                flush=True,
            )


def _written(vectors: Any) -> Iterator[tuple[str, Any]]:
    for precision in PRECISIONS:
        yield precision, finish(vectors, None, True, precision)


def _index_bytes(file: Path, vectors: Any, dim: int, precision: str) -> int:
    from usearch.index import Index

    metric = "hamming" if precision == "binary" else "cos"
    index = Index(ndim=dim, metric=metric, dtype=_USEARCH[precision])
    index.add(np.arange(len(vectors)), vectors, threads=1)
    index.save(str(file))
    return file.stat().st_size


def _parquet_bytes(file: Path, vectors: Any) -> int:
    from unmask.bulk.vector_writers import WRITERS, Block, Layout

    with WRITERS[".parquet"](file, Layout(vectors.shape[1], vectors.dtype)) as write:
        for start in range(0, len(vectors), 4096):
            part = vectors[start : start + 4096]
            write(Block([f"corpus/part-00001.jsonl.gz:{start + row}" for row in range(len(part))], part, {}))
    return file.stat().st_size


if __name__ == "__main__":
    main()
