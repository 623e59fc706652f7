"""`unmask ui`: a page on this machine to look at embeddings."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import Model, ModelOptions, complete_design
from unmask.io.terminal import say, tell, tell_result


def ui(
    model: Model,
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders with reports, to list on the page.")] = None,
    designs: Annotated[
        list[str] | None,
        typer.Option(
            "--designs",
            "-d",
            help="One or two designs (see `unmask designs`), separated by a comma. Default: the saved embedder's design, or "
            "prompteol,mean.",
            autocompletion=complete_design,
        ),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="File of texts to show as a map: txt, jsonl, csv, tsv or parquet.")
    ] = None,
    column: Annotated[str, typer.Option(help="Column of the corpus that holds the text.")] = "text",
    label: Annotated[str | None, typer.Option(help="Column of the corpus that gives its points a colour.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Load the model, check everything, and end.")] = False,
    *,
    options: ModelOptions,
) -> None:
    """Look at embeddings on a local page: similarities, tokens, routing, a map of a corpus, reports.

    Only this machine can open the page.
    """
    from unmask.errors import UnmaskError
    from unmask.server.server import listen
    from unmask.ui.page_file import opened
    from unmask.ui.server import PageServer
    from unmask.ui.start import load_page, read_inputs

    if label and not corpus:
        raise UnmaskError("--label names a column of the corpus: give --corpus FILE, too.")
    inputs = read_inputs(folders or [], corpus, column, label, ",".join(designs or ()))
    with listen("127.0.0.1", port) as listening:
        page = load_page(model, inputs, **asdict(options))
        show = tell if check else say
        for line in (f"designs: {', '.join(page.workbench.designs)}", *inputs.summary):
            show(line)
        if check:
            tell_result({"address": None, "designs": list(page.workbench.designs)})
            return
        server = PageServer(page, listening)
        tell_result({"address": server.address, "designs": list(page.workbench.designs)})
        say(f"open {server.address} (Ctrl-C stops the page)")
        with opened(server.address) if open_page else nullcontext():
            server.run()
        say("stopped")
