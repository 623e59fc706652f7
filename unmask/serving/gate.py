"""Gate: what every request passes before the routes, and what every answer passes after them.

It checks the key, and keeps web pages away where there are no keys. It refuses what is too much, too slow or too late, reads the body,
counts, and turns every error into an answer of one sentence. It is plain ASGI, so that limits hold before anything of a request is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from pathlib import Path

from unmask.io.terminal import say
from unmask.serving.bodies import App, Gone, Message, Receive, Send, Traffic, read_body, replay
from unmask.serving.browsers import as_text, require_host, require_no_other_page, without_port
from unmask.serving.keys import Keys
from unmask.serving.limits import Limits
from unmask.serving.metrics import Metrics
from unmask.serving.protocol import ApiError

OPEN = ("/health", "/ready", "/docs", "/openapi.json")
"""Paths that need no key: they say nothing about anybody."""
PATHS = (*OPEN, "/metrics", "/v1/models", "/v1/embeddings")


class Gate:
    """The door of the server, as an ASGI application around another one."""

    def __init__(
        self, app: App, keys: Keys, limits: Limits, metrics: Metrics, traffic: Traffic, names: Collection[str] = ()
    ) -> None:
        """Stand before an application. names: hosts that it answers to, and its own pages only; if none, it answers to any."""
        self._app, self._keys, self._limits, self._metrics, self._traffic = app, keys, limits, metrics, traffic
        self._names = names

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. Nothing is raised."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            if message["type"] == "http.response.body" and message.get("body") and not message.get("more_body"):
                await send({**message, "more_body": True})
                message = {"type": "http.response.body"}  # it waits while too much is not fetched: till then the request counts
            await send(message)  # the connection is cut if the client does not fetch its answer

        try:
            await self._admit(scope, receive, watched)
        except Gone:
            self._metrics.gone.inc()
        except (Exception, asyncio.CancelledError) as error:
            if not status:
                await answer(_as_told(error), watched)
        path = path_label(scope["path"])
        self._metrics.requests.labels(path, str(status or 499)).inc()
        self._metrics.seconds.labels(path).observe(time.perf_counter() - begin)

    async def _admit(self, scope: Message, receive: Receive, send: Send) -> None:
        traffic, limits = self._traffic, self._limits
        headers = dict(scope["headers"])
        if scope["path"] in OPEN:
            return await self._app(scope, receive, send)
        self._require_a_right(scope)
        if traffic.draining:
            raise ApiError(503, "The server is stopping.", retry_after=5)
        if traffic.requests >= limits.requests:
            raise ApiError(429, "The server answers as many requests as it can. Try again.", retry_after=1)
        traffic.requests += 1
        body = bytearray()
        try:
            if scope["method"] == "POST":
                await read_body(body, headers, receive, limits, traffic)
                await self._app(scope, replay(bytes(body), receive), send)
            else:
                await self._app(scope, receive, send)
        finally:
            traffic.requests -= 1
            traffic.bodies -= len(body)

    def _require_a_right(self, scope: Message) -> None:
        headers = as_text(scope["headers"])
        if self._names:
            require_host(without_port(headers.get("host", "")), self._names)
            require_no_other_page(headers)
        if not self._keys.allow(headers.get("authorization", "").encode("latin-1")):
            raise ApiError(401, "This server needs a key: send the header 'Authorization: Bearer KEY'.", code="invalid_api_key")


async def answer(error: ApiError, send: Send) -> None:
    """Send an error to the client."""
    headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    headers.append((b"content-length", str(len(error.body)).encode()))
    if error.status in (408, 413):  # the rest of the body is not worth reading
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body})


async def gone(receive: Receive) -> None:
    """Return when the client has closed the connection. Its request has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _as_told(error: BaseException) -> ApiError:
    """The error that the client is told. One that should not happen is noted without what the request held."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return ApiError(503, "The server has stopped before the answer was ready.")
    note(error)
    return ApiError(500, "The server failed on this request.")


def note(error: BaseException) -> None:
    """Say on standard error what kind of error was raised, and where; not its message, which may hold a text of a request."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    where = f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace else ""
    say(f"a request failed: {type(error).__name__}{where}")


def path_label(path: str) -> str:
    """A path as metrics show it."""
    if path.startswith("/v1/models/"):
        return "/v1/models"
    return path if path in PATHS else "other"
