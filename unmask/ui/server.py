"""Server: the page on a socket of this machine."""

from __future__ import annotations

import logging
import secrets
import socket
from typing import Any

import uvicorn

from unmask.server.connection import Connection
from unmask.ui.app import Page
from unmask.ui.door import LIMITS, Door


class PageServer:
    """A page that only a browser of this machine with its token can open."""

    def __init__(self, page: Page, listening: socket.socket) -> None:
        """Draw a token; nothing is answered yet. listening: a socket on a loopback address."""
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)  # its messages would show what a client sent
        self.page, self._listening, self.token = page, listening, secrets.token_urlsafe(24)
        self.port = int(listening.getsockname()[1])
        config = uvicorn.Config(
            Door(page.api(), self.token, self.port),
            http=Connection.under(LIMITS),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        self._http = _HttpServer(config)

    @property
    def address(self) -> str:
        """The URL to open, with the token."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Answer until a signal (SIGTERM, Ctrl-C) or `stop`."""
        try:
            self._http.run([self._listening])
        finally:
            self.page.close()

    def stop(self) -> None:
        """End `run`. May be called from any thread."""
        self.page.close()
        self._http.should_exit = True


class _HttpServer(uvicorn.Server):
    """uvicorn, except that a signal only ends it: uvicorn would raise it again afterwards."""

    _signals = 0

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Take a signal. A second one does not wait for open requests."""
        self._signals += 1
        self.should_exit, self.force_exit = True, self._signals > 1
