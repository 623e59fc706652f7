"""The HTTP API: the vectors are those of `encode`, however they are asked for; what is wrong is said in one sentence."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from openai import BadRequestError, NotFoundError, OpenAI

from tests.conftest import TEXTS
from tests.server.running import Client, running, until
from unmask.designs.prompts import Prompt
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
SETTINGS = ServerSettings(max_texts=500, max_tokens=20_000, max_body=200_000, timeout=20, allow_token_ids=True)


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


@pytest.mark.parametrize("name", DESIGNS)
def test_token_ids_are_their_text(name: str, client: Client, embedders: dict[str, Embedder]) -> None:
    tokenizer = embedders[name].tokenizer
    texts = [*TEXTS, "a </s> b", " spaces  in it ", "Ünïcode 🎉"]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    expected = encoded(embedders[name], texts)
    assert close(client.embed(ids, name).vectors, expected)
    assert close(client.embed(ids[0], name).vectors, expected[:1])


def test_fewer_dimensions_are_normalised_again(client: Client, embedders: dict[str, Embedder]) -> None:
    assert close(client.embed(TEXTS, dimensions=8).vectors, encoded(embedders["mean"], TEXTS, dim=8))
    assert np.array_equal(client.embed(TEXTS, dimensions=64).vectors, client.embed(TEXTS).vectors)
    error = client.embed(TEXTS, dimensions=65).error
    assert error["param"] == "dimensions" and "64" in error["message"]


def test_instructions_and_types_of_input(client: Client, embedders: dict[str, Embedder]) -> None:
    instructed = embedders["instructed"]
    assert close(client.embed(TEXTS, "instructed", input_type="query").vectors, instructed.encode_query(TEXTS, normalize=True))
    assert close(client.embed(TEXTS, "instructed", input_type="document").vectors, encoded(instructed, TEXTS))
    own = client.embed(TEXTS, "instructed", instruction="Say it").vectors
    assert close(own, encoded(instructed, TEXTS, instruction="Say it"))
    assert not close(own, encoded(instructed, TEXTS))
    assert "no {instruction}" in client.embed(TEXTS, "mean", instruction="Say it").error["message"]
    assert client.embed(TEXTS, "instructed", instruction="Say it", input_type="query").status == 400


def test_a_cut_is_told_or_refused(client: Client, embedders: dict[str, Embedder]) -> None:
    long = "guitar " * 200
    answer = client.embed(["short", long, "short too", long])
    assert answer.json["truncated"] == [1, 3]
    with pytest.warns(UserWarning, match="cut to 64 tokens"):
        assert close(answer.vectors, encoded(embedders["mean"], ["short", long, "short too", long]))
    error = client.embed(["short", long], truncate=False).error
    assert "Text 1" in error["message"] and "64 tokens" in error["message"]
    assert client.embed(["short"], truncate=False).status == 200


# --- the official client ---------------------------------------------------------------------------------------------


def test_the_official_client_works(openai: OpenAI, embedders: dict[str, Embedder]) -> None:
    answer = openai.embeddings.create(model="mean", input=TEXTS)
    assert close(np.array([one.embedding for one in answer.data]), encoded(embedders["mean"], TEXTS))
    as_floats = openai.embeddings.create(model="mean", input=TEXTS[0], encoding_format="float", dimensions=16, user="me")
    assert close(np.array(as_floats.data[0].embedding), encoded(embedders["mean"], TEXTS[:1], dim=16)[0])
    assert answer.usage.total_tokens > 0
    assert [one.id for one in openai.models.list()] == list(DESIGNS)
    assert openai.models.retrieve("last").id == "last"


def test_the_official_client_understands_errors(openai: OpenAI) -> None:
    with pytest.raises(NotFoundError) as missing:
        openai.embeddings.create(model="nobody", input="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(BadRequestError, match="input is empty"):
        openai.embeddings.create(model="mean", input=[])


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[" * 100_000, 400, None),
        ({}, 400, "model"),
        ({"model": "mean"}, 400, "input"),
        ({"model": 3, "input": "x"}, 400, "model"),
        ({"model": "nobody", "input": "x"}, 404, "model"),
        ({"model": "mean", "input": []}, 400, "input"),
        ({"model": "mean", "input": ["x", 3]}, 400, "input"),
        ({"model": "mean", "input": [512]}, 400, "input"),
        ({"model": "mean", "input": [[1], ["x"]]}, 400, "input"),
        ({"model": "mean", "input": [10**30]}, 400, "input"),
        ({"model": "mean", "input": "x", "encoding_format": "hex"}, 400, "encoding_format"),
        ({"model": "mean", "input": "x", "dimensions": 0}, 400, "dimensions"),
        ({"model": "mean", "input": "x", "truncate": "no"}, 400, "truncate"),
        ({"model": "mean", "input": "x", "input_type": "passage"}, 400, "input_type"),
        ({"model": "mean", "input": "x", "dimension": 8}, 400, "dimension"),
        ({"model": "mean", "input": "x", "instruction": "Say it"}, 400, "instruction"),
        ({"model": "instructed", "input": "x", "instruction": "Say it", "input_type": "query"}, 400, "instruction"),
        ({"model": "instructed", "input": "x", "instruction": "word " * 200}, 400, "instruction"),
        ({"model": "mean", "input": ["x"] * 501}, 413, "input"),
        ({"model": "mean", "input": ["word " * 60] * 400}, 413, "input"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(body: Any, status: int, param: str | None, client: Client) -> None:
    answer = client.ask("POST", "/v1/embeddings", body)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body
    assert client.embed("still here").status == 200


def test_a_long_instruction_is_refused_before_it_is_repeated(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []
    render = Prompt.render

    def watched(prompt: Prompt, text: str, instruction: str | None = None) -> Any:
        rendered.append(instruction or "")
        return render(prompt, text, instruction)

    monkeypatch.setattr(Prompt, "render", watched)
    error = client.embed(["x"] * 64, "instructed", instruction="y" * 150_000).error
    assert error["param"] == "instruction" and "at most 20000 characters" in error["message"]
    assert not rendered


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/v1/embeddings", 405), ("POST", "/v1/models", 405), ("GET", "/v1/models/nobody", 404),
     ("DELETE", "/health", 405), ("GET", "/v1/../../etc/passwd", 404), ("GET", "/%00", 404)],
)  # fmt: skip
def test_a_wrong_path_is_told(method: str, path: str, status: int, client: Client) -> None:
    answer = client.ask(method, path)
    assert (answer.status, answer.error["code"]) == (status, "model_not_found" if path.endswith("nobody") else None)


# --- other paths -----------------------------------------------------------------------------------------------------


def test_the_state_of_the_server_and_its_models(client: Client) -> None:
    assert client.ask("GET", "/health").json == {"status": "ok"}
    assert client.ask("GET", "/ready").json == {"status": "ready"}
    models = client.ask("GET", "/v1/models").json["data"]
    assert [(one["id"], one["design"]) for one in models] == list(DESIGNS.items())
    assert {one["dimensions"] for one in models} == {64} and {one["max_length"] for one in models} == {64}
    assert client.ask("GET", "/v1/models/mean").json == models[0]


def test_metrics_count(client: Client) -> None:
    names = ("unmask_texts_total", "unmask_requests_total", "unmask_batch_tokens_total", "unmask_truncated_texts_total")
    before = {name: client.metric(name) for name in names}
    client.embed(["one", "two", "guitar " * 200])
    after = {name: client.metric(name) - before[name] for name in names}
    assert after["unmask_texts_total"] == 3 and after["unmask_truncated_texts_total"] == 1
    assert after["unmask_requests_total"] > 1 and after["unmask_batch_tokens_total"] > 64
    assert client.metric("unmask_queue_texts") == 0 and client.metric("unmask_queue_tokens") == 0
    assert client.metric("unmask_requests_in_flight") == 1  # this one


def test_the_api_describes_itself(client: Client) -> None:
    described = client.ask("GET", "/openapi.json").json
    assert set(described["paths"]) == {
        "/v1/embeddings", "/v1/models", "/v1/models/{name}", "/health", "/ready", "/metrics",
    }  # fmt: skip
    schema = described["paths"]["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "input", "encoding_format", "dimensions", "truncate", "instruction"} <= set(schema["properties"])
    page = client.ask("GET", "/docs").body.decode()
    assert all(f"<code>{name}</code>" in page for name in schema["properties"])
    assert "<script" not in page and "http://" not in page and "https://" not in page


def test_no_request_is_left_in_what_the_server_says(
    client: Client,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("DEBUG")
    secret = "a secret text"

    def fail(*_: Any) -> Any:
        raise RuntimeError(secret)

    monkeypatch.setattr(client.server.service.batcher, "_compute", fail)
    answer = client.embed(secret)
    assert answer.status == 500 and secret not in answer.body.decode()
    told = "".join((caplog.text, *capfd.readouterr()))
    assert secret not in told and "RuntimeError in test_app.py" in told and "Traceback" not in told
    monkeypatch.undo()
    assert client.embed("next").status == 200


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


def test_what_takes_too_long_is_ended(embedders: dict[str, Embedder], monkeypatch: pytest.MonkeyPatch) -> None:
    with running(ServedModels({"mean": embedders["mean"]}), settings=ServerSettings(timeout=0.2)) as client:
        compute, computed = client.server.service.batcher._compute, []

        def slow(*given: Any) -> Any:
            time.sleep(0.5)
            computed.append(len(given[-1]))
            return compute(*given)

        monkeypatch.setattr(client.server.service.batcher, "_compute", slow)
        first = threading.Thread(target=client.embed, args=("first",))
        first.start()
        time.sleep(0.05)
        assert re.search(r"not ready within 0\.2 seconds.* --timeout", client.embed("x").error["message"])
        first.join(20)
        until(lambda: client.server.service.batcher.waiting == (0, 0))
    assert sum(computed) == 1, "a text was computed that nobody waited for"
    assert ServerSettings().timeout is None, "a slow machine gives no answer to 2,048 texts, unless the user knows the option"
