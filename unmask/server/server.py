"""The HTTP server: a socket, uvicorn, and a graceful stop."""

from __future__ import annotations

import logging
import socket
from typing import Any

import uvicorn

from unmask.errors import UnmaskError
from unmask.server.access import ApiKeys, local_hosts
from unmask.server.app import Service, create_api
from unmask.server.metrics import Metrics
from unmask.server.middleware import App, Middleware, ServerSettings
from unmask.server.served import ServedModels

_MAX_CONNECTIONS = 800  # further ones get status 503


class HttpServer(uvicorn.Server):
    """uvicorn with logging off, since logs could leak what clients send. `run` returns after a signal instead of raising it again."""

    def __init__(self, app: App, shutdown_seconds: float) -> None:
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MAX_CONNECTIONS,
                timeout_graceful_shutdown=round(shutdown_seconds),
            )
        )

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop gracefully on the first signal, at once on the second."""
        self.should_exit, self.force_exit = True, self.should_exit


class Server:
    """Served models on a socket."""

    def __init__(self, models: ServedModels, keys: ApiKeys, settings: ServerSettings, listening: socket.socket) -> None:
        """Start the threads that compute. Without keys on a loopback address, requests from web pages are refused."""
        metrics = Metrics()
        self.service = Service(models, settings, metrics)
        hosts = () if keys else local_hosts(listening.getsockname()[0])
        self.middleware = Middleware(create_api(self.service), keys, settings, metrics, hosts)
        self._listening = listening
        self._http = HttpServer(self.middleware, settings.shutdown_seconds)

    def run(self) -> None:
        """Serve until a signal (SIGTERM, Ctrl-C) or `stop`, then finish accepted requests."""
        try:
            self._http.run([self._listening])
        finally:
            self.service.close()

    def stop(self) -> None:
        """End `run` as a signal does. Can be called from any thread."""
        self._http.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes any free port, and `::` also accepts IPv4."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, *_, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)  # clients try IPv4 for localhost
        dualstack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=dualstack)
    except (OSError, UnicodeError) as error:
        raise UnmaskError(f"Cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}.") from error


def address_of(listening: socket.socket) -> str:
    """The URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
