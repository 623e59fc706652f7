"""Requests as real clients send them: OpenAI's libraries, LangChain, LiteLLM, browsers, load balancers, and people with large files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

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
TIKTOKEN_IDS = [[32, 893, 11335, 264, 17418, 13]]  # "A man plays a guitar." in cl100k_base


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


# --- what a request holds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [TIKTOKEN_IDS, TIKTOKEN_IDS[0], [[]]])
def test_token_ids_are_refused_unless_the_server_was_told_that_they_are_its_own(
    ids: Any, models: ServedModels, client: Client
) -> None:
    error = client.embed(ids).error
    assert error["param"] == "input"
    assert "check_embedding_ctx_length=False" in error["message"] and "--allow-token-ids" in error["message"]
    with running(models, settings=ServerSettings(allow_token_ids=True, max_tokens=99)) as allowing:
        assert allowing.embed([[10, 11]]).status == 200
        assert "--max-tokens" in allowing.embed([[10] * 50] * 2).error["message"], "ids are counted before they are decoded"


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"half \ud83d of it", "half \ud83d of it"),
        (rb"both \ud83d\ude00 halves", "both \U0001f600 halves"),
        (rb"swapped \ude00\ud83d\ud83d\ude00", "swapped \ude00\ud83d\U0001f600"),
        (rb"no escape: \\ud83d", r"no escape: \ud83d"),
    ],
)
def test_half_a_surrogate_is_read_as_by_encode(escaped: bytes, text: str, client: Client, embedder: Embedder) -> None:
    answer = client.ask("POST", "/v1/embeddings", b'{"model":"mean","input":["x","%b"]}' % escaped)
    expected = embedder.encode(["x", text], normalize=True)
    assert np.allclose(answer.vectors, expected, atol=2e-5)


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


def test_a_wrong_key_is_told_from_a_missing_one(models: ServedModels) -> None:
    with running(models, ApiKeys([KEY])) as client:
        for header in ({}, {"authorization": "Bearer "}, {"authorization": KEY}):
            error = client.ask("GET", "/v1/models", **header).error
            assert "requires an API key" in error["message"] and error["code"] is None, header
        for authorization in (f"Bearer {KEY[:-1]}", f"Basic {KEY}"):
            error = client.ask("GET", "/v1/models", authorization=authorization).error
            assert "is not valid" in error["message"] and error["code"] == "invalid_api_key"
            assert KEY[:-1] not in error["message"]


# --- large texts and large requests ----------------------------------------------------------------------------------

LONG = {
    "words": "the quick brown fox jumps over lazy dogs, 12.5 times. " * 1000,
    "no spaces": "吉他手在舞台上演奏。" * 1000,
    "spaces, then words": " " * 2000 + "a man plays a guitar " * 1000 + '"',
}


class Watched:
    """Counts the characters that a tokenizer reads, and the longest turn among them."""

    def __init__(self, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[int] = []
        call = type(embedder.tokenizer)._encode_plus

        def encode(tokenizer: Any, text: Any, *arguments: Any, **options: Any) -> Any:
            self.turns.append(len(text) if isinstance(text, str) else sum(map(len, text)))
            return call(tokenizer, text, *arguments, **options)

        monkeypatch.setattr(type(embedder.tokenizer), "_encode_plus", encode)


@pytest.mark.parametrize("prompt", ["plain", "instruction+eol"])
@pytest.mark.parametrize("name", LONG)
def test_a_large_text_has_the_tokens_of_encode(name: str, prompt: str, embedder: Embedder) -> None:
    reader = embedder.with_design(f"causal/{prompt}/last")
    texts = [LONG[name], "short", LONG[name][:2000]]
    served = ServedModels({"x": reader})["x"]
    assert list(served.tokenize(texts, None)) == list(reader.prompts.tokenize(texts))


def test_a_large_text_is_read_only_as_far_as_the_model_reads(
    client: Client, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(embedder, monkeypatch)
    answer = client.embed([LONG["words"], "x"])
    assert answer.json["truncated"] == [0]
    assert 0 < sum(watched.turns) < 5_000
    error = client.embed(LONG["words"], truncate=False).error
    assert "--max-length" in error["message"] and sum(watched.turns) < 10_000


@pytest.mark.parametrize(
    ("limits", "texts", "option"),
    [
        ({"max_body": 1100}, "x" * 2000, "--max-body"),
        ({"max_tokens": 9}, ["a man plays a guitar"] * 3, "--max-tokens"),
        ({"max_tokens": 9, "allow_token_ids": True}, [[10] * 4] * 3, "--max-tokens"),
    ],
)
def test_a_refusal_for_size_names_the_option(limits: dict[str, Any], texts: Any, option: str, models: ServedModels) -> None:
    with running(models, settings=replace(ServerSettings(), **limits)) as client:
        answer = client.embed(texts)
        assert answer.status == 413 and option in answer.error["message"]


# --- what an operator sees -------------------------------------------------------------------------------------------
