"""`unmask index`: documents in, an index out. `unmask search`: the best documents of an index for a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import (
    ADVANCED,
    AsJson,
    Column,
    Design,
    FitOn,
    IdColumn,
    Instruction,
    Model,
    ModelOptions,
    OutputFolder,
)
from unmask.errors import UnmaskError
from unmask.io import terminal
from unmask.io.terminal import counted, say, tell, tell_json
from unmask.search.record import Language, Mode

if TYPE_CHECKING:
    from unmask.search.index import Hit

_BATCH = 64  # queries of a file that are embedded together


def index(
    texts: Annotated[
        list[Path], typer.Argument(help="Files, folders or quoted patterns: txt, jsonl, json, csv, tsv, parquet, feather.")
    ],
    model: Model,
    output: OutputFolder,
    design: Design = None,
    column: Column = "text",
    title_column: Annotated[
        str | None,
        typer.Option(
            help="Column that holds a title, which is put before the text. Default: title, if it exists. '': no titles."
        ),
    ] = None,
    id_column: IdColumn = None,
    instruction: Instruction = None,
    query_instruction: Annotated[
        str | None, typer.Option(help="Text that replaces {instruction} in the prompt of queries.")
    ] = None,
    language: Annotated[
        Language | None,
        typer.Option(
            help="Reduce words to their stems in this language, for BM25. Default: none, which is right for texts in any language.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Build an approximate index. More than 100,000 documents always get one.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    keep_missing: Annotated[
        bool,
        typer.Option("--keep-missing", help="Keep documents that are no longer in the files.", rich_help_panel=ADVANCED),
    ] = False,
    fit_on: FitOn = None,
    as_json: AsJson = False,
    *,
    options: ModelOptions,
) -> None:
    """Build a search index of documents, or update it. Only new and changed texts are embedded.

    Documents that are no longer in the files are removed from the index. An update that is stopped leaves the index unchanged.
    """
    from unmask.bulk.loading import EmbedderArguments
    from unmask.io.sources import find_files
    from unmask.saving.folder import read_saved
    from unmask.search.build import IndexJob, build
    from unmask.search.documents import DocumentSource

    by_role = {"query": query_instruction, "document": instruction}
    instructions = {name: text for name, text in by_role.items() if text is not None}
    if instructions and (saved := read_saved(model, options.revision, options.adapter)):
        instructions = {**saved.instructions, **instructions}
    arguments = EmbedderArguments(model, design, asdict(options) | {"instructions": instructions or None}, fit_on)
    arguments.check()
    job = IndexJob(
        corpus=DocumentSource(tuple(find_files(texts, output)), column, title_column, id_column),
        output=output,
        model=model,
        revision=options.revision,
        adapters=tuple(options.adapter or ()),
        language=language,
        approximate=approximate,
        keep_missing=keep_missing,
        fitted=fit_on is not None,
    )
    result = build(job, arguments.load)
    if result.truncated:
        say(f"{result.truncated} of {result.embedded} texts were truncated (--max-length)")
    if as_json:
        print(json.dumps(asdict(result)))
        return
    tell(
        f"{output}: {counted(result.documents, 'document')}; {result.added} added, {result.changed} changed, {result.removed} removed, "
        f"{counted(result.embedded, 'text')} embedded."
    )
    if result.recall is not None:
        tell(f"The approximate index finds {result.recall:.1%} of the ten nearest documents.")


def search(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of an index (see `unmask index`).")],
    query: Annotated[str | None, typer.Argument(help="Text to search for.")] = None,
    number: Annotated[int, typer.Option("-k", "--number", min=1, help="Documents to show.")] = 10,
    condition: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="SQL", help="Search only documents with these properties: \"year >= 2020 and tag = 'a'\"."
        ),
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="dense: vectors. bm25: shared words, without a model. hybrid: both rankings, fused.")
    ] = "dense",
    exact: Annotated[bool, typer.Option("--exact", help="Compare all documents, even if the index is approximate.")] = False,
    queries: Annotated[
        Path | None, typer.Option(help="File of queries (column text) instead of one query. Prints a line of JSON for each.")
    ] = None,
    as_json: AsJson = False,
    *,
    options: Annotated[ModelOptions, "device", "trust_remote_code"],
) -> None:
    """Find the documents of an index that answer a query best."""
    if (query is None) == (queries is None):
        raise UnmaskError("Give one query, or a file of queries with --queries.")
    if exact and mode == "bm25":
        raise UnmaskError("--mode bm25 compares all documents anyway, so --exact would change nothing.")
    from unmask.search.documents import DocumentSource, read_documents
    from unmask.search.index import Index

    if mode != "bm25":
        say("loading the model of the index ...")
    opened = Index.open(folder, device=options.device, trust_remote_code=options.trust_remote_code)
    if queries is not None:
        file = DocumentSource((queries,))
        if not sum(1 for _ in read_documents(file)):  # also reports a mistake in the last line before the first answer
            raise UnmaskError(f"'{queries}' holds no query.")
        documents = read_documents(file)
        for batch in iter(lambda: list(islice(documents, _BATCH)), []):
            answers = opened.search_all([row.full_text for row in batch], number, mode=mode, where=condition, exact=exact)
            for row, hits in zip(batch, answers, strict=True):
                print(json.dumps({"id": row.id, "query": row.full_text, "hits": [hit.as_json() for hit in hits]}))
        return
    hits = opened.search(str(query), number, mode=mode, where=condition, exact=exact)
    if as_json:
        tell_json([hit.as_json() for hit in hits])
    else:
        _print_hits(hits, mode)


def _print_hits(hits: Sequence[Hit], mode: Mode) -> None:
    from rich.text import Text

    if not hits:
        tell("No document was found.")
        return
    table = terminal.table("")
    table.add_column("", justify="right")
    table.add_column({"dense": "cosine", "bm25": "BM25", "hybrid": "fused"}[mode], justify="right")
    table.add_column("id", overflow="fold", max_width=20)
    table.add_column("passage", overflow="fold")
    for hit in hits:
        passage = Text(terminal.visible(hit.snippet.removeprefix(hit.title).strip()))
        if hit.title:
            passage = Text().append(terminal.visible(hit.title), style="bold").append("\n").append(passage)
        table.add_row(str(hit.rank), f"{hit.score:.4f}", hit.id, passage)
    terminal.console().print(table)
