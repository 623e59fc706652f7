"""Protocol: requests and answers in the form of OpenAI's embeddings API, with a few fields more."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from pydantic_core import from_json

from unmask.errors import unknown

INSTRUCTION_CHARACTERS = 20_000
"""Most characters of an instruction. Each text of a request repeats it, before any limit of tokens can hold."""

SHOWN = 100  # characters of a request that an error repeats to its sender
_Item = TypeVar("_Item")
_List = Annotated[list[_Item], Field(fail_fast=True)]  # else a body of millions of mistakes would become millions of errors
_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB]%(hex)b{2}\\u[dD][c-fC-F]%(hex)b{2}|(?P<half>\\u[dD][89a-fA-F]%(hex)b{2})" % {b"hex": b"[0-9a-fA-F]"}
)
"""Escaped backslashes, surrogate pairs, and halves of such pairs, in JSON."""
_INPUT = "input should be a string, a list of strings, a list of token ids, or a list of lists of token ids."


class ApiError(Exception):
    """A refused or failed request: an HTTP status, one sentence, and what else OpenAI's errors hold."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = None if retry_after is None else min(max(1, round(retry_after)), 60)

    @property
    def body(self) -> bytes:
        """The answer, as JSON."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        headers = {"content-type": "application/json"}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return headers


class EmbeddingRequest(BaseModel):
    """The body of POST /v1/embeddings. The last four fields are unmask's own. An optional field that is null has its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: StrictStr = Field(description="Name of a served model: see /v1/models.")
    input: StrictStr | _List[StrictStr] | _List[StrictInt] | _List[_List[StrictInt]] = Field(
        description="A text, texts, the token ids of a text, or those of several texts."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: of the vector's numbers as little-endian float32."
    )
    dimensions: Annotated[StrictInt, Field(ge=1)] | None = Field(None, description="Keep so many first dimensions only.")
    user: StrictStr | None = Field(None, description="Taken and ignored.")
    input_type: Literal["query", "document"] | None = Field(
        None, description="Use the instruction that a saved embedder has for queries or documents, if it has one."
    )
    instruction: Annotated[StrictStr, Field(max_length=INSTRUCTION_CHARACTERS)] | None = Field(
        None, description=f"What the prompt's {{instruction}} says: at most {INSTRUCTION_CHARACTERS} characters."
    )
    truncate: StrictBool = Field(
        True, description="Cut texts to the model's limit, and report them in `truncated`. False: refuse the request instead."
    )
    normalize: StrictBool = Field(True, description="Scale vectors to length 1.")

    @property
    def ids(self) -> list[list[int]] | None:
        """The token ids of each text, or None if the input is text."""
        if isinstance(self.input, str) or not self.input or isinstance(self.input[0], str):
            return None
        return [self.input] if isinstance(self.input[0], int) else self.input  # type: ignore[list-item, return-value]

    @property
    def texts(self) -> list[str]:
        """The texts, where the input is text."""
        return [self.input] if isinstance(self.input, str) else self.input  # type: ignore[return-value]


class Embedding(BaseModel):
    """One vector of an answer."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str = Field(description="Numbers, or their base64.")


class Usage(BaseModel):
    """Tokens of the texts with their prompts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """The answer to POST /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage
    truncated: list[int] = Field(description="The places of the texts that were cut, counted from 0.")


class Error(BaseModel):
    """What is wrong with a request, in one sentence."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The answer to a request that was refused or failed."""

    error: Error


def parse_request(body: bytes, items: int) -> EmbeddingRequest:
    """The request of a body, of at most so many texts.

    Raises ApiError with status 413 for more texts. Raises it with status 400 for another mistake, and names the field that is wrong.
    """
    fields = _fields(body)
    _require_items(fields.get("input"), items)
    try:
        return EmbeddingRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise _refusal(error) from None


def _fields(body: bytes) -> dict[str, Any]:
    problem = ""
    try:
        fields = from_json(_without_half_surrogates(body))
    except ValueError as error:
        problem = f": {error}"
    if problem or not isinstance(fields, dict):
        raise ApiError(400, f"The body is not the JSON object that it should be{problem}.")
    for name in fields:
        if name not in EmbeddingRequest.model_fields:
            name = name[:SHOWN]
            raise ApiError(400, str(unknown("field", name, EmbeddingRequest.model_fields)), param=name)
    return fields


def _without_half_surrogates(body: bytes) -> bytes:
    """JSON in which each lone half of a surrogate pair is U+FFFD, as `Embedder.encode` reads it. JSON parsers in Rust refuse them."""
    return _ESCAPES.sub(lambda match: rb"\ufffd" if match["half"] else match[0], body) if rb"\u" in body else body


def _require_items(given: Any, items: int) -> None:
    if given == []:
        raise ApiError(400, "input is empty: give at least one text.", param="input")
    texts = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
    if texts > items:
        message = (
            f"{texts} texts are more than the {items} of one request: send fewer at once, or raise the server's --max-texts."
        )
        raise ApiError(413, message, param="input")


def _refusal(error: ValidationError) -> ApiError:
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        return ApiError(400, f"The field '{name}' is missing.", param=name)
    said = problem["msg"].partition(" ")[2]  # "Input should be a valid string": the field is a better subject
    message = _INPUT if name == "input" else f"{name} {said}."
    return ApiError(400, message, param=name)


def render(model: str, vectors: NDArray[np.float32], encoding: str, tokens: int, truncated: Sequence[int]) -> bytes:
    """The answer with these vectors, in their order, as JSON."""
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
    # one vector at a time: other threads may run in between
    return json.dumps(vector.tolist(), separators=(",", ":")).encode()
