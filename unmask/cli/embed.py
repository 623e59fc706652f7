"""`unmask embed`: a file of texts in, a file of vectors out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import Model, ModelOptions
from unmask.encoding.precision import Precision
from unmask.io.terminal import say


def embed(
    texts: Annotated[Path, typer.Argument(help="txt (a text a line), jsonl, csv, tsv or parquet.")],
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="parquet, npy or jsonl.")],
    design: Annotated[
        str | None, typer.Option("--design", "-d", help="A design (see `unmask designs`); prompteol by default.")
    ] = None,
    column: Annotated[str, typer.Option(help="Column that holds the text.")] = "text",
    id_column: Annotated[str | None, typer.Option(help="Column that identifies a row; the row's number if not given.")] = None,
    instruction: Annotated[str | None, typer.Option(help="What the prompt's {instruction} says.")] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Keep the first dimensions only.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to unit length.")] = False,
    precision: Annotated[Precision, typer.Option(help="Of the vectors that are written.")] = "float32",
    fit_on: Annotated[Path | None, typer.Option(help="Texts to fit zscore, whiten and alpha on.")] = None,
    *,
    options: ModelOptions,
) -> None:
    """Embed a file of texts, with ids, and a manifest of everything that the vectors depend on."""
    from unmask.embedder import Embedder
    from unmask.errors import UnmaskError
    from unmask.serving.bulk import Job, embed_file, read_texts

    job = Job(texts, output, column, id_column, instruction, dim, normalize, precision)
    given = job.check()
    corpus = None if fit_on is None else [text for _, text in read_texts(fit_on, "text", None)]
    embedder = Embedder.from_pretrained(model, design, **asdict(options))
    if corpus is not None:
        if not embedder.design.needs_fit:
            raise UnmaskError(f"'{embedder.design.name}' has nothing to fit, so --fit-on would change nothing.")
        embedder.fit(corpus)
    done = embed_file(embedder, job, given)
    say(f"{done.texts} vectors of {done.dim} dimensions in {output}; {output}.manifest.json says how they were made.")
