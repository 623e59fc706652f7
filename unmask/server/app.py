"""App: the routes of the server, and the way of a request from its body to its vectors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.datastructures import State
from starlette.exceptions import HTTPException

from unmask import __version__
from unmask.encoding.forward_pass import require_finite
from unmask.encoding.quantization import finish
from unmask.encoding.tokenization import TokenizedText, decode_ids
from unmask.errors import UnmaskError, unknown
from unmask.server.batcher import Batcher, Closed, Full
from unmask.server.bodies import Traffic
from unmask.server.gate import gone, note
from unmask.server.limits import Limits
from unmask.server.metrics import CONTENT_TYPE, Metrics
from unmask.server.page import page
from unmask.server.protocol import SHOWN, ApiError, EmbeddingRequest, EmbeddingResponse, ErrorResponse, parse_request, render
from unmask.server.served import ServedModel, ServedModels

Value = TypeVar("Value")
_TEXT_THREADS = 2  # that tokenize and write answers, while one computes


class Service:
    """What the routes do: served models behind a batcher."""

    def __init__(self, models: ServedModels, limits: Limits, metrics: Metrics, traffic: Traffic) -> None:
        """Start the threads that compute."""
        self.models, self.limits, self.metrics, self.traffic = models, limits, metrics, traffic
        self.started = int(time.time())
        self.batcher = Batcher(
            models.compute,
            budget=models.batch_tokens,
            capacity=limits.queue_tokens,
            workers=models.workers,
            observe=metrics.note_batch,
        )
        self._threads = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="unmask-text")
        metrics.watch("unmask_queue_texts", "Texts that wait.", lambda: self.batcher.waiting[0])
        metrics.watch("unmask_queue_tokens", "Tokens that wait.", lambda: self.batcher.waiting[1])
        metrics.watch("unmask_requests_in_flight", "Requests that are answered now.", lambda: traffic.requests)

    def close(self) -> None:
        """Compute what waits, and stop the threads."""
        self.batcher.close(self.limits.drain_seconds)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def embeddings(self, request: Request) -> Response:
        """Answer within the time limit. The work ends when the client closes the connection."""
        body = await request.body()
        stop = threading.Event()
        work = asyncio.ensure_future(self._embed(body, stop, request.state))
        left = asyncio.ensure_future(gone(request.receive))
        try:
            done, _ = await asyncio.wait((work, left), timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            left.cancel()
            if not work.done():
                work.cancel()  # texts that wait are dropped
        if work in done:
            return Response(work.result(), media_type="application/json")
        if left in done:
            self.metrics.gone.inc()
            return Response(status_code=499)
        late = f"The vectors were not ready within {self.limits.seconds:g} seconds"
        raise ApiError(504, f"{late}: send fewer texts at once, or raise the server's --timeout.")

    async def _embed(self, body: bytes, stop: threading.Event, state: State) -> bytes:
        """The answer to the body of a request. state: gets what the access log shows. Raises ApiError."""
        given = await self._in_thread(lambda: parse_request(body, self.limits.items))
        model = self.model(given.model)
        if given.dimensions and given.dimensions > model.dim:
            raise ApiError(400, f"dimensions should be at most {model.dim}, not {given.dimensions}.", param="dimensions")
        texts = await self._in_thread(lambda: self._tokenize(model, given, stop))
        state.texts, state.tokens = len(texts), sum(len(text.ids) for text in texts)
        tokens, cut = state.tokens, [place for place, text in enumerate(texts) if text.truncated]
        try:
            future = self.batcher.submit(model.group, [(len(text.ids), (model.embedder.design, text)) for text in texts])
        except Full as error:
            message = "The server's queue is full (--max-queue). Try again later."
            raise ApiError(429, message, retry_after=error.seconds) from None
        except Closed:
            raise ApiError(503, "The server is stopping.", retry_after=5) from None
        vectors = await asyncio.wrap_future(future)
        self.metrics.note_answer(model.name, len(texts), tokens, len(cut))
        return await self._in_thread(lambda: _rendered(model, given, vectors, tokens, cut))

    async def _in_thread(self, work: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def model(self, name: str) -> ServedModel:
        """The model of a name. Raises ApiError."""
        if name not in self.models:
            names = [*self.models, *(alias for served in self.models for alias in self.models.aliases(served))]
            raise ApiError(404, str(unknown("model", name[:SHOWN], names)), code="model_not_found", param="model")
        return self.models[name]

    def _tokenize(self, model: ServedModel, given: EmbeddingRequest, stop: threading.Event) -> list[TokenizedText]:
        """The tokens of a request's texts. Raises ApiError."""

        def require_waiting() -> None:
            if stop.is_set():
                raise ApiError(504, "Nobody waits for this answer.")

        def require_tokens(number: int) -> None:
            if number > (most := self.limits.request_tokens):
                message = f"The texts have more than {most} tokens: send fewer at once, or raise the server's --max-tokens."
                raise ApiError(413, message, param="input")

        if given.ids is not None:
            if not self.limits.token_ids:
                raise ApiError(400, _IDS_REFUSED, param="input")
            require_tokens(sum(map(len, given.ids)))
        try:
            instruction = model.instruction(given.instruction, given.input_type)
        except UnmaskError as error:
            raise ApiError(400, str(error), param="instruction") from None
        texts: list[TokenizedText] = []
        tokens = 0
        try:
            plain = given.texts if given.ids is None else decode_ids(model.embedder.tokenizer, given.ids)
            for text in model.tokenize(plain, instruction, require_waiting):
                texts.append(text)
                tokens += len(text.ids)
                require_tokens(tokens)
                if text.truncated and not given.truncate:
                    long = f"Text {len(texts) - 1} is longer than {model.embedder.max_length} tokens with its prompt"
                    raise ApiError(400, f"{long}: shorten it, or raise the server's --max-length.", param="input")
        except UnmaskError as error:
            raise ApiError(400, str(error), param="input") from None
        return texts


