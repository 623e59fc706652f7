"""Gate: what every request passes before the routes, and what every answer passes after them.

It checks the key, and keeps web pages away where there are no keys. It refuses what is too much, too slow or too late, reads the body,
counts, writes the access log, and turns every error into an answer of one sentence. It is plain ASGI, so that limits hold before
anything of a request is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from pathlib import Path

from starlette.middleware.cors import CORSMiddleware

from unmask.io.terminal import say, visible
from unmask.server.bodies import App, Gone, Message, Receive, Send, Traffic, read_body, replay
from unmask.server.browsers import as_text, is_other_page, require_host, without_port
from unmask.server.keys import Keys
from unmask.server.limits import Limits
from unmask.server.metrics import Metrics
from unmask.server.protocol import ApiError

OPEN = ("/health", "/ready", "/docs", "/openapi.json")
"""Paths that need no key: they say nothing about anybody."""
PATHS = (*OPEN, "/metrics", "/v1/models", "/v1/embeddings")
_ACCESS_LOG = logging.getLogger("unmask.access")
_SHOWN = 200  # characters of a path in the access log


class Gate:
    """The door of the server, as an ASGI application around another one."""

    def __init__(
        self, app: App, keys: Keys, limits: Limits, metrics: Metrics, traffic: Traffic, names: Collection[str] = ()
    ) -> None:
        """Stand before an application. names: hosts that it answers to, and its own pages only; if none, it answers to any."""
        self._app, self._keys, self._limits, self._metrics, self._traffic = app, keys, limits, metrics, traffic
        self._names = names
        self._cors = CORSMiddleware(self._answer, limits.origins, allow_methods=("GET", "HEAD", "POST"), allow_headers=("*",))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. Nothing is raised."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        state = scope["state"] = {"status": 0, "texts": 0, "tokens": 0}

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
            if message["type"] == "http.response.body" and message.get("body") and not message.get("more_body"):
                await send({**message, "more_body": True})
                message = {"type": "http.response.body"}  # it waits while too much is not fetched: till then the request counts
            await send(message)  # the connection is cut if the client does not fetch its answer

        await (self._cors if self._limits.origins else self._answer)(scope, receive, watched)
        path, status, seconds = path_label(scope["path"]), state["status"] or 499, time.perf_counter() - begin
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        host, port = scope["client"] or ("-", 0)
        request = visible(f"{scope['method']} {scope['path'][:_SHOWN]} HTTP/{scope['http_version']}")
        counts = f"{state['texts']} texts, {state['tokens']} tokens, {1000 * seconds:.0f} ms"
        _ACCESS_LOG.info(f'{time.strftime("%Y-%m-%d %H:%M:%S")} {host}:{port} - "{request}" {status} - {counts}')

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            await self._admit(scope, receive, send)
        except Gone:
            self._metrics.gone.inc()
        except (Exception, asyncio.CancelledError) as error:
            if not scope["state"]["status"]:
                await answer(_as_told(error), send)

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
                await read_body(body, headers, receive, limits, traffic, ", or raise the server's --max-body")
                await self._app(scope, replay(bytes(body), receive), send)
            else:
                await self._app(scope, receive, send)
        finally:
            traffic.requests -= 1
            traffic.bodies -= len(body)

    def _require_a_right(self, scope: Message) -> None:
        headers = as_text(scope["headers"])
        other_page = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if self._names:
            require_host(without_port(headers.get("host", "")), self._names)
            other_page |= is_other_page(headers)
        if other_page and not (self._limits.origins and self._cors.is_allowed_origin(headers.get("origin", ""))):
            raise ApiError(
                403, "A web page of another origin may not use this server. To allow one, start it with --cors-origin."
            )
        authorization = headers.get("authorization", "")
        if not self._keys.allow(authorization.encode("latin-1")):
            if not authorization.partition(" ")[2].strip():
                raise ApiError(401, "This server needs a key: send the header 'Authorization: Bearer KEY'.")
            message = (
                "What the header 'Authorization' holds is not a key of this server: send 'Bearer KEY' with one of its keys."
            )
            raise ApiError(401, message, code="invalid_api_key")


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
