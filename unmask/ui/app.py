"""The application behind the page: its routes and the bodies of requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles

from unmask import __version__
from unmask.errors import UnmaskError
from unmask.server.app import add_error_handlers
from unmask.server.protocol import ApiError
from unmask.ui import routing, views
from unmask.ui.corpus_map import CorpusMap
from unmask.ui.embedders import Embedders
from unmask.ui.worker import Stop, Worker

MAX_TEXTS, MAX_CHARACTERS = 30, 20_000

Name = Annotated[StrictStr, Field(min_length=1, max_length=2000)]
Designs = Annotated[list[Name], Field(min_length=1, max_length=2)]
Text = Annotated[StrictStr, Field(min_length=1, max_length=MAX_CHARACTERS)]


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CompareRequest(Body):
    """Texts under one or two designs."""

    designs: Designs
    texts: Annotated[list[Text], Field(min_length=2, max_length=MAX_TEXTS)]


class TextRequest(Body):
    """A text under one or two designs."""

    designs: Designs
    text: Text


class MapRequest(Body):
    """The map of the corpus under a design."""

    design: Name
    layout: Literal["pca", "t-sne"] = "pca"


class NeighboursRequest(Body):
    """The neighbours of a text under a design."""

    design: Name
    place: StrictInt


class SearchRequest(Body):
    """Texts that contain a string."""

    query: Annotated[StrictStr, Field(max_length=1000)]


class NearestRequest(Body):
    """Texts that are most similar to a query under a design."""

    design: Name
    query: Annotated[StrictStr, Field(min_length=1, max_length=1000)]


_MESSAGES = {
    "texts": f"Give 2 to {MAX_TEXTS} texts, one on each line, of at most {MAX_CHARACTERS} characters each.",
    "text": f"Give a text of 1 to {MAX_CHARACTERS} characters.",
    "designs": "Name one design or two.",
}


def refuse_body(_: Request, error: Any) -> Response:
    """A body that is not a valid request: status 400 with one sentence."""
    problem = error.errors()[0]
    field = str(problem["loc"][1]) if len(problem["loc"]) > 1 else "body"
    return ApiError(400, _MESSAGES.get(field, f"{field}: {problem['msg']}.")).response()


class Page:
    """The state of the page: embedders, and perhaps the map of a corpus."""

    def __init__(self, embedders: Embedders, corpus_map: CorpusMap | None = None) -> None:
        self.embedders, self.corpus_map, self.worker = embedders, corpus_map, Worker()

    def close(self) -> None:
        """Stop all work at its next step."""
        self.worker.close()
        if self.corpus_map:
            self.corpus_map.close()

    def api(self) -> FastAPI:
        """The FastAPI application, without access control."""
        api = FastAPI(title="unmask ui", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
        for path, get in (("/api/state", self.state), ("/api/corpus", self.corpus)):
            api.add_api_route(path, get, methods=["GET"], response_model=None)
        for path, post in (
            ("/api/similarities", self.similarities),
            ("/api/tokens", self.tokens),
            ("/api/routing", self.routing),
            ("/api/nearest", self.nearest),
            ("/api/map", self.map),
            ("/api/neighbours", self.neighbours),
            ("/api/search", self.search),
        ):
            api.add_api_route(path, post, methods=["POST"], response_model=None)
        api.mount("/", StaticFiles(packages=[("unmask.ui", "page"), ("unmask.reporting", "page")], html=True))
        add_error_handlers(api, "There is no such path.", "The page failed on this request.")
        api.add_exception_handler(RequestValidationError, refuse_body)
        api.add_exception_handler(UnmaskError, lambda _, error: ApiError(400, str(error)).response())
        api.add_exception_handler(ClientDisconnect, lambda *_: Response(status_code=499))
        return api

    def state(self) -> Response:
        """The model, its designs, limits and corpus."""
        backbone = self.embedders.base.backbone
        return _json(
            self.embedders.about
            | {
                "limits": {"texts": MAX_TEXTS, "tokens": views.MAX_TOKENS, "routed": routing.MAX_TOKENS},
                "dense": routing.is_dense(backbone),
                "no_routing": routing.why_no_routing(backbone),
                "corpus": self.corpus_map.summary if self.corpus_map else None,
                "version": __version__,
            }
        )

    def corpus(self) -> Response:
        """Snippets and labels of the corpus."""
        return _json(self._map.about())

    async def similarities(self, body: CompareRequest, request: Request) -> Response:
        """Cosines of texts under each design."""
        return await self._compute(
            request, lambda stop: views.similarities(self.embedders.embed(body.designs, body.texts, stop))
        )

    async def tokens(self, body: TextRequest, request: Request) -> Response:
        """How much each token of a text contributes to its vector."""
        return await self._compute(request, lambda stop: views.token_effects(self.embedders, body.designs, body.text, stop))

    async def routing(self, body: TextRequest, request: Request) -> Response:
        """The experts of each token of a text."""
        return await self._compute(
            request, lambda stop: routing.routes_by_design(self.embedders, body.designs, body.text, stop)
        )

    async def nearest(self, body: NearestRequest, request: Request) -> Response:
        """The texts of the corpus that are most similar to a query."""
        return await self._compute(request, lambda stop: self._map.nearest(body.design, body.query, stop))

    def map(self, body: MapRequest) -> Response:
        """The points of the corpus, or how far their computation is."""
        return _json(self._map.get(body.design, body.layout))

    def neighbours(self, body: NeighboursRequest) -> Response:
        """A text of the corpus and its neighbours."""
        return _json(self._map.neighbours(body.design, body.place))

    def search(self, body: SearchRequest) -> Response:
        """The texts of the corpus that contain a string."""
        return _json(self._map.search(body.query))

    async def _compute(self, request: Request, work: Callable[[Stop], Any]) -> Response:
        return _json(await self.worker.run(request.receive, work))

    @property
    def _map(self) -> CorpusMap:
        if self.corpus_map is None:
            raise ApiError(404, "There is no corpus. Start the page with one: `unmask ui -m MODEL --corpus FILE`.")
        return self.corpus_map


def _json(value: Any) -> Response:
    # ASCII escapes: a text may contain a lone surrogate, which UTF-8 cannot encode
    return Response(json.dumps(value, separators=(",", ":")), media_type="application/json")
