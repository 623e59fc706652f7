"""`unmask serve`: a model behind an HTTP server that speaks OpenAI's embeddings API."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import Model, ModelOptions, complete_design
from unmask.errors import require_package
from unmask.io.terminal import say, tell, tell_result


def serve(
    model: Model,
    designs: Annotated[
        list[str] | None,
        typer.Option(
            "--designs",
            "-d",
            help="Designs to serve (see `unmask designs`), separated by commas. LABEL=DESIGN serves a design under the name LABEL. "
            "Default: the saved embedder's design, or prompteol.",
            autocompletion=complete_design,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. With 0.0.0.0 other machines can connect; that needs keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    keys: Annotated[
        Path | None, typer.Option(help="File of keys that clients may use, one per line. Or set UNMASK_API_KEYS.")
    ] = None,
    no_keys: Annotated[
        bool, typer.Option("--no-keys", help="Ask for no key: serve everybody who can reach the address.")
    ] = False,
    max_body: Annotated[int, typer.Option(min=1024, metavar="BYTES", help="Most bytes in one request.")] = 8 * 2**20,
    max_texts: Annotated[int, typer.Option(min=1, help="Most texts in one request.")] = 2048,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens in one request, counted after long texts are truncated.")
    ] = 300_000,
    max_queue: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Most tokens that may wait. Beyond that, clients get status 429.")
    ] = 1_000_000,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, max=86_400, metavar="SECONDS", help="Longest time for one answer. Default: no limit."),
    ] = None,
    token_ids: Annotated[
        bool,
        typer.Option(
            "--allow-token-ids", help="Also accept token ids in place of texts. They must come from this model's tokenizer."
        ),
    ] = False,
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="ORIGIN",
            help="Let web pages of this origin use the server, such as https://app.example; '*' allows all. Repeat for several.",
        ),
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log/--no-access-log", help="Log one line for every request.")] = True,
    check: Annotated[bool, typer.Option("--check", help="Load the model, check everything, and end.")] = False,
    *,
    options: ModelOptions,
) -> None:
    """Serve embeddings over HTTP with OpenAI's API (POST /v1/embeddings)."""
    from unmask.server.browsers import parse_origin
    from unmask.server.keys import read_keys, require_keys
    from unmask.server.limits import Limits

    require_package("uvicorn")
    limits = Limits(
        body_bytes=max_body,
        bodies_bytes=max(Limits.bodies_bytes, max_body),  # else no body of that size would ever be read
        items=max_texts,
        request_tokens=max_tokens,
        queue_tokens=max_queue,
        seconds=timeout,
        token_ids=token_ids,
        origins=tuple(map(parse_origin, cors_origins or ())),
    )
    allowed = read_keys(keys, os.environ)
    require_keys(host, allowed, no_keys)
    logging.getLogger("unmask.access").disabled = not access_log

    from unmask.server.served import load_models  # imports torch, which takes seconds
    from unmask.server.server import Server, address_of, listen

    with listen(host, port) as listening:
        models = load_models(model, ",".join(designs or ()), **asdict(options))
        served_models = {
            name: {"design": served.embedder.design.name, "dim": served.dim, "max_length": served.embedder.max_length}
            for name, served in models.items()
        }
        tell_result({"address": None if check else f"{address_of(listening)}/v1", "models": served_models})
        show = tell if check else say
        for name, served in models.items():
            aliases = f" (also {', '.join(models.aliases(name))})" if models.aliases(name) else ""
            embedder = served.embedder
            show(f"{name}{aliases}: {embedder.design.name}, {served.dim} dimensions, at most {embedder.max_length} tokens")
        if check:
            return
        say(f"serving at {address_of(listening)}/v1 {'with keys' if allowed else 'without keys'}; Ctrl-C stops it")
        Server(models, allowed, limits, listening).run()
        say("stopped")
