"""Requests: a hostile body costs little to refuse, however many mistakes it holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from unmask.server.protocol import ApiError, EmbeddingRequest, parse_request


@pytest.mark.parametrize("given", [["", *[1] * 1000], [1, *[""] * 1000], [[1], *[""] * 1000], [[""] * 1000, [1]]])
def test_a_list_is_refused_at_its_first_mistake(given: list[Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        EmbeddingRequest.model_validate({"model": "mean", "input": given})
    assert refused.value.error_count() < 10


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        ({"model": "mean", "input": ["", *[1] * 1000]}, 413, "input", "1001 texts exceed the limit of 8"),
        ({"model": "mean", "input": [[1]] * 9}, 413, "input", "9 texts exceed the limit of 8"),
        (
            {"model": "mean", "input": "x"} | {f"dimension{n}": 1 for n in range(1000)},
            400,
            "dimension0",
            "Did you mean 'dimensions'?",
        ),
        (["x"], 400, None, "not a JSON object"),
        ("x", 400, None, "not a JSON object"),
    ],
)
def test_what_can_be_counted_is_refused_before_it_is_validated(
    body: Any, status: int, param: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model_validate", "model_validate_json"):
        monkeypatch.delattr(f"pydantic.BaseModel.{name}")
    with pytest.raises(ApiError, match=said) as refused:
        parse_request(json.dumps(body).encode(), 8)
    assert (refused.value.status, refused.value.param) == (status, param)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"model": 1}, "model should be a valid string."),
        ({"encoding_format": "int8"}, "encoding_format should be 'float' or 'base64'."),
        ({"dimensions": 0}, "dimensions should be greater than or equal to 1."),
        ({"instruction": "x" * 20_001}, "instruction should have at most 20000 characters."),
        ({"truncate": "yes"}, "truncate should be a valid boolean."),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence_about_its_field(field: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_request(json.dumps({"model": "mean", "input": "x"} | field).encode(), 8)
    assert (refused.value.message, refused.value.param) == (said, next(iter(field)))


def test_the_tokens_of_one_text_are_not_many_texts() -> None:
    assert parse_request(b'{"model":"mean","input":[1,2,3]}', 2).ids == [[1, 2, 3]]
