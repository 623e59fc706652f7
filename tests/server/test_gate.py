"""The gate: keys, limits, slow and vanished clients, and a stop that answers what was accepted."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.server.running import Client, running, until
from unmask.embedder import Embedder
from unmask.server.gate import path_label
from unmask.server.keys import Keys
from unmask.server.limits import Limits
from unmask.server.served import ServedModels

KEY = "a-key-of-sixteen-or-more"
LIMITS = Limits(
    body_bytes=10_000, bodies_bytes=25_000, body_seconds=0.5, idle_seconds=0.5, queue_tokens=200, requests=6, connections=12
)


@pytest.fixture(scope="module")
def models(pico: Callable[..., Embedder]) -> ServedModels:
    return ServedModels({"mean": pico("causal/plain/mean", batch_tokens=64)})


@pytest.fixture
def client(models: ServedModels) -> Iterator[Client]:
    with running(models, limits=LIMITS) as client:
        yield client


class Hold:
    """Keeps a model from computing until `release`. entered: whether it has a batch."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self._released, self.entered = threading.Event(), threading.Event()
        batcher = client.server.service.batcher
        compute = batcher._compute

        def wait(*batch: Any) -> Any:
            self.entered.set()
            self._released.wait(20)
            return compute(*batch)

        monkeypatch.setattr(batcher, "_compute", wait)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def hold(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    """A model that computes nothing yet."""
    made = Hold(client, monkeypatch)
    yield made
    made.release()


def request(body: bytes, head: str = "") -> bytes:
    return f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}\r\n".encode() + body


def embedding(text: str = "x") -> bytes:
    return json.dumps({"model": "mean", "input": text}).encode()


@contextlib.contextmanager
def connected(client: Client) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw:
        yield raw


def read_all(raw: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while chunk := raw.recv(65536):
            found += chunk
    return found


def in_threads(number: int, work: Callable[[int], Any]) -> tuple[list[threading.Thread], dict[int, Any]]:
    results: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda n=n: results.update({n: work(n)})) for n in range(number)]
    for thread in threads:
        thread.start()
    return threads, results


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_key_opens_what_needs_one(models: ServedModels) -> None:
    with running(models, Keys([KEY])) as client:
        for path in ("/v1/models", "/metrics", "/nowhere"):
            refused = client.ask("GET", path)
            assert (refused.status, refused.error["type"]) == (401, "authentication_error")
            assert refused.headers["www-authenticate"] == "Bearer"
        assert client.embed("x").status == 401
        assert KEY not in client.embed("x").body.decode()
        assert {client.ask("GET", path).status for path in ("/health", "/ready", "/docs", "/openapi.json")} == {200}
        client.key = "b" + KEY[1:]
        assert client.embed("x").status == 401
        client.key = KEY
        assert client.embed("x").status == 200


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10_001, 30_000, 50_000, 10**12])
def test_a_body_that_is_too_long_is_refused_by_its_head(size: int, client: Client) -> None:
    with connected(client) as raw:
        raw.sendall(request(b"", f"Content-Length: {size}\r\n") + b" " * min(size, 60_000))
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 413") and b"longer than 10000 bytes" in answer


@pytest.mark.parametrize("chunks", [11, 100])
def test_a_body_in_chunks_is_counted(chunks: int, client: Client) -> None:
    with connected(client) as raw:
        raw.sendall(request(b"", "Transfer-Encoding: chunked\r\n"))
        with contextlib.suppress(ConnectionError):
            for _ in range(chunks):
                raw.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n")
            raw.sendall(b"0\r\n\r\n")
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_in_chunks_within_the_limit_is_answered(client: Client) -> None:
    with connected(client) as raw:
        body = embedding("x" * 50)
        raw.sendall(request(b"", "Transfer-Encoding: chunked\r\nConnection: close\r\n"))
        for byte in body:
            raw.sendall(b"1\r\n%c\r\n" % byte)
        raw.sendall(b"0\r\n\r\n")
        assert read_all(raw).startswith(b"HTTP/1.1 200")


def test_bodies_together_are_limited(client: Client) -> None:
    def send(_: int) -> bytes:
        with connected(client) as raw:
            raw.sendall(request(b"", "Content-Length: 9999\r\n") + b" " * 9000)
            return read_all(raw)

    threads, answers = in_threads(4, send)
    for thread in threads:
        thread.join(20)
    statuses = sorted(answer[9:12] for answer in answers.values())
    assert statuses == [b"408", b"408", b"429", b"429"]
    assert client.server.traffic.bodies == client.server.traffic.requests == 0


