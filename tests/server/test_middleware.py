"""API keys, hosts and origins, limits of requests, disconnects, and a graceful stop."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import Client, running, until
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.server.access import ApiKeys, read_keys, require_keys
from unmask.server.middleware import ServerSettings
from unmask.server.protocol import ApiError
from unmask.server.served import ServedModels

KEY, OTHER_KEY = "a-key-of-sixteen-or-more", "two-key-of-a-client"
SETTINGS = ServerSettings(max_body=10_000, max_queue=200)


@pytest.fixture(scope="module")
def models(pico: Callable[..., Embedder]) -> ServedModels:
    return ServedModels({"mean": pico("causal/plain/mean", batch_tokens=64)})


@pytest.fixture
def client(models: ServedModels) -> Iterator[Client]:
    with running(models, settings=SETTINGS) as client:
        yield client


class Hold:
    """Blocks the model until `release`. entered: set when it has a batch."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self._released, self.entered = threading.Event(), threading.Event()
        batcher = client.server.service.batcher
        compute = batcher._compute

        def wait(*batch: Any) -> Any:
            self.entered.set()
            self._released.wait(20)
            return compute(*batch)

        monkeypatch.setattr(batcher, "_compute", wait)
        self.release = self._released.set


@pytest.fixture
def hold(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    blocked = Hold(client, monkeypatch)
    yield blocked
    blocked.release()


def send(client: Client, body: bytes, headers: str) -> bytes:
    """Send raw bytes; return everything until the server closes the connection."""
    response = b""
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw, contextlib.suppress(ConnectionError):
        raw.sendall(f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n".encode() + body)
        while chunk := raw.recv(65536):
            response += chunk
    return response


def in_threads(number: int, work: Callable[[int], Any]) -> tuple[list[threading.Thread], dict[int, Any]]:
    results: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda n=n: results.update({n: work(n)})) for n in range(number)]
    for thread in threads:
        thread.start()
    return threads, results


# --- API keys --------------------------------------------------------------------------------------------------------


def test_a_key_is_required_except_for_public_paths(models: ServedModels) -> None:
    with running(models, ApiKeys([KEY])) as client:
        for path in ("/v1/models", "/metrics", "/nowhere"):
            refused = client.ask("GET", path)
            assert (refused.status, refused.error["type"]) == (401, "authentication_error")
            assert refused.headers["www-authenticate"] == "Bearer" and KEY not in refused.body.decode()
        assert {client.ask("GET", path).status for path in ("/health", "/docs", "/openapi.json")} == {200}
        client.key = "b" + KEY[1:]
        assert client.embed("x").error["code"] == "invalid_api_key"
        client.key = KEY
        assert client.embed("x").status == 200
        assert client.ask("GET", "/v1/models", host="evil.example", origin="null").status == 200, "a key is enough"


def test_keys_come_from_a_file_or_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"\ufeff# clients\n{KEY}\n\n  {OTHER_KEY}  \n", encoding="utf-8")
    for keys in (read_keys(tmp_path / "keys", {}), read_keys(None, {"UNMASK_API_KEYS": f"{KEY}, {OTHER_KEY}"})):
        for key in (KEY, OTHER_KEY):
            keys.check(f"bearer {key}")
        for header in ("", "Bearer ", KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer \xff"):
            with pytest.raises(ApiError):
                keys.check(header)
    assert not read_keys(None, {})
    for content in (b"# none\n", b"short\n", "schlüssel-mit-umlaut-äöü\n".encode(), b"\xff\xfe"):
        (tmp_path / "keys").write_bytes(content)
        with pytest.raises(UnmaskError) as refused:
            read_keys(tmp_path / "keys", {})
        assert "schl" not in str(refused.value) and "short" not in str(refused.value), "a message shows a key"


def test_addresses_that_other_machines_reach_need_keys() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        require_keys(host, ApiKeys([]), False)
    for host in ("0.0.0.0", "::"):
        require_keys(host, ApiKeys([]), True)
        with pytest.raises(UnmaskError, match="--no-keys"):
            require_keys(host, ApiKeys([]), False)
    with pytest.raises(UnmaskError, match="not both"):
        require_keys("127.0.0.1", ApiKeys([KEY]), True)


# --- web pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),  # a page of another server on this machine
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://127.0.0.1:{port}"}, 403),
        ({"content-type": "text/plain", "origin": "http://evil.example"}, 403),  # a form of an old browser
        ({"host": "evil.example:{port}"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": ""}, 421),
        ({"host": "LocalHost:{port}"}, 200),
        ({"host": "[::1]:9"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:{port}"}, 200),
    ],
)
def test_without_keys_web_pages_of_other_origins_are_refused(headers: dict[str, str], status: int, client: Client) -> None:
    headers = {name: value.format(port=client.port) for name, value in headers.items()}
    body = {"model": "mean", "input": "x"}
    assert client.ask("POST", "/v1/embeddings", body, **headers).status == status
    assert client.ask("GET", "/metrics", None, **headers).status == status
    assert client.ask("GET", "/docs", None, **headers).status == 200


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10_001, 30_000, 10**12])
def test_a_body_that_is_too_long_is_refused(size: int, client: Client) -> None:
    answer = send(client, b" " * min(size, 60_000), f"Content-Length: {size}\r\n")
    assert answer.startswith(b"HTTP/1.1 413") and b"longer than 10000 bytes" in answer


# --- disconnects and stopping ----------------------------------------------------------------------------------------


def test_texts_of_a_disconnected_client_are_not_computed(client: Client, hold: Hold) -> None:
    batcher = client.server.service.batcher
    threads, _ = in_threads(1, lambda _: client.embed("first"))
    assert hold.entered.wait(10)
    body = json.dumps({"model": "mean", "input": "left"}).encode()
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw:
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        until(lambda: batcher.waiting[0] == 1)
    until(lambda: batcher.waiting == (0, 0))
    hold.release()
    threads[0].join(10)
    assert client.metric("unmask_gone_clients_total") == 1 and client.metric("unmask_texts_total") == 1


def test_a_stop_answers_accepted_requests(models: ServedModels, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(models) as client:
        hold = Hold(client, monkeypatch)
        threads, answers = in_threads(3, lambda n: client.embed(f"text {n}"))
        until(hold.entered.is_set)
        time.sleep(0.3)  # until all have been accepted
        client.server.stop()
        time.sleep(0.3)
        with pytest.raises(ConnectionError):
            client.embed("new")
        hold.release()
        for thread in threads:
            thread.join(20)
    assert {answer.status for answer in answers.values()} == {200}
