"""Requests and responses of OpenAI's embeddings API, with a few additional fields."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from unmask.errors import unknown

INSTRUCTION_CHARACTERS = 20_000
"""Every text of a request repeats the instruction, so its length is limited before tokens are counted."""

MAX_TEXTS = 2048  # of a request, as in OpenAI's API
MAX_ECHO = 100  # characters of a request that an error repeats
_INPUT = (
    f"input should be a text or a list of 1 to {MAX_TEXTS} texts. Token ids are not accepted, since those of another tokenizer, such as "
    "tiktoken, would give wrong vectors. With LangChain, set OpenAIEmbeddings(check_embedding_ctx_length=False)."
)


class ApiError(HTTPException):
    """A refused or failed request, with the fields of OpenAI's errors."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(status, message)
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
    input: StrictStr | Annotated[list[StrictStr], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)] = Field(
        description="A text or texts."
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

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        return {name: value for name, value in fields.items() if value is not None} if isinstance(fields, dict) else fields

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.input] if isinstance(self.input, str) else self.input


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


def parse_request(body: bytes) -> EmbeddingRequest:
    """Parse a body. Raises ApiError with status 400, naming the field."""
    try:
        return EmbeddingRequest.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if not problem["loc"]:
        raise ApiError(400, f"The body is not a valid JSON object: {problem['msg']}.")
    name = str(problem["loc"][0])[:MAX_ECHO]
    if problem["type"] == "extra_forbidden":
        raise ApiError(400, str(unknown("field", name, EmbeddingRequest.model_fields)), param=name)
    if problem["type"] == "missing":
        raise ApiError(400, f"The field '{name}' is missing.", param=name)
    rule = problem["msg"].partition(" ")[2]  # of "Input should be a valid string"
    raise ApiError(400, _INPUT if name == "input" else f"{name} {rule}.", param=name)


def render(model: str, vectors: NDArray[np.float32], encoding: str, tokens: int, truncated: Sequence[int]) -> bytes:
    """The response body for vectors, as JSON."""

    def encode(vector: NDArray[np.float32]) -> str:
        # per vector, so that other threads can run in between
        if encoding == "base64":
            return f'"{base64.b64encode(vector.astype("<f4").tobytes()).decode()}"'
        return json.dumps(vector.tolist(), separators=(",", ":"))

    data = ",".join(
        f'{{"object":"embedding","index":{index},"embedding":{encode(vector)}}}' for index, vector in enumerate(vectors)
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    rest = json.dumps({"model": model, "usage": usage, "truncated": list(truncated)}, separators=(",", ":"))
    return f'{{"object":"list","data":[{data}],{rest[1:]}'.encode()
