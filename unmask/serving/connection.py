"""Connections: uvicorn's, except that one without a request is closed in time, whatever it drips, and that every refusal is JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.serving.limits import Limits
from unmask.serving.protocol import ApiError


class Connection(H11Protocol):
    """A connection of one client. Time without a whole head of a request counts as idle, also if bytes arrive."""

    limits = Limits()
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def under(cls, limits: Limits) -> type[Connection]:
        """The class of connections under these limits."""
        return type("Connection", (cls,), {"limits": limits})

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.close()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        super().data_received(data)
        if self._busy:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, or for the rest of a body that nobody reads."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = ApiError(400, "This is not a valid HTTP/1.1 request.")
            headers = [*error.headers.items(), ("content-length", str(len(error.body))), ("connection", "close")]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=error.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self.limits.idle_seconds, self._close_if_idle)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        if not self._busy:
            self.transport.close()
