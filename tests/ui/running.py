"""A page in this process, on a free port, and a client for it."""

from __future__ import annotations

import faulthandler
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unmask.designs.design import parse_designs
from unmask.embedder import Embedder
from unmask.server.server import listen
from unmask.ui.app import Page
from unmask.ui.corpus_map import Corpus, CorpusMap
from unmask.ui.embedders import Embedders
from unmask.ui.server import PageServer


@dataclass(frozen=True)
class Answer:
    """What a page answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body of an answer that is no error."""
        assert self.status == 200, self.body
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The sentence of an error, checked."""
        assert self.status >= 400, self.body[:200]
        message = str(json.loads(self.body)["error"]["message"])
        assert message.endswith((".", "?", ")")) and "\n" not in message and "Traceback" not in message, message
        return message


@dataclass
class Client:
    """A browser that knows the token, as far as HTTP goes."""

    server: PageServer

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send one request with the token. A header of the value "" is left out; a body that is not bytes is sent as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        sent = {
            "host": f"127.0.0.1:{self.server.port}",
            "x-unmask-token": self.server.token,
            "content-type": "application/json",
        }
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value:
                    connection.putheader(name, value)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Ask for a path."""
        return self.ask("GET", path, **headers)

    def post(self, path: str, **fields: Any) -> Answer:
        """Ask for what a view shows."""
        return self.ask("POST", path, fields)


@contextmanager
def running(embedder: Embedder, designs: str = "mean,last", corpus: Corpus | None = None) -> Iterator[Client]:
    """Show a page while the block runs; then it has stopped."""
    embedders = Embedders(embedder, parse_designs(designs))
    page = Page(embedders, CorpusMap(embedders, corpus) if corpus else None)
    with listen("127.0.0.1", 0) as listening:
        server = PageServer(page, listening)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield Client(server)
        finally:
            server.stop()
            thread.join(30)
            if thread.is_alive():
                faulthandler.dump_traceback()  # shows what every thread waits for
            assert not thread.is_alive(), "the page does not stop"
