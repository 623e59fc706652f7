"""`unmask search`: the best documents of an index for a query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import AsJson, ModelOptions
from unmask.io.terminal import say, tell_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unmask.search.documents import Document
    from unmask.search.hits import Hit
    from unmask.search.index import Mode

_TOGETHER = 64
"""Queries of a file that are embedded together."""


def search(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of an index (see `unmask index`).")],
    query: Annotated[str | None, typer.Argument(help="What to look for.")] = None,
    number: Annotated[int, typer.Option("-k", "--number", min=1, help="How many documents to show.")] = 10,
    condition: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="FILTER", help="Search only documents with these properties: \"year >= 2020 and tag = 'a'\"."
        ),
    ] = None,
    hybrid: Annotated[
        bool,
        typer.Option(
            "--hybrid", help="Combine the rankings of vectors, of BM25 and, if the index has them, of lexical vectors."
        ),
    ] = False,
    bm25: Annotated[bool, typer.Option("--bm25", help="Rank by shared words only (BM25). No model is loaded.")] = False,
    lexical: Annotated[
        bool, typer.Option("--lexical", help="Rank by lexical vectors only. The index must have been made with --lexical.")
    ] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Compare all documents, even if the index is approximate.")] = False,
    queries: Annotated[
        Path | None, typer.Option(help="File of queries (column text) instead of one query. Prints one line of JSON for each.")
    ] = None,
    as_json: AsJson = False,
    *,
    options: Annotated[ModelOptions, "device", "trust_remote_code"],
) -> None:
    """Find the documents of an index that answer a query best."""
    from unmask.errors import UnmaskError

    if (query is None) == (queries is None):
        raise UnmaskError("Give one query, or a file of queries with --queries.")
    if hybrid + bm25 + lexical > 1:
        raise UnmaskError("Give one of --hybrid, --bm25 and --lexical.")
    if exact and (bm25 or lexical):
        raise UnmaskError("--bm25 and --lexical compare all documents anyway, so --exact would change nothing.")
    from unmask.search.documents import Corpus, read_documents
    from unmask.search.index import Index

    mode: Mode = "hybrid" if hybrid else "bm25" if bm25 else "lexical" if lexical else "dense"
    if not bm25:
        say("loading the model of the index ...")
    index = Index.open(folder, device=options.device, trust_remote_code=options.trust_remote_code)
    if queries is not None:
        asked = Corpus((queries,))
        if not sum(1 for _ in read_documents(asked)):  # a mistake in the last line is told before the first answer
            raise UnmaskError(f"'{queries}' holds no query.")
        for block in _blocks(read_documents(asked)):
            found = index.search_all([one.joined for one in block], number, mode=mode, where=condition, exact=exact)
            for one, hits in zip(block, found, strict=True):
                print(json.dumps({"id": one.id, "query": one.joined, "hits": [hit.as_json() for hit in hits]}))
        return
    hits = index.search(str(query), number, mode=mode, where=condition, exact=exact)
    if as_json:
        tell_json([hit.as_json() for hit in hits])
        return
    _print(hits, mode)


def _blocks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    while block := list(islice(documents, _TOGETHER)):
        yield block


def _passage(hit: Hit) -> RenderableType:
    """The title on a line of its own, and the passage without it."""
    from rich.text import Text

    from unmask.io.terminal import visible

    passage = Text(visible(hit.snippet.removeprefix(hit.title).strip()))
    return Text().append(visible(hit.title), style="bold").append("\n").append(passage) if hit.title else passage


def _print(hits: Sequence[Hit], mode: Mode) -> None:
    from unmask.io import terminal

    if not hits:
        terminal.tell("No document was found.")
        return
    table = terminal.table("")
    table.add_column("", justify="right")
    table.add_column({"dense": "cosine", "bm25": "BM25", "lexical": "lexical", "hybrid": "fused"}[mode], justify="right")
    table.add_column("id", overflow="fold", max_width=20)
    table.add_column("passage", overflow="fold")
    for hit in hits:
        table.add_row(str(hit.rank), f"{hit.score:.4f}", hit.id, _passage(hit))
    terminal.console().print(table)