def test_a_slow_body_is_not_waited_for(client: Client) -> None:
    with connected(client) as raw:
        raw.sendall(request(b"", "Content-Length: 100\r\n"))
        begin = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                raw.sendall(b" ")
                time.sleep(0.05)
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 408") and b"connection: close" in answer.lower()
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("first", [b"", b"GET /hea", request(embedding(), f"Content-Length: {len(embedding())}\r\n")])
def test_a_connection_without_a_request_is_closed(first: bytes, client: Client) -> None:
    """Also if its head comes drop by drop, and also after an answer."""
    with connected(client) as raw:
        begin = time.monotonic()
        raw.sendall(first)
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                raw.sendall(b"G")
                time.sleep(0.05)
        read_all(raw)
    assert 0.4 < time.monotonic() - begin < 5


# --- clients that leave ----------------------------------------------------------------------------------------------


def test_texts_of_a_client_that_has_left_are_not_computed(client: Client, hold: Hold) -> None:
    batcher = client.server.service.batcher
    first = threading.Thread(target=client.embed, args=("first",))
    first.start()
    assert hold.entered.wait(10)
    with connected(client) as raw:
        raw.sendall(request(embedding("left"), f"Content-Length: {len(embedding('left'))}\r\n"))
        until(lambda: batcher.waiting[0] == 1)
    until(lambda: batcher.waiting == (0, 0))
    hold.release()
    first.join(10)
    assert client.metric("unmask_gone_clients_total") == 1
    assert client.metric("unmask_texts_total") == 1


def test_a_client_that_leaves_in_its_body_does_no_harm(client: Client) -> None:
    with connected(client) as raw:
        raw.sendall(request(b"{", "Content-Length: 100\r\n"))
    until(lambda: client.server.traffic.requests == 0)
    assert client.embed("x").status == 200


DOCS = b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.contextmanager
def unread(client: Client) -> Iterator[tuple[socket.socket, Any]]:
    """A client that reads none of its answers, and the server's end of its connection."""
    connections = client.server._http.server_state.connections
    before = set(connections)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", client.port))
        raw.settimeout(10)
        until(lambda: len(connections) > len(before))
        [connection] = set(connections) - before
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield raw, connection


def ask_and_wait(raw: socket.socket, connection: Any) -> None:
    """Send one request, and wait until its answer is written or held back."""
    answered = connection.server_state.total_requests
    raw.sendall(DOCS)
    until(lambda: connection.server_state.total_requests > answered or connection.flow.write_paused)


def test_clients_that_never_read_give_their_connections_back(models: ServedModels) -> None:
    with (
        running(models, limits=replace(LIMITS, fetch_seconds=1, idle_seconds=9, connections=2)) as client,
        contextlib.ExitStack() as stack,
    ):
        for raw, connection in [stack.enter_context(unread(client)) for _ in range(2)]:
            while not connection.flow.write_paused:
                ask_and_wait(raw, connection)
            raw.sendall(DOCS * 9)
        until(lambda: not client.server._http.server_state.connections, 5)
        assert client.ask("GET", "/health").status == 200


@pytest.mark.parametrize(
    ("idle", "last"),
    [
        (0.5, b""),  # the connection is idle
        (1.9, b""),  # uvicorn finds so first
        (9.0, DOCS.replace(b"Host", b"Connection: close\r\nHost")),
        (9.0, b"nonsense\r\n\r\n"),
    ],
)
def test_a_closed_connection_does_not_wait_for_ever_for_its_reader(idle: float, last: bytes, models: ServedModels) -> None:
    with (
        running(models, limits=replace(LIMITS, fetch_seconds=0.5, idle_seconds=idle)) as client,
        unread(client) as (raw, connection),
    ):
        while not connection.transport.get_write_buffer_size():
            ask_and_wait(raw, connection)
        assert not connection.flow.write_paused
        raw.sendall(last)
        until(connection.transport.is_closing, 3)
        until(lambda: not client.server._http.server_state.connections, 3)


