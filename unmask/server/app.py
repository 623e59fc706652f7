"""The HTTP API: routes, and the path of an embeddings request from its body to its vectors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from unmask import __version__
from unmask.encoding.forward_pass import require_finite
from unmask.encoding.quantization import finish
from unmask.encoding.tokenization import TokenizedText
from unmask.errors import UnmaskError, unknown
from unmask.server.batcher import Batcher, Closed, Full
from unmask.server.metrics import CONTENT_TYPE, Metrics
from unmask.server.middleware import ServerSettings, log_failure, wait_for_disconnect
from unmask.server.protocol import (
    MAX_ECHO,
    ApiError,
    EmbeddingRequest,
    EmbeddingResponse,
    ErrorResponse,
    parse_request,
    render,
)
from unmask.server.served import ServedModel, ServedModels

Value = TypeVar("Value")
_TOKENIZER_THREADS = 2
_CLOSE_SECONDS = 5  # for batches that are being computed when the server stops
_REFUSALS = {
    400: "invalid field", 401: "missing or invalid API key", 403: "request from a web page that is not allowed",
    404: "unknown model", 413: "request too large", 421: "unknown host name", 429: "too much work in the queue",
    500: "server error", 503: "the server is stopping or has too many connections",
}  # fmt: skip


class Service:
    """Served models behind a batcher, as route handlers."""

    def __init__(self, models: ServedModels, settings: ServerSettings, metrics: Metrics) -> None:
        """Start the threads that compute."""
        self.models, self.settings, self._metrics = models, settings, metrics
        self._created = int(time.time())
        self.batcher = Batcher(
            models.compute,
            budget=models.batch_tokens,
            capacity=settings.max_queue,
            workers=models.workers,
            observe=metrics.count_batch,
        )
        self._threads = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="unmask-text")
        metrics.watch("unmask_queue_texts", "Waiting texts.", lambda: self.batcher.waiting[0])
        metrics.watch("unmask_queue_tokens", "Waiting tokens.", lambda: self.batcher.waiting[1])

    def close(self) -> None:
        """Stop the threads."""
        self.batcher.close(_CLOSE_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def health(self) -> Response:
        """Whether the server works. Restart it if not."""
        alive = self.batcher.alive
        return JSONResponse({"status": "ok" if alive else "a worker thread has died"}, 200 if alive else 503)

    async def metrics(self) -> Response:
        """Counters for Prometheus."""
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)

    async def list_models(self) -> Response:
        """The served models."""
        return JSONResponse({"object": "list", "data": [self._describe(model) for model in self.models.values()]})

    async def show_model(self, name: str) -> Response:
        """One served model."""
        return JSONResponse(self._describe(self._model(name)))

    async def embeddings(self, request: Request) -> Response:
        """The vectors of texts."""
        body = await request.body()
        stop = threading.Event()
        work = asyncio.ensure_future(self._embed(body, stop, request.state))
        disconnect = asyncio.ensure_future(wait_for_disconnect(request.receive))
        try:
            await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            return Response(work.result(), media_type="application/json")
        finally:
            stop.set()
            disconnect.cancel()
            work.cancel()  # drops its waiting texts

    async def count_disconnect(self, _: Request, error: Exception) -> Response:
        """Count a client that did not wait for its answer."""
        self._metrics.disconnects.inc()
        return Response(status_code=499)

    async def _embed(self, body: bytes, stop: threading.Event, state: State) -> bytes:
        request = await self._in_thread(lambda: parse_request(body))
        model = self._model(request.model)
        if request.dimensions and request.dimensions > model.dim:
            raise ApiError(400, f"dimensions should be at most {model.dim}, not {request.dimensions}.", param="dimensions")
        texts = await self._in_thread(lambda: self._tokenize(model, request, stop))
        state.texts, state.tokens = len(texts), sum(len(text.ids) for text in texts)  # for the access log
        tokens, truncated = state.tokens, [index for index, text in enumerate(texts) if text.truncated]
        try:
            future = self.batcher.submit(model.group, [(len(text.ids), (model.embedder.design, text)) for text in texts])
        except Full:
            raise ApiError(429, "The server's queue is full (--max-queue). Try again later.", retry_after=1) from None
        except Closed:
            raise ApiError(503, "The server is stopping.", retry_after=5) from None
        vectors = await asyncio.wrap_future(future)
        self._metrics.count_answer(model.name, len(texts), tokens, len(truncated))

        def answer() -> bytes:
            stacked = np.stack(vectors)
            try:
                require_finite(stacked, range(len(stacked)), model.embedder.backbone.dtype)
            except UnmaskError as error:
                raise ApiError(500, str(error)) from None
            values = finish(stacked, request.dimensions, request.normalize, "float32")
            return render(model.name, values, request.encoding_format, tokens, truncated)  # type: ignore[arg-type]

        return await self._in_thread(answer)

    async def _in_thread(self, work: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _model(self, name: str) -> ServedModel:
        if name not in self.models:
            names = [*self.models, *(alias for served in self.models for alias in self.models.aliases(served))]
            raise ApiError(404, str(unknown("model", name[:MAX_ECHO], names)), code="model_not_found", param="model")
        return self.models[name]

    def _tokenize(self, model: ServedModel, request: EmbeddingRequest, stop: threading.Event) -> list[TokenizedText]:
        try:
            instruction = model.instruction(request.instruction, request.input_type)
        except UnmaskError as error:
            raise ApiError(400, str(error), param="instruction") from None
        texts: list[TokenizedText] = []
        tokens = 0
        try:
            for text in model.embedder.prompts.tokenize(request.texts, instruction):
                if stop.is_set():
                    raise ApiError(499, "The client has disconnected.")
                texts.append(text)
                tokens += len(text.ids)
                if tokens > self.settings.max_tokens:
                    message = f"The texts have more than {self.settings.max_tokens} tokens: send fewer at once, or raise --max-tokens."
                    raise ApiError(413, message, param="input")
                if text.truncated and not request.truncate:
                    message = f"Text {len(texts) - 1} is longer than {model.embedder.max_length} tokens with its prompt"
                    raise ApiError(400, f"{message}: shorten it, or raise the server's --max-length.", param="input")
        except UnmaskError as error:
            raise ApiError(400, str(error), param="input") from None
        return texts

    def _describe(self, model: ServedModel) -> dict[str, Any]:
        embedder = model.embedder
        return {
            "id": model.name, "object": "model", "created": self._created, "owned_by": "unmask",
            "design": embedder.design.name, "dimensions": model.dim, "max_length": embedder.max_length,
            "aliases": self.models.aliases(model.name),
            "input_types": sorted({"query", "document"} & embedder.instructions.keys()),
        }  # fmt: skip


def create_api(service: Service) -> FastAPI:
    """The FastAPI application, without its middleware."""
    api = FastAPI(
        title="unmask serve",
        version=__version__,
        description="Embeddings in the form of OpenAI's API.",
        redoc_url=None,
    )
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": text} for status, text in _REFUSALS.items()
    }
    body = {"required": True, "content": {"application/json": {"schema": EmbeddingRequest.model_json_schema()}}}
    for path, route, responses in (
        ("/v1/embeddings", service.embeddings, {200: {"model": EmbeddingResponse}, **refusals}),
        ("/v1/models", service.list_models, {}),
        ("/v1/models/{name:path}", service.show_model, {404: refusals[404]}),
        ("/health", service.health, {}),
        ("/metrics", service.metrics, {}),
    ):
        is_post = route == service.embeddings
        api.add_api_route(
            path, route, methods=["POST" if is_post else "GET"], summary=route.__doc__, response_model=None,
            responses=responses, openapi_extra={"requestBody": body} if is_post else {},
        )  # fmt: skip
        if not is_post:
            api.add_api_route(path, route, methods=["HEAD"], include_in_schema=False, response_model=None)
    api.add_exception_handler(ClientDisconnect, service.count_disconnect)
    add_error_handlers(api, "There is no such path: see /docs.", "The server failed on this request.")
    return api


def add_error_handlers(api: FastAPI, not_found: str, failed: str) -> None:
    """Answer every error as JSON in OpenAI's form."""

    async def refuse(_: Request, error: Any) -> Response:
        return error.response()  # type: ignore[no-any-return]

    async def no_such_path(_: Request, error: Any) -> Response:
        message = "This path does not support the method." if error.status_code == 405 else not_found
        response = ApiError(error.status_code, message).response()
        response.headers.update(error.headers or {})
        return response

    async def fail(_: Request, error: Exception) -> Response:
        log_failure(error)
        return ApiError(500, failed).response()

    api.add_exception_handler(ApiError, refuse)
    api.add_exception_handler(HTTPException, no_such_path)
    api.add_exception_handler(Exception, fail)
