"""The HTTP API: the vectors are those of `encode`, however they are asked for; what is wrong is said in one sentence."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from openai import NotFoundError, OpenAI

from tests.conftest import TEXTS
from tests.server.running import Client, running
from unmask.embedder import Embedder
from unmask.server.middleware import ServerSettings
from unmask.server.served import ServedModels

DESIGNS = {
    "mean": "causal/plain/mean",
    "last": "causal/plain/last@1",
    "prompteol": "causal/eol/last",
    "whole": "bidirectional/plain/mean",
    "instructed": "causal/instruction/mean",
    "z": "causal/plain/mean/zscore",
}
SETTINGS = ServerSettings(max_tokens=20_000, max_body=200_000)


@pytest.fixture(scope="module")
def embedders(pico: Callable[..., Embedder]) -> dict[str, Embedder]:
    first = pico("causal/instruction/mean", max_length=64, instructions={"query": "Find the answer"})
    return {name: first.with_design(design) for name, design in DESIGNS.items()}


@pytest.fixture(scope="module")
def client(embedders: dict[str, Embedder]) -> Iterator[Client]:
    with running(ServedModels(embedders), settings=SETTINGS) as client:
        yield client


@pytest.fixture
def openai(client: Client) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{client.port}/v1", api_key="none", max_retries=0) as made:
        yield made


def close(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Equal up to the order of sums, which the other texts of a batch change."""
    return found.shape == expected.shape and bool(np.abs(found - expected).max(initial=0) <= 2e-5)


def encoded(embedder: Embedder, texts: Sequence[str], **options: Any) -> NDArray[Any]:
    return embedder.encode(texts, normalize=True, show_progress=False, **options)


def corpus(number: int) -> list[str]:
    """Texts of very different lengths; most fit the limit of the model."""
    draw = random.Random(0)
    words = ["a", "man", "plays", "the", "guitar", "while", "dogs", "run", "across", "wet", "grass"]
    return [" ".join(draw.choices(words, k=draw.choice((1, 2, 5, 9, 12)))) + f" {place}" for place in range(number)]


