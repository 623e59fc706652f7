"""ASGI middleware: access control, request limits, CORS, metrics and the access log.

Slow clients, TLS and limits per client belong to a reverse proxy; limits on connections to uvicorn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from unmask.io.terminal import say, visible
from unmask.server.access import ApiKeys, decode_headers, is_cross_origin, require_host
from unmask.server.metrics import Metrics
from unmask.server.protocol import ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

PUBLIC_PATHS = ("/health", "/docs", "/openapi.json")
_PATHS = (*PUBLIC_PATHS, "/metrics", "/v1/models", "/v1/embeddings")
_ACCESS_LOG = logging.getLogger("unmask.access")
_MAX_LOGGED_PATH = 200


@dataclass(frozen=True)
class ServerSettings:
    """What a server accepts. The options of `unmask serve` set these fields."""

    max_body: int = 8 * 2**20
    """Bytes of a request."""
    max_tokens: int = 300_000
    """Tokens of a request, after truncation."""
    max_queue: int = 1_000_000
    """Tokens that may wait; further requests get status 429."""
    shutdown_seconds: float = 60.0
    """Time to finish accepted requests when the server stops."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server; `*` for all."""


class Middleware:
    """Checks requests, counts them and logs them around an ASGI application.

    hosts: accepted values of `Host`; if not empty, requests from web pages of other origins are refused, too.
    """

    def __init__(
        self, app: App, keys: ApiKeys, settings: ServerSettings, metrics: Metrics, hosts: Collection[str] = ()
    ) -> None:
        self._app, self._keys, self._settings, self._metrics, self._hosts = app, keys, settings, metrics, hosts
        methods = ("GET", "HEAD", "POST")
        self._cors = CORSMiddleware(self._answer, settings.cors_origins, allow_methods=methods, allow_headers=("*",))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request; errors become JSON responses."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        state = scope["state"] = {"status": 0, "texts": 0, "tokens": 0}

        async def record_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
            await send(message)

        await (self._cors if self._settings.cors_origins else self._answer)(scope, receive, record_status)
        seconds, status, path = time.perf_counter() - start, state["status"] or 499, path_label(scope["path"])
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        host, port = scope["client"] or ("-", 0)
        request = visible(f"{scope['method']} {scope['path'][:_MAX_LOGGED_PATH]} HTTP/{scope['http_version']}")
        counts = f"{state['texts']} texts, {state['tokens']} tokens, {1000 * seconds:.0f} ms"
        _ACCESS_LOG.info(f'{time.strftime("%Y-%m-%d %H:%M:%S")} {host}:{port} - "{request}" {status} - {counts}')

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] in PUBLIC_PATHS:
                await self._app(scope, receive, send)
                return
            self._authorize(scope)
            remedy = "send fewer texts at once, or raise the server's --max-body"
            await self._app(scope, limit_body(scope, receive, self._settings.max_body, remedy), send)
        except ApiError as error:
            await error.response()(scope, receive, send)
        except Exception:  # FastAPI has logged it and sent an answer, then raised it again for servers with a debugger
            if not scope["state"]["status"]:
                raise

    def _authorize(self, scope: Message) -> None:
        headers = decode_headers(scope["headers"])
        cross_origin = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if self._hosts:
            name, colon, port = headers.get("host", "").rpartition(":")
            require_host(name if colon and (port.isdigit() or not port) else name + colon + port, self._hosts)
            cross_origin |= is_cross_origin(headers)
        if cross_origin and not (self._settings.cors_origins and self._cors.is_allowed_origin(headers.get("origin", ""))):
            raise ApiError(
                403, "Web pages of other origins may not use this server. To allow one, start it with --cors-origin."
            )
        self._keys.check(headers.get("authorization", ""))


def limit_body(scope: Message, receive: Receive, limit: int, remedy: str) -> Receive:
    """Wrap `receive` so that it raises ApiError (413) for a body of more than `limit` bytes."""
    size = 0
    too_long = ApiError(413, f"The body is longer than {limit} bytes: {remedy}.")

    async def receive_within_limit() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit or declared > limit:
            while message.get("more_body") and size < 4 * limit:  # a client that still sends does not read the answer
                message = await receive()
                size += len(message.get("body", b""))
            raise too_long
        return message

    declared = int(dict(scope["headers"]).get(b"content-length", b"0"))
    return receive_within_limit


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection; its request has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def log_failure(error: BaseException) -> None:
    """Print the type and the place of an error, but not its message, which may contain a text of the request."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    position = f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace else ""
    say(f"a request failed: {type(error).__name__}{position}")


def path_label(path: str) -> str:
    """The label of a path in metrics, which hold nothing of a request."""
    if path.startswith("/v1/models/"):
        return "/v1/models"
    return path if path in _PATHS else "other"
