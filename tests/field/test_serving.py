"""Requests as real clients send them: OpenAI's libraries, LangChain, LiteLLM, browsers, load balancers, and people with large files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TEXTS
from tests.server.running import Client, running
from unmask.embedder import Embedder
from unmask.server.access import ApiKeys
from unmask.server.middleware import ServerSettings
from unmask.server.served import ServedModels, load_models

KEY = "a-key-of-sixteen-or-more"
PAGE = "https://app.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


@pytest.fixture(scope="module")
def embedder(pico: Callable[..., Embedder]) -> Embedder:
    return pico("causal/plain/mean", max_length=32)


@pytest.fixture(scope="module")
def models(embedder: Embedder) -> ServedModels:
    return ServedModels({"mean": embedder, "last": embedder.with_design("causal/plain/last")}, "pico")


@pytest.fixture(scope="module")
def client(models: ServedModels) -> Iterator[Client]:
    with running(models) as client:
        yield client


# --- names of models -------------------------------------------------------------------------------------------------


def test_a_model_answers_to_its_own_name(client: Client, pico_folder: Callable[[str], Path]) -> None:
    vectors = {name: client.embed(TEXTS, name).vectors for name in ("mean", "last", "pico", "pico:mean", "pico:last")}
    assert np.array_equal(vectors["pico"], vectors["mean"]) and np.array_equal(vectors["pico:mean"], vectors["mean"])
    assert np.array_equal(vectors["pico:last"], vectors["last"])
    first, last = client.ask("GET", "/v1/models").json["data"]
    assert (first["aliases"], last["aliases"]) == (["pico", "pico:mean"], ["pico:last"])
    assert client.ask("GET", "/v1/models/pico").json == first
    error = client.embed(TEXTS, "picco").error
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert all(name in error["message"] for name in ("'picco'", "Did you mean 'pico'?", "pico:last"))
    folder = pico_folder("llama")
    assert folder.name in load_models(str(folder), dtype="float32", device="cpu")


# --- pages, proxies and balancers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "origins"), [(KEY, (PAGE,)), (None, ("*",))])
def test_a_page_of_an_allowed_origin_can_use_the_server(
    origins: tuple[str, ...], key: str | None, models: ServedModels
) -> None:
    with running(models, ApiKeys([key] if key else []), ServerSettings(cors_origins=origins)) as client:
        preflight = client.ask("OPTIONS", "/v1/embeddings", **PREFLIGHT)
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-origin"] in (PAGE, "*")
        assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
        client.key, client.headers = key, {"origin": PAGE, "sec-fetch-site": "cross-site"}
        for answer, status in ((client.embed("x"), 200), (client.embed([]), 400)):
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] in (PAGE, "*"), "the page cannot read the answer"


def test_a_page_of_another_origin_cannot(models: ServedModels, client: Client) -> None:
    other = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    with running(models, settings=ServerSettings(cors_origins=(PAGE,))) as allowing:
        assert allowing.ask("OPTIONS", "/v1/embeddings", **PREFLIGHT | other).status == 400
        refused = allowing.ask("POST", "/v1/embeddings", {"model": "mean", "input": "x"}, **other)
        assert refused.status == 403 and "access-control-allow-origin" not in refused.headers
    with running(models, ApiKeys([KEY])) as keyed:
        for server in (client, keyed):  # without the option, a developer is told about it and not about keys
            preflight = server.ask("OPTIONS", "/v1/embeddings", **PREFLIGHT)
            assert preflight.status == 403 and "--cors-origin" in preflight.error["message"]
    page = client.ask("POST", "/v1/embeddings", {"model": "mean", "input": "x"}, **other)
    assert page.status == 403 and "--cors-origin" in page.error["message"]
