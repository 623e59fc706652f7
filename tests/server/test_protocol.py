"""Requests: each mistake is reported as one sentence about its field, at little cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from unmask.server.protocol import ApiError, EmbeddingRequest, parse_request


@pytest.mark.parametrize("texts", [["", *[1] * 1000], [1, *[""] * 1000], [[1], *[""] * 1000], [""] * 3000])
def test_a_list_is_refused_at_its_first_mistake(texts: list[Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        EmbeddingRequest.model_validate({"model": "mean", "input": texts})
    assert refused.value.error_count() < 10


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"model": 1}, "model should be a valid string."),
        ({"model": None}, "The field 'model' is missing."),
        ({"encoding_format": "int8"}, "encoding_format should be 'float' or 'base64'."),
        ({"dimensions": 0}, "dimensions should be greater than or equal to 1."),
        ({"instruction": "x" * 20_001}, "instruction should have at most 20000 characters."),
        ({"truncate": "yes"}, "truncate should be a valid boolean."),
        ({"input_type": "passage"}, "input_type should be 'query' or 'document'."),
        ({"dimension": 8}, "Did you mean 'dimensions'?"),
        *(({"input": texts}, "a list of 1 to 2048 texts") for texts in ([], [1, 2], [[1], [2]], ["x"] * 2049, 3)),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence_about_its_field(field: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_request(json.dumps({"model": "mean", "input": "x"} | field).encode())
    assert (refused.value.status, refused.value.param) == (400, next(iter(field)))
    assert message in refused.value.message and len(refused.value.message) < 400


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'["x"]', b'"x"', b'{"model":"m","input":"\\ud83d"}', b"\xff"])
def test_a_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="not a valid JSON object") as refused:
        parse_request(body)
    assert (refused.value.status, refused.value.param) == (400, None)


def test_null_stands_for_the_default() -> None:
    nulls = dict.fromkeys(("encoding_format", "dimensions", "user", "input_type", "instruction", "truncate", "normalize"))
    assert parse_request(json.dumps({"model": "m", "input": "x"} | nulls).encode()) == parse_request(
        b'{"model":"m","input":"x"}'
    )
