"""Door: what every request to the page passes. Only a page that has the token gets an answer from the model.

The page takes the token from its address, keeps it for its tab, and sends it in a header. A cookie would also go to the servers on all
other ports of this machine. Files of the page hold nothing of the user, and need no token. The `Host` header is checked, since a name of
somebody else may lead to this machine (DNS rebinding). `Origin` and `Sec-Fetch-Site` are checked, so that no other page uses this one.
"""

from __future__ import annotations

import hmac
from urllib.parse import parse_qs

from unmask.server.bodies import App, Gone, Message, Receive, Send, Traffic, read_body, replay
from unmask.server.browsers import as_text, require_host, require_no_other_page
from unmask.server.gate import answer, note
from unmask.server.limits import Limits
from unmask.server.protocol import ApiError

REPORTS = "/reports/"
"""Below this path, a key in the path stands for the token: a link cannot send a header, and a report has an origin of its own."""
COMPUTED = "/api/"
"""Below this path, an answer needs the token."""
TOKEN_HEADER = "x-unmask-token"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer. A route may replace them."""

_HTTP = 80  # a browser leaves this port out of `Host` and `Origin`
FAILED = "The page failed on this request."
UPLOAD_PATHS = ("/api/corpus", "/api/reports")
UPLOADS = Limits(body_bytes=64 * 2**20, bodies_bytes=128 * 2**20)
"""For files that the browser sends to these paths."""
LIMITS = Limits(body_bytes=2**20, bodies_bytes=8 * 2**20, requests=32, connections=64)


class Door:
    """The door of the page, as an ASGI application around another one."""

    def __init__(self, app: App, token: str, port: int) -> None:
        """Stand before an application that listens on a port of this machine."""
        self._app, self._token = app, token
        names = ("127.0.0.1", "localhost")
        self._hosts = {f"{name}:{port}" for name in names} | set(names if port == _HTTP else ())
        self._traffic = Traffic()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. Nothing is raised."""
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = {name.lower() for name, _ in message["headers"]}
                missing = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given]
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        try:
            await self._admit(scope, receive, guarded)
        except Gone:
            pass
        except ApiError as error:
            await answer(error, guarded)
        except Exception as error:
            if not started:  # else the application has noted it, and answered
                note(error)
                await answer(ApiError(500, FAILED), guarded)

    async def _admit(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = as_text(scope["headers"])
        require_host(headers.get("host", ""), self._hosts)
        if not scope["path"].startswith(REPORTS):  # these check a key of their own
            opened = scope["path"] == "/" and self._is_token(_token_in(scope["query_string"]))
            if not opened:  # whoever has the address may link to it
                require_no_other_page(headers)
            if scope["path"].startswith(COMPUTED) and not self._is_token(headers.get(TOKEN_HEADER, "")):
                raise ApiError(401, "Open the address that `unmask ui` printed: it holds a token.")
        if self._traffic.requests >= LIMITS.requests:
            raise ApiError(429, "Too many requests are open. Close other tabs of this page.", retry_after=1)
        self._traffic.requests += 1
        body = bytearray()
        try:
            limits = UPLOADS if scope["path"] in UPLOAD_PATHS else LIMITS
            await read_body(body, dict(scope["headers"]), receive, limits, self._traffic)
            await self._app(scope, replay(bytes(body), receive), send)
        finally:
            self._traffic.requests -= 1
            self._traffic.bodies -= len(body)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _token_in(query: bytes) -> str:
    return parse_qs(query.decode("latin-1")).get("token", [""])[0]
