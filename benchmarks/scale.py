"""One billion documents on paper: hours, cost, failures and storage. docs/scale.md shows the tables.

    python -m benchmarks.scale [--tokens-per-second 1000] [--price 0.1] [--failure-rate 0.001] [--documents 1e9] ...
    python -m benchmarks.scale --measure 2000

The first form computes from its options only. The second measures the sizes that it computes with, on 2000 random vectors: bytes of a
document in a parquet file that `unmask embed` writes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks._common import head, row, start
from unmask.encoding.quantization import PRECISIONS, finish

BYTES = {"float32": 2311.0, "float16": 1111.0, "int8": 585.0, "binary": 80.0}
"""Bytes of a document in a parquet file with its id, at 576 dimensions, as `--measure` printed them."""
MACHINES = (1, 10, 1000)
HOUR = 3600.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all tables, or the sizes that they need."""
    args = start(
        __file__, __doc__, arguments, measure=(0, 100), documents=1e9, tokens_per_document=313.0, tokens_per_second=1000.0, cores=2,
        price=0.1, failure_rate=0.001, load_seconds=30.0, shard_rows=50_000, read_megabytes=500.0,
    )  # fmt: skip
    if args.measure:
        measure(args.measure, dim=576)
    if not args.measure or args.smoke:
        compute(args)


def compute(args: argparse.Namespace) -> None:
    """The bill, what changes with the number of machines, and storage."""
    hours = args.documents * args.tokens_per_document / args.tokens_per_second / HOUR
    shards = np.ceil(args.documents / args.shard_rows)
    shard = args.shard_rows * args.tokens_per_document / args.tokens_per_second
    failures = hours * args.failure_rate
    lost = failures * (shard / 2 + args.load_seconds) / HOUR
    head("what", "figure", "from")
    row("tokens", f"{args.documents * args.tokens_per_document / 1e9:,.0f} billion", "documents x tokens of a document")
    row("machine hours", f"{hours:,.0f}", "tokens / tokens per second")
    row("core hours", f"{hours * args.cores:,.0f}", "machine hours x cores")
    row("cost", f"{hours * args.price:,.0f}", "machine hours x price")
    row("shards", f"{shards:,.0f}", "documents / rows of a shard")
    row("time of a shard", duration(shard), "rows x tokens of a document / tokens per second")
    row("failures expected", f"{failures:,.0f}", "machine hours x failure rate")
    row("work lost to failures", f"{lost:,.0f} machine hours ({lost / hours:.2%})", "failures x (half a shard + loading)")
    head("machines", *(f"{count:,}" for count in MACHINES))
    row("time of the run", *(duration(hours * HOUR / count) for count in MACHINES))
    row("shards of a machine", *(f"{shards / count:,.0f}" for count in MACHINES))
    row("last shard, of the whole time", *(f"{shard / (hours * HOUR / count):.2%}" for count in MACHINES))
    row("a failure somewhere", *(f"every {duration(HOUR / (args.failure_rate * count))}" for count in MACHINES))
    check = args.documents * BYTES["float32"] / (args.read_megabytes * 1e6)
    row("check of all float32 files", *(duration(check / count) for count in MACHINES))
    head("precision", "bytes of a document", "files")
    for precision in PRECISIONS:
        row(f"`{precision}`", f"{BYTES[precision]:,.0f}", f"{BYTES[precision] * args.documents / 1e12:,.2f} TB")


def duration(seconds: float) -> str:
    """A time in the largest unit that fits."""
    for unit, name in ((365 * 24 * HOUR, "years"), (24 * HOUR, "days"), (HOUR, "hours"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.1f} s"


def measure(count: int, dim: int) -> None:
    """Bytes of a vector in each kind of file. Values are random: real ones compress as little."""
    from unmask.bulk.vector_writers import WRITERS, Block, Layout

    vectors = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)
    head("precision", "parquet")
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            parquet = Path(folder) / f"{precision}.parquet"
            written = finish(vectors, None, True, precision)
            with WRITERS[".parquet"](parquet, Layout(written.shape[1], written.dtype)) as write:
                for begin in range(0, count, 4096):
                    part = written[begin : begin + 4096]
                    write(Block([f"corpus/part-00001.jsonl.gz:{begin + k}" for k in range(len(part))], part, {}))
            row(f"`{precision}`", f"{parquet.stat().st_size / count:.0f}")


if __name__ == "__main__":
    main()
