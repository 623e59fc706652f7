"""Access control of the page: a token, host and origin checks, security headers and body limits, as ASGI middleware.

The page takes the token from its URL, keeps it for its tab and sends it in a header. A cookie would also be sent to servers on other
ports of this machine. The static files contain nothing of the user and need no token.
"""

from __future__ import annotations

import hmac
from urllib.parse import parse_qs

from unmask.server.access import decode_headers, is_cross_origin, require_host
from unmask.server.middleware import App, Message, Receive, Send, limit_body
from unmask.server.protocol import ApiError

API_PREFIX = "/api/"
TOKEN_HEADER = "x-unmask-token"
MAX_BODY = 2**20
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
"""Headers of every response."""


class AccessMiddleware:
    """Lets only the page with the token use the application behind it."""

    def __init__(self, app: App, token: str, port: int) -> None:
        self._app, self._token = app, token
        names = ("127.0.0.1", "localhost")
        self._hosts = {f"{name}:{port}" for name in names} | set(names if port == 80 else ())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request; refusals become JSON responses."""
        is_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        try:
            self._authorize(scope)
            await self._app(scope, limit_body(scope, receive, MAX_BODY, "send a shorter text"), send_with_headers)
        except ApiError as error:
            await error.response()(scope, receive, send_with_headers)
        except Exception:  # FastAPI has logged it and sent an answer
            if not is_started:
                raise

    def _authorize(self, scope: Message) -> None:
        headers, path = decode_headers(scope["headers"]), scope["path"]
        require_host(headers.get("host", ""), self._hosts)
        linked = path == "/" and self._is_token(parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0])
        if not linked and is_cross_origin(headers):  # other pages may link to the address with the token
            raise ApiError(403, "A web page of another site may not use this server.")
        if path.startswith(API_PREFIX) and not self._is_token(headers.get(TOKEN_HEADER, "")):
            raise ApiError(401, "Open the address that `unmask ui` printed: it contains a token.")

    def _is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode("utf-8", "replace"), self._token.encode())
