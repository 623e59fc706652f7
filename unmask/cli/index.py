"""`unmask index`: files of documents in, an index to search out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import AsJson, Design, Model, ModelOptions
from unmask.encoding.quantization import Precision
from unmask.io.terminal import counted, say, tell

if TYPE_CHECKING:
    from unmask.search.build import Done
    from unmask.search.job import Planned


def index(
    texts: Annotated[
        list[Path], typer.Argument(help="Files, folders or quoted patterns: txt, jsonl, json, csv, tsv, parquet, feather.")
    ],
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the index. An index that is there is updated.")
    ],
    design: Design = None,
    column: Annotated[str, typer.Option(help="Column that holds the text.")] = "text",
    title_column: Annotated[
        str | None,
        typer.Option(
            help="Column that holds a title. The title is put before the text. Default: title, if there is one. '': no titles."
        ),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Column that identifies a document. Default: _id or id, else file and line.")
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(help="Text to put in place of {instruction} in the prompt of documents.")
    ] = None,
    query_instruction: Annotated[
        str | None, typer.Option(help="Text to put in place of {instruction} in the prompt of queries.")
    ] = None,
    precision: Annotated[Precision | None, typer.Option(help="Number format of the stored vectors. Default: float32.")] = None,
    store: Annotated[
        str | None, typer.Option(help="lance (LanceDB) or usearch (plain files). Default: the first one that is installed.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Language of the texts, for BM25's word stems. Default: english. none: no stems.")
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Build an approximate index. More than 100 000 documents always get one.")
    ] = False,
    lexical: Annotated[
        bool,
        typer.Option(
            "--lexical",
            help="Store lexical vectors too, for `unmask search` with --lexical or --hybrid. Later updates keep them.",
        ),
    ] = False,
    keep_missing: Annotated[
        bool, typer.Option("--keep-missing", help="Keep documents that are no longer in the files.")
    ] = False,
    fit_on: Annotated[
        Path | None,
        typer.Option(help="File of texts to fit zscore, whiten, alpha and idf on. An update keeps the fit of the index."),
    ] = None,
    as_json: AsJson = False,
    *,
    options: ModelOptions,
) -> None:
    """Build a search index of documents, or update it. Only new and changed texts are embedded.

    Documents that are no longer in the files are removed from the index.
    If a run is stopped, the index stays as it was. Run the same command again to continue.
    """
    from unmask.saving.folder import read_saved
    from unmask.search.documents import Corpus
    from unmask.search.job import Job

    given = {"query": query_instruction, "document": instruction}
    instructions = {name: said for name, said in given.items() if said is not None}
    if instructions and (saved := read_saved(model, options.revision, options.adapter)):
        instructions = {**saved.instructions, **instructions}  # an option changes one instruction, and the other stays
    corpus = Corpus.found(texts, output, column, title_column, id_column)
    source = (model, options.revision, tuple(options.adapter or ()))
    planned = Job(
        corpus, output, *source, store, precision, language, approximate, keep_missing, fit_on is not None, lexical, design
    ).check()
    _tell(_build(planned, design, instructions or None, fit_on, options), output, as_json)


def _build(
    planned: Planned, design: str | None, instructions: dict[str, str] | None, fit_on: Path | None, options: ModelOptions
) -> Done:
    """Load the embedder, and make the index."""
    from unmask.bulk.job import EmbedderArguments
    from unmask.search.build import build

    loading = asdict(options) | {"instructions": instructions}
    embedder = EmbedderArguments(planned.job.model, design, loading, fit_on).load()
    done = build(embedder, planned)
    if done.truncated:
        say(f"{done.truncated} of {done.embedded} texts were cut to {embedder.max_length} tokens (--max-length)")
    return done


def _tell(done: Done, output: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(done)))
        return
    tell(
        f"{output}: {counted(done.documents, 'document')}; {done.added} added, {done.changed} changed, {done.removed} removed, "
        f"{counted(done.embedded, 'text')} embedded."
    )
    if done.recall_told:
        tell(done.recall_told)
