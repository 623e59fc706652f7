"""`unmask mine`: hard negatives for training pairs. `unmask leaks`: training texts that a task scores."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from unmask.cli.options import (
    MAX_TEXTS,
    AsJson,
    Design,
    Instruction,
    Limit,
    Model,
    ModelOptions,
    OutputFile,
    Reads,
    Seed,
    Tasks,
)
from unmask.io.terminal import say, tell_json, tell_result


def mine(
    pairs: Annotated[
        str,
        Reads(),
        typer.Argument(
            help="Training pairs: a file (jsonl, json, csv, tsv, parquet, feather), a folder of queries and documents, or "
            "hub:REPO[:CONFIG]."
        ),
    ],
    model: Model,
    output: OutputFile,
    design: Design = None,
    corpus: Annotated[
        str | None,
        Reads(),
        typer.Option(
            help="File of more texts to find negatives in. If the pairs are a folder, titles are put before the texts."
        ),
    ] = None,
    negatives: Annotated[int, typer.Option(min=1, max=MAX_TEXTS, help="Negatives for each pair.")] = 1,
    ratio: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Keep a negative only if its similarity is below this share of the positive's. 0: no limit."
        ),
    ] = 0.95,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Use only rows with this value, such as label=1, score={at_least=4} or label=['yes','no']. Repeat for several columns.",
        ),
    ] = None,
    limit: Limit = None,
    seed: Seed = 0,
    instruction: Instruction = None,
    *,
    options: ModelOptions,
) -> None:
    """Find hard negatives for training pairs: texts that the model ranks high for an anchor, but that do not match it."""
    from unmask.training.mining import mine_file

    data, mined = mine_file(
        pairs,
        model,
        output,
        negatives=negatives,
        ratio=ratio or None,
        corpus=corpus,
        where=where or (),
        limit=limit,
        seed=seed,
        instruction=instruction,
        design=design,
        **asdict(options),
    )
    triples = mined.dataset
    tell_result(
        {
            "output": str(output),
            "pairs": len(data.examples),
            "triples": len(triples.examples),
            "negatives": negatives,
            "skipped": dict(triples.skipped),
            "mean_cosine": {"positive": mined.positive_cosine, "negative": mined.negative_cosine, "any_text": mined.any_cosine},
        }
    )
    skipped = "".join(f"; {count} {reason}" for reason, count in triples.skipped.items())
    skipped += f"; columns not read: {', '.join(triples.unread)}" if triples.unread else ""
    say(f"{len(triples.examples)} of {len(data.examples)} pairs with {negatives} negatives in {output}{skipped}.")
    say(
        f"mean cosine of an anchor: {mined.positive_cosine:.3f} with its positive, {mined.negative_cosine:.3f} with its negatives, "
        f"{mined.any_cosine:.3f} with any text."
    )


def leaks(
    train: Annotated[
        list[str],
        Reads(),
        typer.Option(
            help="Training data: a file or folder of texts, pairs or triples, hub:REPO[:CONFIG] or starter:pairs. Repeat for several."
        ),
    ],
    task: Tasks,
    as_json: AsJson = False,
) -> None:
    """Look for leaks: count the training texts and pairs that also occur in a task, exactly or nearly."""
    from unmask.reporting.console import print_leaks
    from unmask.training.leakage import search_leaks

    reports = search_leaks(train, task)
    if as_json:
        tell_json([{"path": path, **report.as_json()} for path, report in zip(train, reports, strict=True)])
    else:
        print_leaks(reports)
