"""`unmask ui` as a server on this machine: reads the inputs, loads the model, serves the page."""

from __future__ import annotations

import html
import secrets
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unmask.designs.design import Design, parse_designs
from unmask.designs.presets import DEFAULT_DESIGN
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.saving.folder import read_saved
from unmask.server.server import HttpServer
from unmask.ui.access import AccessMiddleware
from unmask.ui.app import Page
from unmask.ui.corpus_map import Corpus, CorpusMap, read_corpus
from unmask.ui.embedders import Embedders

DEFAULT_DESIGNS = f"{DEFAULT_DESIGN},mean"


@dataclass(frozen=True)
class Inputs:
    """What a page shows besides a model. Without designs, it shows the model's."""

    corpus: Corpus | None
    designs: dict[str, Design]

    @property
    def summary(self) -> list[str]:
        """Lines to print."""
        if self.corpus is None:
            return []
        texts, rows = len(self.corpus.texts), self.corpus.rows
        return [f"{self.corpus.name}: " + (f"{texts} of {rows} texts, sampled at random" if rows > texts else f"{rows} texts")]


def read_inputs(corpus: Path | None = None, column: str = "text", label: str | None = None, designs: str = "") -> Inputs:
    """Read the corpus and parse the designs, before a model is loaded."""
    if label and not corpus:
        raise UnmaskError("--label names a column of the corpus: give --corpus FILE, too.")
    parsed = parse_designs(designs) if designs else {}
    if len(parsed) > 2:
        raise UnmaskError(
            f"The page shows two designs side by side; {len(parsed)} were given. You can change them on the page."
        )
    return Inputs(read_corpus(corpus, column, label) if corpus else None, parsed)


def load_page(model: str, inputs: Inputs, **options: Any) -> Page:
    """Load a model for a page. options: those of `Embedder.from_pretrained`."""
    saved, designs = read_saved(model, options.get("revision"), options.get("adapter")), inputs.designs
    if not designs:
        designs = {saved.design: Design.parse(saved.design)} if saved else parse_designs(DEFAULT_DESIGNS)
    embedder = Embedder.from_pretrained(model, None if saved else next(iter(designs.values())), **options)
    embedders = Embedders(embedder, designs)
    return Page(embedders, CorpusMap(embedders, inputs.corpus) if inputs.corpus else None)


class PageServer:
    """A page on a loopback socket, for browsers that have its token."""

    def __init__(self, page: Page, listening: socket.socket) -> None:
        self.page, self._listening, self.token = page, listening, secrets.token_urlsafe(24)
        self.port = int(listening.getsockname()[1])
        app = AccessMiddleware(page.api(), self.token, self.port)
        self._http = HttpServer(app, shutdown_seconds=1)

    @property
    def address(self) -> str:
        """The URL to open, with the token."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Serve until a signal (SIGTERM, Ctrl-C) or `stop`."""
        try:
            self._http.run([self._listening])
        finally:
            self.page.close()

    def stop(self) -> None:
        """End `run`. Can be called from any thread."""
        self.page.close()
        self._http.should_exit = True


@contextmanager
def open_in_browser(address: str) -> Iterator[None]:
    """Open an address with a token in the browser.

    Other users can see the command line of a browser, so it gets a private file that redirects to the address.
    """
    with TemporaryDirectory(prefix="unmask-") as folder:
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        target = html.escape(address)
        file.write_text(
            f'<!doctype html><meta charset="utf-8"><title>unmask</title><meta http-equiv="refresh" content="0; url={target}">'
            f'<p><a href="{target}">Open the page</a></p>\n',
            encoding="utf-8",
        )
        webbrowser.open(file.as_uri())
        yield