def _rendered(model: ServedModel, given: EmbeddingRequest, vectors: list[Any], tokens: int, cut: list[int]) -> bytes:
    together = np.stack(vectors)
    try:
        require_finite(together, range(len(together)), model.embedder.backbone.dtype)
    except UnmaskError as error:
        raise ApiError(500, str(error)) from None
    values = finish(together, given.dimensions, given.normalize, "float32")
    return render(model.name, values, given.encoding_format, tokens, cut)  # type: ignore[arg-type]


class Routes:
    """The paths of the server and what they answer."""

    def __init__(self, service: Service) -> None:
        """Answer for a service."""
        self._service = service

    async def health(self) -> Response:
        """Whether the server works. A server that does not should be started again."""
        return _state(self._service.batcher.alive, "ok", "a thread that computes has ended")

    async def ready(self) -> Response:
        """Whether the server takes requests. It does not while it stops."""
        return _state(self._service.batcher.alive and not self._service.traffic.draining, "ready", "stopping")

    async def metrics(self) -> Response:
        """Counters for Prometheus."""
        return Response(self._service.metrics.page(), media_type=CONTENT_TYPE)

    async def models(self) -> Response:
        """The served models."""
        return JSONResponse({"object": "list", "data": [self._about(model) for model in self._service.models.values()]})

    async def model(self, name: str) -> Response:
        """One served model."""
        return JSONResponse(self._about(self._service.model(name)))

    async def embeddings(self, request: Request) -> Response:
        """The vectors of texts."""
        return await self._service.embeddings(request)

    def _about(self, model: ServedModel) -> dict[str, Any]:
        embedder = model.embedder
        return {
            "id": model.name, "object": "model", "created": self._service.started, "owned_by": "unmask",
            "design": embedder.design.name, "dimensions": model.dim, "max_length": embedder.max_length,
            "aliases": self._service.models.aliases(model.name),
            "input_types": sorted({"query", "document"} & embedder.instructions.keys()),
        }  # fmt: skip


def create_api(service: Service) -> FastAPI:
    """The application without its gate."""
    api = FastAPI(
        title="unmask serve",
        version=__version__,
        description="Embeddings in the form of OpenAI's API.",
        docs_url=None,
        redoc_url=None,
    )
    routes = Routes(service)
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": about} for status, about in _REFUSALS.items()
    }
    request = {"required": True, "content": {"application/json": {"schema": EmbeddingRequest.model_json_schema()}}}
    for path, route, responses, extra in (
        ("/v1/embeddings", routes.embeddings, {200: {"model": EmbeddingResponse}, **refusals}, {"requestBody": request}),
        ("/v1/models", routes.models, {}, {}),
        ("/v1/models/{name:path}", routes.model, {404: refusals[404]}, {}),
        ("/health", routes.health, {}, {}),
        ("/ready", routes.ready, {}, {}),
        ("/metrics", routes.metrics, {}, {}),
    ):
        method = "POST" if extra else "GET"
        api.add_api_route(
            path, route, methods=[method], summary=route.__doc__, response_model=None, responses=responses, openapi_extra=extra
        )
        if method == "GET":
            api.add_api_route(path, route, methods=["HEAD"], include_in_schema=False, response_model=None)
    api.add_route("/docs", lambda _: HTMLResponse(page(api.openapi())), include_in_schema=False)
    api.add_exception_handler(ApiError, _told)
    api.add_exception_handler(HTTPException, _no_such_route)
    api.add_exception_handler(Exception, _failed)
    return api


_IDS_REFUSED = (
    "input holds token ids. Ids of another tokenizer, such as tiktoken, give wrong vectors: send texts. "
    "With LangChain, set OpenAIEmbeddings(check_embedding_ctx_length=False). If the ids come from the tokenizer of this model, "
    "start the server with --allow-token-ids."
)
_REFUSALS = {
    400: "a field is wrong", 401: "the key is missing or wrong", 403: "without keys, a web page asked", 404: "there is no such model",
    408: "the body came too slowly", 413: "more than one request may hold", 421: "without keys, the server was asked by another name",
    429: "too much work waits", 500: "the server failed", 503: "the server is stopping", 504: "the vectors took too long",
}  # fmt: skip


def _state(fine: bool, word: str, problem: str) -> Response:
    return JSONResponse({"status": word if fine else problem}, 200 if fine else 503)


async def _told(_: Request, error: Any) -> Response:
    return Response(error.body, error.status, error.headers)


async def _no_such_route(request: Request, error: Any) -> Response:
    message = "This path takes another method." if error.status_code == 405 else "There is no such path: see /docs."
    answer = await _told(request, ApiError(error.status_code, message))
    answer.headers.update(error.headers or {})
    return answer


async def _failed(request: Request, error: Exception) -> Response:
    note(error)
    return await _told(request, ApiError(500, "The server failed on this request."))
