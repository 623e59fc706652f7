"""Requests and responses of OpenAI's embeddings API, with a few additional fields."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from unmask.errors import unknown

INSTRUCTION_CHARACTERS = 20_000
"""Every text of a request repeats the instruction, so its length is limited before tokens are counted."""

MAX_ECHO = 100  # characters of a request that an error repeats
_Item = TypeVar("_Item")
_List = Annotated[list[_Item], Field(fail_fast=True)]  # a body may contain millions of mistakes
_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB]%(hex)b{2}\\u[dD][c-fC-F]%(hex)b{2}|(?P<half>\\u[dD][89a-fA-F]%(hex)b{2})" % {b"hex": b"[0-9a-fA-F]"}
)
"""Escaped backslashes, surrogate pairs, and halves of such pairs, in JSON."""
_INPUT = "input should be a string, a list of strings, a list of token ids, or a list of lists of token ids."


class ApiError(Exception):
    """A refused or failed request, with the fields of OpenAI's errors."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = None if retry_after is None else min(max(1, round(retry_after)), 60)

    def response(self) -> Response:
        """The error as a JSON response."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        headers = {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status == 413:
            headers["connection"] = "close"  # the rest of the body is not read
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return Response(json.dumps({"error": error}), self.status, headers, "application/json")


class EmbeddingRequest(BaseModel):
    """The body of POST /v1/embeddings. The last four fields are extensions. Null means the default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: StrictStr = Field(description="Name of a served model: see /v1/models.")
    input: StrictStr | _List[StrictStr] | _List[StrictInt] | _List[_List[StrictInt]] = Field(
        description="A text, texts, the token ids of a text, or those of several texts."
    )
    encoding_format: Literal["float", "base64"] = Field("float", description="base64 encodes little-endian float32.")
    dimensions: Annotated[StrictInt, Field(ge=1)] | None = Field(None, description="Keep only the first dimensions.")
    user: StrictStr | None = Field(None, description="Ignored.")
    input_type: Literal["query", "document"] | None = Field(
        None, description="Use the saved embedder's instruction for queries or documents, if it has one."
    )
    instruction: Annotated[StrictStr, Field(max_length=INSTRUCTION_CHARACTERS)] | None = Field(
        None, description=f"Replaces {{instruction}} in the prompt; at most {INSTRUCTION_CHARACTERS} characters."
    )
    truncate: StrictBool = Field(
        True, description="Truncate texts to the model's limit and list them in `truncated`. False: refuse the request instead."
    )
    normalize: StrictBool = Field(True, description="Scale vectors to unit length.")

    @property
    def ids(self) -> list[list[int]] | None:
        """Token ids of each text, or None if the input is text."""
        if isinstance(self.input, str) or not self.input or isinstance(self.input[0], str):
            return None
        return [self.input] if isinstance(self.input[0], int) else self.input  # type: ignore[list-item, return-value]

    @property
    def texts(self) -> list[str]:
        """The texts, if the input is text."""
        return [self.input] if isinstance(self.input, str) else self.input  # type: ignore[return-value]


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str = Field(description="Numbers or base64.")


class Usage(BaseModel):
    """Tokens, prompts included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """The response of POST /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage
    truncated: list[int] = Field(description="Indices of truncated texts, from 0.")


class Error(BaseModel):
    """What is wrong with a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The response to a request that was refused or failed."""

    error: Error


def parse_request(body: bytes, max_texts: int) -> EmbeddingRequest:
    """Parse a body. Raises ApiError with status 413 for too many texts, and 400 for other mistakes, naming the field."""
    try:
        fields = from_json(_without_half_surrogates(body))
    except ValueError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "The body is not a JSON object.")
    for name in fields:
        if name not in EmbeddingRequest.model_fields:
            name = name[:MAX_ECHO]
            raise ApiError(400, str(unknown("field", name, EmbeddingRequest.model_fields)), param=name)
    texts = fields.get("input")
    if texts == []:
        raise ApiError(400, "input is empty: give at least one text.", param="input")
    count = len(texts) if isinstance(texts, list) and not isinstance(texts[0], int) else 1
    if count > max_texts:
        message = f"{count} texts exceed the limit of {max_texts}: send fewer at once."
        raise ApiError(413, message, param="input")
    try:
        return EmbeddingRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        raise ApiError(400, f"The field '{name}' is missing.", param=name)
    rule = problem["msg"].partition(" ")[2]  # of "Input should be a valid string"
    raise ApiError(400, _INPUT if name == "input" else f"{name} {rule}.", param=name)


def _without_half_surrogates(body: bytes) -> bytes:
    """Replace lone surrogates with U+FFFD, as `Embedder.encode` does; JSON parsers in Rust refuse them."""
    return _ESCAPES.sub(lambda match: rb"\ufffd" if match["half"] else match[0], body) if rb"\u" in body else body


def render(model: str, vectors: NDArray[np.float32], encoding: str, tokens: int, truncated: Sequence[int]) -> bytes:
    """The response body for vectors, as JSON."""
    encode = _base64 if encoding == "base64" else _numbers
    data = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, encode(vector)) for index, vector in enumerate(vectors)
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    rest = json.dumps({"model": model, "usage": usage, "truncated": list(truncated)}, separators=(",", ":")).encode()
    return b'{"object":"list","data":[%b],%b' % (data, rest[1:])


def _base64(vector: NDArray[np.float32]) -> bytes:
    return b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"'


def _numbers(vector: NDArray[np.float32]) -> bytes:
    # per vector, so that other threads can run in between
    return json.dumps(vector.tolist(), separators=(",", ":")).encode()
