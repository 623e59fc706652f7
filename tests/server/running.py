"""A server in this process, on a free port, and a client for it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.server.access import ApiKeys
from unmask.server.middleware import ServerSettings
from unmask.server.served import ServedModels
from unmask.server.server import Server, listen


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors of an answer with numbers."""
        assert self.status == 200, self.body
        return np.array([one["embedding"] for one in self.json["data"]], np.float32)

    @property
    def error(self) -> dict[str, Any]:
        """The error of an answer, checked: OpenAI's shape, one sentence."""
        assert self.status >= 400
        assert set(self.json) == {"error"} and set(self.json["error"]) == {"message", "type", "param", "code"}, self.body
        message = self.json["error"]["message"]
        assert message and len(message) < 600 and "\n" not in message and "Traceback" not in message
        return dict(self.json["error"])


@dataclass
class Client:
    """A client of a server that runs here."""

    server: Server
    port: int
    address: str = "127.0.0.1"
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send one request. A body that is not bytes is sent as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        sent = {"content-type": "application/json", **self.headers, **headers}
        if self.key:
            sent["authorization"] = f"Bearer {self.key}"
        connection = http.client.HTTPConnection(self.address, self.port, timeout=30)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def embed(self, texts: Any, model: str = "mean", **fields: Any) -> Answer:
        """Ask for vectors."""
        return self.ask("POST", "/v1/embeddings", {"model": model, "input": texts, **fields})

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


@contextmanager
def running(
    models: ServedModels, keys: ApiKeys | None = None, settings: ServerSettings | None = None, address: str = "127.0.0.1"
) -> Iterator[Client]:
    """Serve models while the block runs; then the server has stopped."""
    with listen(address, 0) as listening:
        server = Server(models, keys or ApiKeys([]), settings or ServerSettings(), listening)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield Client(server, listening.getsockname()[1], address)
        finally:
            server.stop()
            thread.join(30)
            assert not thread.is_alive(), "the server does not stop"


def until(met: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)
