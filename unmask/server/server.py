"""Server: the socket, the HTTP library, and the way from the first signal to the stop, which leaves accepted requests time."""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

import uvicorn

from unmask.errors import UnmaskError
from unmask.server.app import Service, create_api
from unmask.server.bodies import Traffic
from unmask.server.browsers import local_names
from unmask.server.connection import Connection
from unmask.server.gate import Gate
from unmask.server.keys import Keys
from unmask.server.limits import Limits
from unmask.server.metrics import Metrics
from unmask.server.served import ServedModels

_FLUSH_SECONDS = 5  # for the last bytes of answers, after all requests were answered


class Server:
    """Served models on a socket."""

    def __init__(self, models: ServedModels, keys: Keys, limits: Limits, listening: socket.socket) -> None:
        """Start the threads that compute; nothing is answered yet. Without keys, a loopback address answers no web page of others."""
        # its messages would show what a client sent; the gate and the metrics tell what happens
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)
        self._listening, metrics, self.traffic = listening, Metrics(), Traffic()
        names = () if keys else local_names(listening.getsockname()[0])
        self.service = Service(models, limits, metrics, self.traffic)
        gate = Gate(create_api(self.service), keys, limits, metrics, self.traffic, names)
        config = uvicorn.Config(
            gate,
            http=Connection.under(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, int(limits.idle_seconds)),
            timeout_graceful_shutdown=_FLUSH_SECONDS,
        )
        self._http = _HttpServer(config, self.traffic, limits.drain_seconds)

    def run(self) -> None:
        """Serve until a signal (SIGTERM, Ctrl-C) or `stop`, and then until accepted requests are answered, or their time is over."""
        try:
            self._http.run([self._listening])
        finally:
            self.service.close()

    def stop(self) -> None:
        """Refuse new requests, answer those that were accepted, and end `run`. May be called from any thread."""
        self.traffic.draining = True


class _HttpServer(uvicorn.Server):
    """uvicorn, with a first signal that refuses new requests while it answers others, and a second one that stops at once."""

    def __init__(self, config: Any, traffic: Traffic, patience: float) -> None:
        super().__init__(config)
        self._traffic, self._patience, self._since = traffic, patience, 0.0

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Take a signal."""
        self.should_exit = self.force_exit = self._traffic.draining
        self._traffic.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: has everything been answered?"""
        if self._traffic.draining:
            self._since = self._since or time.monotonic()
            self.should_exit |= not self._traffic.requests or time.monotonic() - self._since > self._patience
        return bool(await super().on_tick(counter))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; on `::`, for IPv4 too. Port 0 takes any free port. Raises UnmaskError if the port is taken or not allowed."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, *_, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)  # localhost: where every client looks
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        raise UnmaskError(f"Nothing can listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}.") from error


def address_of(listening: socket.socket) -> str:
    """The URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
