"""Hostile requests: whatever is sent, the server answers with JSON or closes; it never fails, hangs, or shows a traceback.

`make test` tries 400 of them, `make test-all` 10 000.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from tests.abuse.test_cases import PIECES
from tests.proofs import ALL
from tests.server.running import Client, running, until
from unmask.embedder import Embedder
from unmask.server.limits import Limits
from unmask.server.protocol import EmbeddingRequest
from unmask.server.served import ServedModels

NUMBER = 2500 if ALL else 100  # of each of the four tests
hostile = settings(
    max_examples=NUMBER, suppress_health_check=list(HealthCheck), derandomize=not ALL, database=None, deadline=None
)
TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=4).map("".join))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
INPUTS = st.one_of(
    TEXTS, st.lists(TEXTS, max_size=5), st.lists(st.integers(-2, 520), max_size=9),
    st.lists(st.lists(st.integers(0, 511), max_size=5), max_size=4), ANYTHING,
)  # fmt: skip
FIELDS = {
    "model": st.one_of(st.sampled_from(["mean", "instructed"]), ANYTHING),
    "input": INPUTS,
    "encoding_format": st.one_of(st.sampled_from(["float", "base64"]), ANYTHING),
    "dimensions": st.one_of(st.integers(-1, 70), ANYTHING),
    "user": TEXTS,
    "input_type": st.one_of(st.sampled_from(["query", "document"]), ANYTHING),
    "instruction": st.one_of(TEXTS, ANYTHING),
    "truncate": st.one_of(st.booleans(), ANYTHING),
    "normalize": st.booleans(),
}
BODIES = st.fixed_dictionaries(
    {"model": FIELDS["model"], "input": INPUTS},
    optional={name: FIELDS[name] for name in FIELDS if name not in ("model", "input")},
)
HEADS = st.lists(
    st.sampled_from([
        b"Content-Length: 5", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Connection: close", b"Connection: upgrade", b"Upgrade: websocket",
        b"Expect: 100-continue", b"Host: localhost", b"Host: ", b"Authorization: Bearer", b"Content-Type: text/plain",
        b"Origin: null", b"Sec-Fetch-Site: cross-site", b"X: " + b"y" * 70_000, b"bad header", b"\xff: \xfe", b"Cookie: \0",
    ]), max_size=4,
)  # fmt: skip
METHODS = st.sampled_from([b"GET", b"POST", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"CONNECT", b"NONSENSE", b"", b"\0"])
PATHS = st.one_of(
    st.sampled_from([b"/v1/embeddings", b"/v1/embeddings", b"/v1/models", b"/v1/models/" + b"x" * 9999, b"/health", b"/metrics", b"/docs",
                     b"*", b"", b"//", b"/%ff%00", b"http://x/v1/models", b"/v1/models/../..", b"/?a=b&a"]),
    st.binary(max_size=20),
)  # fmt: skip


def test_the_fields_are_those_of_the_protocol() -> None:
    assert set(FIELDS) == set(EmbeddingRequest.model_fields)


@pytest.fixture(scope="module")
def client(pico: Callable[..., Embedder]) -> Iterator[Client]:
    instructed = pico("causal/instruction/mean", max_length=32, instructions={"query": "Find it"})
    models = ServedModels({"instructed": instructed, "mean": instructed.with_design("causal/plain/mean")})
    with running(models, limits=Limits(seconds=10, body_seconds=0.2, idle_seconds=0.3, body_bytes=100_000)) as client:
        yield client


@pytest.fixture(autouse=True)
def _quiet(client: Client, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """At the end, the server has said nothing, holds nothing, and works."""
    caplog.set_level("INFO")
    yield
    told = "".join((caplog.text, *capfd.readouterr()))
    assert "request failed" not in told and "Traceback" not in told, told[-2000:]
    assert client.embed("still here").status == 200
    until(lambda: client.server.service.batcher.waiting == (0, 0))
    until(lambda: (client.server.traffic.requests, client.server.traffic.bodies) == (0, 0))


def check(client: Client, body: Any) -> None:
    answer = client.ask("POST", "/v1/embeddings", body)
    event(str(answer.status))
    assert answer.status in (200, 400, 404, 413), answer.body
    if answer.status == 200:
        assert answer.json["data"]
    else:
        assert answer.error["type"] == "invalid_request_error"


@hostile
@given(BODIES)
def test_any_fields(client: Client, body: dict[str, Any]) -> None:
    check(client, body)


@hostile
@example(body=b'{"\\n": null}')
@given(st.one_of(st.binary(max_size=200), ANYTHING.map(lambda value: json.dumps(value).encode())))
def test_any_body(client: Client, body: bytes) -> None:
    check(client, body)


@hostile
@given(BODIES.map(lambda body: json.dumps(body).encode()), st.data())
def test_any_damage_to_a_body(client: Client, body: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(body) - 1))
    check(client, body[:place] + data.draw(st.binary(max_size=3)) + body[place + data.draw(st.integers(0, 3)) :])


@hostile
@given(METHODS, PATHS, HEADS, st.binary(max_size=40))
def test_any_bytes(client: Client, method: bytes, path: bytes, heads: list[bytes], body: bytes) -> None:
    sent = b"\r\n".join([b"%b %b HTTP/1.1" % (method, path), *heads, b"", body])
    found = b""
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw:
        try:
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
            while chunk := raw.recv(65536):
                found += chunk
        except TimeoutError:
            raise AssertionError("the server hangs") from None
        except OSError:  # it has closed the connection
            pass
    status = found[9:12]
    event(status.decode())
    assert not status.startswith(b"5") and b"Traceback" not in found, found