def test_a_client_that_reads_late_keeps_its_connection(models: ServedModels) -> None:
    with (
        running(models, limits=replace(LIMITS, fetch_seconds=0.5, idle_seconds=9)) as client,
        unread(client) as (raw, connection),
    ):
        while not connection.flow.write_paused:
            ask_and_wait(raw, connection)
        raw.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while raw.recv(2**20):
                pass
        time.sleep(0.6)
        raw.settimeout(5)
        raw.sendall(DOCS)
        assert raw.recv(12) == b"HTTP/1.1 200"


def test_an_answer_counts_as_a_request_until_it_is_fetched(client: Client) -> None:
    body = json.dumps({"model": "mean", "input": ["x"] * 200}).encode()
    traffic = client.server.traffic
    with unread(client) as (raw, connection):
        raw.sendall(request(body, f"Content-Length: {len(body)}\r\n"))
        until(lambda: connection.flow.write_paused)
        time.sleep(0.2)
        assert traffic.requests == 1 and traffic.bodies == len(body)
        while traffic.requests:
            raw.recv(2**16)
    until(lambda: traffic.bodies == 0)


def test_an_answer_that_nobody_fetches_gives_its_place_back(models: ServedModels) -> None:
    body = json.dumps({"model": "mean", "input": ["x"] * 200}).encode()
    with running(models, limits=replace(LIMITS, fetch_seconds=2)) as client, unread(client) as (raw, connection):
        raw.sendall(request(body, f"Content-Length: {len(body)}\r\n"))
        until(lambda: connection.flow.write_paused)
        until(lambda: client.server.traffic.requests == 0)


# --- too much --------------------------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_try_again(client: Client, hold: Hold) -> None:
    batcher = client.server.service.batcher
    threads, _ = in_threads(1, lambda _: client.embed("first"))
    assert hold.entered.wait(10)
    more, _ = in_threads(1, lambda _: client.embed(["word " * 15] * 8))
    until(lambda: batcher.waiting[0] == 8)
    refused = client.embed(["word " * 15] * 8)
    assert refused.status == 429 and refused.error["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    hold.release()
    for thread in (*threads, *more):
        thread.join(20)
    assert client.embed("again").status == 200


def test_too_many_requests_at_once_are_refused(client: Client, hold: Hold) -> None:
    threads, answers = in_threads(6, lambda _: client.embed("x"))
    until(lambda: client.server.traffic.requests == 6)
    refused = client.embed("x")
    assert refused.status == 429 and refused.headers["retry-after"] == "1"
    assert client.ask("GET", "/health").status == 200
    hold.release()
    for thread in threads:
        thread.join(20)
    assert {answer.status for answer in answers.values()} == {200}


def test_too_many_connections_are_closed(client: Client) -> None:
    with contextlib.ExitStack() as stack:
        open_ = [stack.enter_context(connected(client)) for _ in range(30)]
        assert b"" in {read_all(raw) for raw in open_}
    until(lambda: client.ask("GET", "/health").status == 200)


# --- stopping --------------------------------------------------------------------------------------------------------


def test_a_stop_answers_what_was_accepted_and_refuses_what_is_new(
    models: ServedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(models) as client:
        hold = Hold(client, monkeypatch)
        threads, answers = in_threads(3, lambda n: client.embed(f"text {n}"))
        until(lambda: client.server.traffic.requests == 3)
        client.server.stop()
        refused = client.embed("new")
        assert refused.status == 503 and "stopping" in refused.error["message"] and "retry-after" in refused.headers
        assert client.ask("GET", "/ready").status == 503
        assert client.ask("GET", "/health").status == 200
        hold.release()
        for thread in threads:
            thread.join(20)
    assert {answer.status for answer in answers.values()} == {200}
    with pytest.raises(ConnectionError):
        client.embed("late")


def test_a_stop_does_not_wait_for_ever(models: ServedModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.server.server._FLUSH_SECONDS", 1)
    with running(models, limits=Limits(drain_seconds=0.2)) as client:
        hold = Hold(client, monkeypatch)
        threads, answers = in_threads(2, lambda n: client.embed(f"text {n}"))
        until(lambda: client.server.traffic.requests == 2 and hold.entered.is_set())
        begin = time.monotonic()
        client.server.stop()
        for thread in threads:
            thread.join(20)
        hold.release()
    assert time.monotonic() - begin < 15
    assert {answer.status for answer in answers.values()} == {503}


def test_paths_in_metrics_are_ours() -> None:
    assert [path_label(path) for path in ("/health", "/v1/models/x", "/v1/models", "/x/secret")] == [
        "/health",
        "/v1/models",
        "/v1/models",
        "other",
    ]
