"""`unmask embed`: texts in, vectors out: one file, or a corpus into a folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import Design, Model, ModelOptions, refuse_given
from unmask.encoding.precision import Precision
from unmask.io.terminal import counted, say, tell_result

Texts = Annotated[
    list[Path],
    typer.Argument(
        help="Files, folders or quoted patterns ('data/*.jsonl'): txt (one text per line), jsonl, json, csv, tsv, parquet or feather. "
        "Texts may be compressed: .gz, .zst. '-' reads standard input: JSON lines, or one text per line."
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE|FOLDER",
        help="A file (.parquet, .npy or .jsonl) for one input file: a bad row is an error, and nothing is written. Or a folder (a name "
        "without an ending) for a corpus of any size: bad rows go to its dead-letters/, and the exit code is 1. Run the same command "
        "again to continue a folder.",
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="TOKENS", help="Split each text into chunks of at most this many tokens. Each chunk gets a vector."
    ),
]
Overlap = Annotated[
    int, typer.Option(min=0, metavar="TOKENS", help="Most tokens that a chunk shares with the chunk before it.")
]
Late = Annotated[
    bool,
    typer.Option(
        "--late", help="Late chunking: read the whole text, then pool each chunk. --max-length limits how much is read."
    ),
]
_OF_A_FOLDER = ("workers", "ray_address", "shard_rows", "prune")


def embed(
    context: typer.Context,
    texts: Texts,
    model: Model,
    output: Output,
    design: Design = None,
    column: Annotated[str, typer.Option(help="Column that holds the text.")] = "text",
    id_column: Annotated[
        str | None, typer.Option(help="Column that identifies a row. Default: the row's number, or FILE:NUMBER in a folder.")
    ] = None,
    keep: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Columns to copy beside the vectors, as text, such as title,year.")
    ] = "",
    instruction: Annotated[str | None, typer.Option(help="Text to put in place of {instruction} in the prompt.")] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Keep only the first N dimensions.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to unit length.")] = False,
    precision: Annotated[Precision, typer.Option(help="Number format of the vectors that are written.")] = "float32",
    chunk: Chunk = None,
    overlap: Overlap = 0,
    late: Late = False,
    fit_on: Annotated[Path | None, typer.Option(help="File of texts to fit zscore, whiten, alpha and idf on.")] = None,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="Most rows in one vector file of a folder. Default: 50000.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes for a folder. Each has its own cores or its own GPU. Default: one; with --ray, one for each GPU or machine.",
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Embed a folder on the Ray cluster at this address. 'local' starts a cluster on this machine.",
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove vectors from the folder if their input file is no longer given.")
    ] = False,
    *,
    options: ModelOptions,
) -> None:
    """Turn texts into vectors with ids. A manifest records everything that the vectors depend on."""
    from unmask.bulk.folder import embed_folder
    from unmask.bulk.job import SHARD_ROWS, EmbedderArguments, Job
    from unmask.bulk.on_ray import OnRay
    from unmask.bulk.single_file import check_file, embed_file
    from unmask.bulk.stdin import STDIN, spooled_stdin
    from unmask.bulk.team import Team, ThisProcess
    from unmask.bulk.workers import Workers
    from unmask.errors import UnmaskError

    kept = tuple(name for part in keep.split(",") if (name := part.strip()))
    size = shard_rows or SHARD_ROWS
    job = Job(tuple(texts), output, column, id_column, instruction, dim, normalize, precision, kept, size, chunk, overlap, late)
    arguments = EmbedderArguments(model, design, asdict(options), fit_on)
    from_stdin = STDIN in texts
    if from_stdin and (len(texts) > 1 or job.to_folder):
        raise UnmaskError(
            "'-' (standard input) goes into one file of vectors: give no other input, and -o FILE.parquet, .npy or .jsonl."
        )
    if not job.to_folder:
        refuse_given(context, _OF_A_FOLDER, "is for a folder of vectors: give -o a name without an ending.")
        arguments.check()
        with spooled_stdin() if from_stdin else nullcontext() as spooled:
            job = replace(job, inputs=(spooled,)) if spooled else job
            given = check_file(job, "-" if spooled else None)
            done = embed_file(arguments.load(), job, given)
        tell_result(
            {
                "output": str(output),
                "manifest": str(job.manifest),
                "vectors": done.texts,
                "dim": done.dim,
                "precision_loss": done.loss.as_json() if done.loss else None,
            }
        )
        say(f"{counted(done.texts, 'vector')} of {done.dim} dimensions in {output}; {job.manifest} says how they were made.")
        if done.loss:
            say(f"{done.loss}.")
        return
    arguments.check()
    team: Callable[[], Team] = partial(ThisProcess, job, arguments)
    if ray_address is not None:
        team = partial(OnRay, job, arguments, ray_address, workers)
    elif workers is not None and workers > 1:
        team = partial(Workers, job, arguments, workers)
    manifest = embed_folder(job, team, prune=prune)
    tell_result({"output": str(output), **manifest.model_dump(mode="json", exclude={"description", "inputs", "shards"})})
    say(manifest.told(output))
    if not manifest.flawless:
        raise typer.Exit(1)
