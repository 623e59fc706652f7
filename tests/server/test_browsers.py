"""Without keys, no web page that the user has open can use a server of this machine; programs can."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from openai import OpenAI

from tests.server.running import Client, running
from unmask.embedder import Embedder
from unmask.server.keys import Keys
from unmask.server.served import ServedModels

KEY = "a-key-of-sixteen-or-more"
OTHER_PAGES = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},  # a page of another server of this machine
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"origin": "https://127.0.0.1:{port}"},
]
OTHER_NAMES = [
    {"host": host}
    for host in ("evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "::1", "")
]


@pytest.fixture(scope="module")
def models(pico: Callable[..., Embedder]) -> ServedModels:
    return ServedModels({"mean": pico("causal/plain/mean")})


@pytest.fixture(scope="module")
def client(models: ServedModels) -> Iterator[Client]:
    with running(models) as client:
        yield client


def status(client: Client, path: str, headers: dict[str, str]) -> int:
    sent = {name: value.format(port=client.port) for name, value in headers.items()}
    body = {"model": "mean", "input": "x"} if path == "/v1/embeddings" else None
    answer = client.ask("POST" if body else "GET", path, body, **sent)
    if answer.status >= 400:
        assert answer.error["type"] == "invalid_request_error"
    return answer.status


@pytest.mark.parametrize("headers", OTHER_PAGES)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models", "/metrics"])
def test_another_page_is_refused(path: str, headers: dict[str, str], client: Client) -> None:
    assert status(client, path, headers) == 403


def test_what_a_page_can_send_without_asking_is_refused(client: Client) -> None:
    """A form or a `no-cors` fetch of an old browser, which sends no `Sec-Fetch-Site`."""
    body = json.dumps({"model": "mean", "input": "x"}).encode()
    answer = client.ask("POST", "/v1/embeddings", body, **{"content-type": "text/plain", "origin": "http://evil.example"})
    assert answer.status == 403 and client.metric("unmask_texts_total") == 0


@pytest.mark.parametrize("headers", OTHER_NAMES)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models", "/metrics"])
def test_another_name_of_this_machine_is_refused(path: str, headers: dict[str, str], client: Client) -> None:
    assert status(client, path, headers) == 421


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost"},
        {"host": "LocalHost:{port}"},
        {"host": "[::1]:9"},  # a tunnel from another port
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:{port}"},
    ],
)
def test_programs_and_pages_of_our_own_are_answered(headers: dict[str, str], client: Client) -> None:
    assert {status(client, path, headers) for path in ("/v1/embeddings", "/v1/models")} == {200}


@pytest.mark.parametrize("headers", [*OTHER_PAGES, *OTHER_NAMES])
def test_a_link_to_what_needs_no_key_works(headers: dict[str, str], client: Client) -> None:
    assert status(client, "/docs", headers) == 200


def test_who_has_a_key_may_come_from_anywhere(models: ServedModels) -> None:
    with running(models, Keys([KEY])) as client:
        client.key = KEY
        assert {status(client, "/v1/embeddings", headers) for headers in (*OTHER_PAGES, *OTHER_NAMES)} == {200}


def test_a_server_for_other_machines_has_any_name(models: ServedModels) -> None:
    with running(models, address="0.0.0.0") as client:
        assert status(client, "/v1/models", {"host": "embeddings.example"}) == 200


def test_the_address_that_it_listens_on_is_a_name(models: ServedModels) -> None:
    with running(models, address="127.0.0.2") as client:
        assert status(client, "/v1/models", {"host": f"127.0.0.2:{client.port}"}) == 200
        assert status(client, "/v1/models", {"host": f"127.0.0.3:{client.port}"}) == 421


def test_the_official_client_and_curl_work(client: Client) -> None:
    with OpenAI(base_url=f"http://localhost:{client.port}/v1", api_key="none", max_retries=0) as openai:
        assert len(openai.embeddings.create(model="mean", input="x").data) == 1
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    body = '{"model": "mean", "input": "x"}'
    told = subprocess.run(
        ["curl", "-sf", "--noproxy", "*", f"http://127.0.0.1:{client.port}/v1/embeddings", "-d", body],
        capture_output=True,
        check=True,
    )
    assert json.loads(told.stdout)["data"]
