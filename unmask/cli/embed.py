"""`unmask embed`: texts in, vectors out: one file, or a corpus into a folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import (
    ADVANCED,
    Column,
    Design,
    FitOn,
    IdColumn,
    Instruction,
    Model,
    ModelOptions,
    Precisions,
    Ray,
    Writes,
    refuse_options,
)
from unmask.io.terminal import counted, say, tell_result

_FOR_FOLDERS = ("workers", "ray_address", "shard_rows", "prune")


def embed(
    context: typer.Context,
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="Files, folders or quoted patterns ('data/*.jsonl'): txt (one text per line), jsonl, json, csv, tsv, parquet or feather. "
            "Texts may be compressed: .gz, .zst. '-' reads standard input: JSON lines, or one text per line."
        ),
    ],
    model: Model,
    output: Annotated[
        Path,
        Writes(folder=None, resumable=True),
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|FOLDER",
            help="A file (.parquet, .npy or .jsonl) for one input file: a bad row is an error. Or a folder (a name without suffix) for a "
            "corpus of any size: bad rows go to its dead-letters/, and the exit code is 1. The same command continues a folder.",
        ),
    ],
    design: Design = None,
    column: Column = "text",
    id_column: IdColumn = None,
    keep: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Columns to copy next to the vectors, as text, such as title,year.")
    ] = "",
    instruction: Instruction = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Keep only the first N dimensions.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to unit length.")] = False,
    precision: Precisions = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="TOKENS", help="Split each text into chunks of at most this many tokens, with one vector each."
        ),
    ] = None,
    overlap: Annotated[
        int, typer.Option(min=0, metavar="TOKENS", help="Tokens that a chunk shares with the previous chunk, at most.")
    ] = 0,
    late: Annotated[
        bool,
        typer.Option(
            "--late",
            help="Late chunking: encode the full text (up to --max-length), then pool each chunk.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    fit_on: FitOn = None,
    shard_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum rows of a vector file in a folder. Default: 50000.", rich_help_panel=ADVANCED),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes for a folder, each with its cores or its GPU. Default: one; with --ray, one per GPU or machine.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    ray_address: Ray = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove vectors from the folder if their input file is no longer given.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    *,
    options: ModelOptions,
) -> None:
    """Turn texts into vectors with ids. A manifest records everything that the vectors depend on."""
    from unmask.bulk.folder import embed_folder
    from unmask.bulk.job import SHARD_ROWS, EmbedJob
    from unmask.bulk.loading import EmbedderArguments
    from unmask.bulk.on_ray import OnRay
    from unmask.bulk.single_file import check_file, embed_file, stdin_copy
    from unmask.bulk.team import Team, ThisProcess
    from unmask.bulk.workers import Workers
    from unmask.errors import UnmaskError

    job = EmbedJob(
        inputs=tuple(texts),
        output=output,
        column=column,
        id_column=id_column,
        instruction=instruction,
        dim=dim,
        normalize=normalize,
        precision=precision or "float32",
        keep=tuple(name for part in keep.split(",") if (name := part.strip())),
        shard_rows=shard_rows or SHARD_ROWS,
        chunk=chunk,
        overlap=overlap,
        late=late,
    )
    arguments = EmbedderArguments(model, design, asdict(options), fit_on)
    is_stdin = Path("-") in texts
    if is_stdin and (len(texts) > 1 or job.to_folder):
        raise UnmaskError(
            "'-' (standard input) goes into one file of vectors: give no other input, and -o FILE.parquet, .npy or .jsonl."
        )
    arguments.check()
    if not job.to_folder:
        refuse_options(context, _FOR_FOLDERS, "applies to a folder of vectors: give -o a name without suffix.")
        with stdin_copy() if is_stdin else nullcontext() as spooled:
            job = replace(job, inputs=(spooled,)) if spooled else job
            file = check_file(job, "-" if spooled else None)
            result = embed_file(arguments.load(), job, file)
        tell_result(
            {
                "output": str(output),
                "manifest": str(job.manifest),
                "vectors": result.texts,
                "dim": result.dim,
                "precision_loss": result.loss.as_json() if result.loss else None,
            }
        )
        say(
            f"{counted(result.texts, 'vector')} of {result.dim} dimensions in {output}; {job.manifest} says how they were made."
        )
        if result.loss:
            say(f"{result.loss}.")
        return
    team: Callable[[], Team] = partial(ThisProcess, job, arguments)
    if ray_address is not None:
        team = partial(OnRay, job, arguments, ray_address, workers)
    elif workers is not None and workers > 1:
        team = partial(Workers, job, arguments, workers)
    manifest = embed_folder(job, team, prune=prune)
    tell_result({"output": str(output), **manifest.model_dump(mode="json", exclude={"description", "inputs", "shards"})})
    say(manifest.summary(output))
    if not manifest.flawless:
        raise typer.Exit(1)
