"""Limits: the most that one request, and all of them together, may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a server accepts. Bytes, numbers, tokens and seconds; a text has the model's own limit of tokens besides.

    body_bytes: of the body of a request; bodies_bytes: of all bodies that are held at once. items: texts of a request; request_tokens:
    their tokens. requests: that are answered at once; connections: that are open. queue_tokens: tokens that wait. body_seconds: to send
    a body; seconds: to answer it (None: as long as it takes); fetch_seconds: to fetch the answer; idle_seconds: of a connection without a
    request; drain_seconds: to answer what was accepted, when the server stops. token_ids: whether clients may send token ids in place
    of texts. origins: of web pages that may use the server, as CORS has them; `*` stands for all.
    """

    body_bytes: int = 8 * 2**20
    bodies_bytes: int = 256 * 2**20
    items: int = 2048
    request_tokens: int = 300_000
    requests: int = 512
    connections: int = 800
    queue_tokens: int = 1_000_000
    body_seconds: float = 20.0
    seconds: float | None = None
    fetch_seconds: float = 120.0
    idle_seconds: float = 20.0
    drain_seconds: float = 60.0
    token_ids: bool = False
    origins: tuple[str, ...] = ()
