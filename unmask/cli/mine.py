"""`unmask mine`: pairs in, triples with hard negatives out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.lesson_options import LAST_SEED, MOST_TEXTS
from unmask.cli.options import Model, ModelOptions
from unmask.io.terminal import say, tell_result

DEFAULT_DESIGN = "prompteol-z"  # a ratio of cosines means little among vectors that all point one way


def mine(
    pairs: Annotated[
        str,
        typer.Argument(
            help="Training pairs: a file (jsonl, json, csv, tsv, parquet, feather), a folder of queries and documents, or "
            "hub:REPO[:CONFIG]."
        ),
    ],
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="jsonl file to write: anchor, positive, negative_1, ...")
    ],
    design: Annotated[
        str | None,
        typer.Option(
            "--design", "-d", help="A design (see `unmask designs`). Default: the saved embedder's design, or prompteol-z."
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="File of more texts to find negatives in. If the pairs are a folder, titles stand before these texts."
        ),
    ] = None,
    negatives: Annotated[int, typer.Option(min=1, max=MOST_TEXTS, help="Negatives for each pair.")] = 1,
    ratio: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Keep a negative only if its similarity is below this share of the positive's. 0: no limit."
        ),
    ] = 0.95,
    margin: Annotated[
        float,
        typer.Option(min=0, max=2, help="Keep a negative only if it is less similar than the positive by at least this much."),
    ] = 0.0,
    skip: Annotated[int, typer.Option(min=0, max=MOST_TEXTS, help="Skip this many texts at the top of each ranking.")] = 0,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Use only rows with this value, such as label=1, score={at_least=4} or label=['yes','no']. Repeat for several columns.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many pairs, sampled with --seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LAST_SEED, help="Seed of the sample.")] = 0,
    instruction: Annotated[
        str | None, typer.Option(help="Text to put in place of {instruction} in the prompt of anchors.")
    ] = None,
    document_instruction: Annotated[
        str | None, typer.Option(help="Text to put in place of {instruction} in the prompt of positives and negatives.")
    ] = None,
    *,
    options: ModelOptions,
) -> None:
    """Find hard negatives for training pairs: texts that the model ranks high for an anchor, but that do not match it."""
    from pydantic import ValidationError

    from unmask.embedder import Embedder
    from unmask.encoding.words import without_surrogates
    from unmask.errors import UnmaskError, first_problem
    from unmask.io.files import atomic, only_writer_of
    from unmask.saving.folder import read_saved
    from unmask.training.data import DataSource, read_pairs
    from unmask.training.mining import Mining, read_corpus
    from unmask.training.mining import mine as run
    from unmask.training.recipe import parse_setting

    if output.suffix != ".jsonl":
        raise UnmaskError(f"Triples are written as jsonl, so '{output}' would not be read again; name it .jsonl.")
    how = Mining(negatives, skip, ratio or None, margin)
    try:
        source = DataSource(
            path=pairs,
            instruction=instruction,
            document_instruction=document_instruction,
            limit=limit,
            where={column: value for condition in where or () for column, value in parse_setting(condition).items()},
            negatives=0,
        )
    except ValidationError as error:
        raise UnmaskError(f"--where: {first_problem(error)}.") from error
    data = read_pairs(Path(pairs).stem, source, Path(), seed)
    more = read_corpus(corpus, source) if corpus else None
    if not design and not read_saved(model, options.revision, options.adapter, names_design=False):
        design = DEFAULT_DESIGN
    embedder = Embedder.from_pretrained(model, design, **asdict(options))
    mined = run(embedder, data, how, more.texts, more.plain) if more else run(embedder, data, how)
    triples = mined.dataset
    with only_writer_of(output), atomic(output) as scratch, scratch.open("w", encoding="utf-8") as lines:
        for example in triples.examples:
            row = dict(zip(triples.columns, example.texts, strict=True))
            lines.write(without_surrogates(json.dumps(row, ensure_ascii=False)) + "\n")
    tell_result(
        {
            "output": str(output),
            "pairs": len(data.examples),
            "triples": len(triples.examples),
            "negatives": negatives,
            "skipped": dict(triples.skipped),
            "mean_cosine": {"positive": mined.positive, "negative": mined.negative, "any_text": mined.anything},
        }
    )
    left = "".join(f"; {count} {reason}" for reason, count in triples.skipped.items())
    left += f"; columns not read: {', '.join(triples.unread)}" if triples.unread else ""
    say(f"{len(triples.examples)} of {len(data.examples)} pairs with {negatives} negatives in {output}{left}.")
    likes = (
        f"{mined.positive:.3f} with its positive, {mined.negative:.3f} with its negatives, {mined.anything:.3f} with any text"
    )
    say(f"mean cosine of an anchor: {likes}.")
