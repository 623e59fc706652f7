"""`unmask ui`: a page on this machine to look at embeddings."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import Check, Column, Designs, Label, Model, ModelOptions, Port
from unmask.io.terminal import say, tell, tell_result


def ui(
    model: Model,
    designs: Designs = None,
    corpus: Annotated[
        Path | None, typer.Option(help="File of texts to show as a map: txt, jsonl, csv, tsv or parquet.")
    ] = None,
    column: Column = "text",
    label: Label = None,
    port: Port = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    check: Check = False,
    *,
    options: ModelOptions,
) -> None:
    """Explore embeddings on a local page: similarities, tokens, routing, a map of a corpus.

    It shows one or two designs. Only this machine can open the page.
    """
    from unmask.server.server import listen
    from unmask.ui.server import PageServer, load_page, open_in_browser, read_inputs

    inputs = read_inputs(corpus, column, label, ",".join(designs or ()))
    with listen("127.0.0.1", port) as listening:
        page = load_page(model, inputs, **asdict(options))
        server = PageServer(page, listening)
        names = list(page.embedders.designs)
        tell_result({"address": None if check else server.address, "designs": names})
        for line in (f"designs: {', '.join(names)}", *inputs.summary):
            (tell if check else say)(line)
        if check:
            return
        say(f"open {server.address} (Ctrl-C stops the page)")
        with open_in_browser(server.address) if open_page else nullcontext():
            server.run()
        say("stopped")
