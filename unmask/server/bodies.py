"""Bodies: reads the body of a request within limits, before anything else of the request is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from unmask.server.limits import Limits
from unmask.server.protocol import ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_DISCARDED = 4  # a body that is too long is read to its end up to so many times the limit, so that its sender sees the answer


class Gone(Exception):
    """The client has closed the connection."""


@dataclass
class Traffic:
    """What goes on in a server. requests: that are answered now; bodies: bytes of bodies that are held; draining: it stops."""

    requests: int = 0
    bodies: int = 0
    draining: bool = False


async def read_body(
    body: bytearray, headers: dict[bytes, bytes], receive: Receive, limits: Limits, traffic: Traffic, remedy: str = ""
) -> None:
    """Read the body of a request into `body`, and count its bytes in the traffic.

    remedy: what else helps against a body that is too long, for the error. Raises ApiError if it is too long or too slow, or if all bodies
    together are too much, and Gone if the client goes.
    """
    size = 0
    too_long = ApiError(413, f"The body is longer than {limits.body_bytes} bytes: send fewer texts at once{remedy}.")
    if int(headers.get(b"content-length", b"0")) > _DISCARDED * limits.body_bytes:
        raise too_long
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in _chunks(receive):
                size += len(chunk)
                if size > _DISCARDED * limits.body_bytes:
                    raise too_long
                if size <= limits.body_bytes:
                    if traffic.bodies + len(chunk) > limits.bodies_bytes:
                        raise ApiError(429, "The server reads as many requests as it can. Try again.", retry_after=1)
                    traffic.bodies += len(chunk)
                    body += chunk
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {limits.body_seconds:g} seconds.") from None
    if size > limits.body_bytes:
        raise too_long


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read already, and then what comes after it."""
    first = True

    async def replayed() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed
