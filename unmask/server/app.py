"""The HTTP API: routes, and the path of an embeddings request from its body to its vectors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html import escape
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from unmask import __version__
from unmask.encoding.forward_pass import require_finite
from unmask.encoding.quantization import finish
from unmask.encoding.tokenization import TokenizedText, decode_ids
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
_IDS_REFUSED = (
    "input holds token ids. Ids of another tokenizer, such as tiktoken, give wrong vectors: send texts. "
    "With LangChain, set OpenAIEmbeddings(check_embedding_ctx_length=False). If the ids come from the tokenizer of this model, "
    "start the server with --allow-token-ids."
)
_REFUSALS = {
    400: "invalid field", 401: "missing or invalid API key", 403: "request from a web page that is not allowed",
    404: "unknown model", 413: "request too large", 421: "unknown host name", 429: "too much work in the queue",
    500: "server error", 503: "the server is stopping", 504: "timeout",
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

    async def ready(self) -> Response:
        """Whether the server accepts requests."""
        alive = self.batcher.alive
        return JSONResponse({"status": "ready" if alive else "a worker thread has died"}, 200 if alive else 503)

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
            finished, _ = await asyncio.wait(
                (work, disconnect), timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop.set()
            disconnect.cancel()
            if not work.done():
                work.cancel()  # drops its waiting texts
        if work in finished:
            return Response(work.result(), media_type="application/json")
        if disconnect in finished:
            raise ClientDisconnect
        message = f"The vectors were not ready within {self.settings.timeout:g} seconds: send fewer texts at once, "
        raise ApiError(504, message + "or raise the server's --timeout.")

    async def disconnected(self, _: Request, error: Exception) -> Response:
        """Count a client that did not wait for its answer."""
        self._metrics.disconnects.inc()
        return Response(status_code=499)

    async def _embed(self, body: bytes, stop: threading.Event, state: State) -> bytes:
        request = await self._in_thread(lambda: parse_request(body, self.settings.max_texts))
        model = self._model(request.model)
        if request.dimensions and request.dimensions > model.dim:
            raise ApiError(400, f"dimensions should be at most {model.dim}, not {request.dimensions}.", param="dimensions")
        texts = await self._in_thread(lambda: self._tokenize(model, request, stop))
        state.texts, state.tokens = len(texts), sum(len(text.ids) for text in texts)  # for the access log
        tokens, truncated = state.tokens, [index for index, text in enumerate(texts) if text.truncated]
        try:
            future = self.batcher.submit(model.group, [(len(text.ids), (model.embedder.design, text)) for text in texts])
        except Full as error:
            message = "The server's queue is full (--max-queue). Try again later."
            raise ApiError(429, message, retry_after=error.seconds) from None
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
        max_tokens = self.settings.max_tokens

        def check_waiting() -> None:
            if stop.is_set():
                raise ApiError(504, "The client has stopped waiting.")

        def check_tokens(number: int) -> None:
            if number > max_tokens:
                message = (
                    f"The texts have more than {max_tokens} tokens: send fewer at once, or raise the server's --max-tokens."
                )
                raise ApiError(413, message, param="input")

        if request.ids is not None:
            if not self.settings.allow_token_ids:
                raise ApiError(400, _IDS_REFUSED, param="input")
            check_tokens(sum(map(len, request.ids)))
        try:
            instruction = model.instruction(request.instruction, request.input_type)
        except UnmaskError as error:
            raise ApiError(400, str(error), param="instruction") from None
        texts: list[TokenizedText] = []
        tokens = 0
        try:
            plain = request.texts if request.ids is None else decode_ids(model.embedder.tokenizer, request.ids)
            for text in model.tokenize(plain, instruction, check_waiting):
                texts.append(text)
                tokens += len(text.ids)
                check_tokens(tokens)
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
        docs_url=None,
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
        ("/ready", service.ready, {}),
        ("/metrics", service.metrics, {}),
    ):
        is_post = route == service.embeddings
        api.add_api_route(
            path, route, methods=["POST" if is_post else "GET"], summary=route.__doc__, response_model=None,
            responses=responses, openapi_extra={"requestBody": body} if is_post else {},
        )  # fmt: skip
        if not is_post:
            api.add_api_route(path, route, methods=["HEAD"], include_in_schema=False, response_model=None)
    api.add_route("/docs", lambda _: HTMLResponse("".join(_docs_page(api.openapi()))), include_in_schema=False)
    api.add_exception_handler(ClientDisconnect, service.disconnected)
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


def _docs_page(openapi: dict[str, Any]) -> Iterator[str]:
    """The OpenAPI description as HTML. FastAPI's own page loads scripts from a CDN."""
    title, description = escape(openapi["info"]["title"]), escape(openapi["info"]["description"])
    yield (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem;color-scheme:light dark}td,th{text-align:left;vertical-align:top;padding:.2rem 1rem .2rem 0}</style>"
        f'<h1>{title}</h1><p>{description}</p><p>For programs: <a href="openapi.json">openapi.json</a></p>'
    )
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            if fields := body.get("properties"):
                yield "<table><tr><th>field</th><th>meaning</th><th>default</th></tr>"
                for name, field in fields.items():
                    default = "required" if name in body.get("required", ()) else str(field.get("default"))
                    yield f"<tr><td><code>{escape(name)}</code></td><td>{escape(field.get('description', ''))}</td>"
                    yield f"<td>{escape(default)}</td></tr>"
                yield "</table>"
            responses = "; ".join(
                f"{status}: {escape(response['description'])}" for status, response in operation["responses"].items()
            )
            yield f"<p>Responses: {responses}.</p>"
    yield "</html>"