# --- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DESIGNS)
def test_each_model_gives_the_vectors_of_its_design(name: str, client: Client, embedders: dict[str, Embedder]) -> None:
    answer = client.embed(TEXTS, name)
    assert close(answer.vectors, encoded(embedders[name], TEXTS))
    assert [one["index"] for one in answer.json["data"]] == list(range(len(TEXTS)))
    assert answer.json["model"] == name and answer.json["truncated"] == []
    tokens = sum(len(text.ids) for text in embedders[name].prompt.tokenize(TEXTS))
    assert answer.json["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_four_hundred_texts_of_eight_clients_are_those_of_encode(client: Client, embedders: dict[str, Embedder]) -> None:
    texts, names = corpus(400), ("mean", "last", "prompteol", "whole")
    found: dict[int, NDArray[np.float32]] = {}

    def ask(number: int) -> None:
        draw, at = random.Random(number), 50 * number
        while at < 50 * (number + 1):
            size = min(draw.choice((1, 2, 7)), 50 * (number + 1) - at)
            for place, vector in enumerate(client.embed(texts[at : at + size], names[number % 4]).vectors):
                found[at + place] = vector
            at += size

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with pytest.warns(UserWarning, match="4 of 400 texts were cut"):
        expected = {name: encoded(embedders[name], texts) for name in names}
    assert len(found) == 400
    for place, vector in found.items():
        assert close(vector, expected[names[place // 50 % 4]][place]), place


def test_models_that_share_a_forward_pass_are_computed_in_one(embedders: dict[str, Embedder]) -> None:
    models = ServedModels(embedders)
    tokenized = list(embedders["mean"].prompt.tokenize(TEXTS[:2]))
    passes: list[Any] = []
    hook = embedders["mean"].backbone.model.register_forward_pre_hook(lambda *_: passes.append(1))
    values = [(embedders[name].design, text) for name in ("mean", "last", "z") for text in tokenized]
    vectors = models.compute(0, models["mean"].group, values)
    hook.remove()
    assert len(passes) == 1
    for place, name in enumerate(("mean", "last", "z")):
        assert close(np.stack(vectors[2 * place : 2 * place + 2]), embedders[name].encode(TEXTS[:2]))


def test_fewer_dimensions_are_normalised_again(client: Client, embedders: dict[str, Embedder]) -> None:
    assert close(client.embed(TEXTS, dimensions=8).vectors, encoded(embedders["mean"], TEXTS, dim=8))
    assert np.array_equal(client.embed(TEXTS, dimensions=64).vectors, client.embed(TEXTS).vectors)


def test_instructions_and_types_of_input(client: Client, embedders: dict[str, Embedder]) -> None:
    instructed = embedders["instructed"]
    assert close(client.embed(TEXTS, "instructed", input_type="query").vectors, instructed.encode_query(TEXTS, normalize=True))
    assert close(client.embed(TEXTS, "instructed", input_type="document").vectors, encoded(instructed, TEXTS))
    own = client.embed(TEXTS, "instructed", instruction="Say it").vectors
    assert close(own, encoded(instructed, TEXTS, instruction="Say it"))
    assert not close(own, encoded(instructed, TEXTS))


def test_truncated_texts_are_listed(client: Client, embedders: dict[str, Embedder]) -> None:
    long = "guitar " * 200
    answer = client.embed(["short", long, "short too", long])
    assert answer.json["truncated"] == [1, 3]
    with pytest.warns(UserWarning, match="cut to 64 tokens"):
        assert close(answer.vectors, encoded(embedders["mean"], ["short", long, "short too", long]))


# --- the official client ---------------------------------------------------------------------------------------------


def test_the_official_client_works(openai: OpenAI, embedders: dict[str, Embedder]) -> None:
    answer = openai.embeddings.create(model="mean", input=TEXTS)
    assert close(np.array([one.embedding for one in answer.data]), encoded(embedders["mean"], TEXTS))
    as_floats = openai.embeddings.create(model="mean", input=TEXTS[0], encoding_format="float", dimensions=16, user="me")
    assert close(np.array(as_floats.data[0].embedding), encoded(embedders["mean"], TEXTS[:1], dim=16)[0])
    assert answer.usage.total_tokens > 0
    assert [one.id for one in openai.models.list()] == list(DESIGNS)
    with pytest.raises(NotFoundError) as missing:
        openai.embeddings.create(model="nobody", input="x")
    assert missing.value.code == "model_not_found"


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        ({"model": "nobody", "input": "x"}, 404, "model"),
        ({"model": "mean", "input": [[512]]}, 400, "input"),
        ({"model": "mean", "input": "x", "dimensions": 65}, 400, "dimensions"),
        ({"model": "mean", "input": "x", "instruction": "Say it"}, 400, "instruction"),
        ({"model": "instructed", "input": "x", "instruction": "Say it", "input_type": "query"}, 400, "instruction"),
        ({"model": "instructed", "input": "x", "instruction": "word " * 200}, 400, "instruction"),
        ({"model": "mean", "input": ["x", "guitar " * 200], "truncate": False}, 400, "input"),
        ({"model": "mean", "input": ["word " * 60] * 400}, 413, "input"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(body: Any, status: int, param: str | None, client: Client) -> None:
    answer = client.ask("POST", "/v1/embeddings", body)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body


# --- other paths -----------------------------------------------------------------------------------------------------


def test_the_state_of_the_server_and_its_models(client: Client) -> None:
    assert client.ask("GET", "/health").json == {"status": "ok"}
    models = client.ask("GET", "/v1/models").json["data"]
    assert [(one["id"], one["design"]) for one in models] == list(DESIGNS.items())
    assert {one["dimensions"] for one in models} == {64} and {one["max_length"] for one in models} == {64}
    assert client.ask("GET", "/v1/models/mean").json == models[0]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/mean", "/v1/embeddings", "/nowhere"])
def test_head_is_answered_as_get_without_a_body(path: str, client: Client) -> None:
    get, head = (client.ask(method, path) for method in ("GET", "HEAD"))
    assert (head.status, head.body) == (get.status, b"") and get.body
    assert all(head.headers[name] == get.headers[name] for name in ("content-type", "content-length"))


def test_metrics_count(client: Client) -> None:
    names = ("unmask_texts_total", "unmask_requests_total", "unmask_batch_tokens_total", "unmask_truncated_texts_total")
    before = {name: client.metric(name) for name in names}
    client.embed(["one", "two", "guitar " * 200])
    after = {name: client.metric(name) - before[name] for name in names}
    assert after["unmask_texts_total"] == 3 and after["unmask_truncated_texts_total"] == 1
    assert after["unmask_requests_total"] > 1 and after["unmask_batch_tokens_total"] > 64
    assert client.metric("unmask_queue_texts") == 0 and client.metric("unmask_queue_tokens") == 0


def test_a_vector_that_is_not_finite_fails_alone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = client.server.service.batcher._compute

    def damaged(worker: int, group: Any, texts: Any) -> Any:
        return [
            vector * (np.nan if len(text.ids) > 20 else 1)
            for vector, (_, text) in zip(compute(worker, group, texts), texts, strict=True)
        ]

    monkeypatch.setattr(client.server.service.batcher, "_compute", damaged)
    answers: dict[str, Any] = {}
    texts = {"fine": "A man", "not": "word " * 30}
    threads = [
        threading.Thread(target=lambda name=name, text=text: answers.update({name: client.embed(["x", text])}))
        for name, text in texts.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers["fine"].status == 200
    assert answers["not"].status == 500 and "not finite" in answers["not"].error["message"]
    assert "text 1" in answers["not"].error["message"]
