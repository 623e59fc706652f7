"""`unmask serve`: a model behind an HTTP server with OpenAI's embeddings API."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import ADVANCED, Check, Designs, Model, ModelOptions, Port
from unmask.errors import require_package
from unmask.io.terminal import is_quiet, say, tell, tell_result


def serve(
    model: Model,
    designs: Designs = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 lets other machines connect, which requires API keys.")
    ] = "127.0.0.1",
    port: Port = 8000,
    keys: Annotated[
        Path | None, typer.Option(help="File of API keys, one per line. UNMASK_API_KEYS can hold keys, too.")
    ] = None,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Serve everyone who can reach the address, without keys.")] = False,
    max_body: Annotated[
        int, typer.Option(min=1024, metavar="BYTES", help="Maximum bytes of a request.", rich_help_panel=ADVANCED)
    ] = 8 * 2**20,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of a request, after truncation.", rich_help_panel=ADVANCED)
    ] = 300_000,
    max_queue: Annotated[
        int,
        typer.Option(
            min=1, metavar="TOKENS", help="Maximum waiting tokens; further requests get status 429.", rich_help_panel=ADVANCED
        ),
    ] = 1_000_000,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let web pages of this origin use the server, such as https://app.example; '*' allows all. Repeat for several.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    check: Check = False,
    *,
    options: ModelOptions,
) -> None:
    """Serve embeddings over HTTP with OpenAI's API (POST /v1/embeddings)."""
    require_package("uvicorn")
    from unmask.server.access import parse_origin, read_keys, require_keys
    from unmask.server.middleware import ServerSettings

    settings = ServerSettings(
        max_body=max_body,
        max_tokens=max_tokens,
        max_queue=max_queue,
        cors_origins=tuple(map(parse_origin, cors_origin or ())),
    )
    api_keys = read_keys(keys, os.environ)
    require_keys(host, api_keys, no_keys)
    logging.getLogger("unmask.access").disabled = is_quiet()

    from unmask.server.served import load_models  # imports torch, which takes seconds
    from unmask.server.server import Server, address_of, listen

    with listen(host, port) as listening:
        models = load_models(model, ",".join(designs or ()), **asdict(options))
        address = f"{address_of(listening)}/v1"
        tell_result(
            {
                "address": None if check else address,
                "models": {
                    name: {"design": served.embedder.design.name, "dim": served.dim, "max_length": served.embedder.max_length}
                    for name, served in models.items()
                },
            }
        )
        for name, served in models.items():
            aliases = f" (also {', '.join(models.aliases(name))})" if models.aliases(name) else ""
            description = f"{served.embedder.design.name}, {served.dim} dimensions, at most {served.embedder.max_length} tokens"
            (tell if check else say)(f"{name}{aliases}: {description}")
        if check:
            return
        say(f"serving at {address} {'with' if api_keys else 'without'} keys; Ctrl-C stops it")
        Server(models, api_keys, settings, listening).run()
        say("stopped")
