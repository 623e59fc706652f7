"""The application behind the page: its routes and the bodies of requests."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from unmask import __version__
from unmask.designs.design import Attention
from unmask.designs.prompts import Prompts
from unmask.errors import UnmaskError, first_problem
from unmask.server.app import add_error_handlers
from unmask.server.protocol import ApiError
from unmask.ui import reports as report_pages
from unmask.ui import routing, views
from unmask.ui.access import MAX_UPLOAD
from unmask.ui.corpus_map import CorpusMap, read_corpus
from unmask.ui.embedders import Embedders
from unmask.ui.reports import Report, Uploads
from unmask.ui.worker import Stop, Value, Worker

MAX_TEXTS, MAX_CHARACTERS = 30, 20_000
MEDIA_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
_NO_CORPUS = "There is no corpus. Open a file in the Map tab, or start the page with one: `unmask ui -m MODEL --corpus FILE`."

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


class CorpusRequest(Body):
    """A request about the corpus with this number."""

    corpus: StrictInt


class MapRequest(CorpusRequest):
    """The map of the corpus under a design."""

    design: Name
    layout: Literal["pca", "t-sne"] = "pca"


class NeighboursRequest(CorpusRequest):
    """The neighbours of a text under a design."""

    design: Name
    place: StrictInt


class SearchRequest(CorpusRequest):
    """Texts that contain a string."""

    query: Annotated[StrictStr, Field(max_length=1000)]


class NearestRequest(CorpusRequest):
    """Texts that are most similar to a query under a design."""

    design: Name
    query: Annotated[StrictStr, Field(min_length=1, max_length=1000)]


BodyType = TypeVar("BodyType", bound=Body)
_MESSAGES: dict[tuple[int | str, ...], str] = {
    ("texts",): f"Give 2 to {MAX_TEXTS} texts, one on each line, of at most {MAX_CHARACTERS} characters each.",
    ("text",): f"Give a text of 1 to {MAX_CHARACTERS} characters.",
    ("designs",): "Name one design or two.",
}


def parse(body_type: type[BodyType], body: bytes) -> BodyType:
    """Parse a body. Raises ApiError with status 400."""
    try:
        return body_type.model_validate_json(body)
    except ValidationError as error:
        raise ApiError(400, _MESSAGES.get(error.errors()[0]["loc"][:1], "") or f"{first_problem(error)}.") from None


class Page:
    """The state of the page: embedders, perhaps the map of a corpus, and reports."""

    def __init__(self, embedders: Embedders, corpus_map: CorpusMap | None = None, reports: Sequence[Report] = ()) -> None:
        self.embedders, self.corpus_map, self.reports = embedders, corpus_map, list(reports)
        self.worker, self.key, self.uploads = Worker(), secrets.token_urlsafe(24), Uploads()
        page, colours = files("unmask.ui") / "page", files("unmask.reporting") / "page" / "colours.css"
        sources = [(file, "." + file.name.rpartition(".")[2]) for file in (*page.iterdir(), colours)]
        self._files = {file.name: (file.read_bytes(), MEDIA_TYPES[kind]) for file, kind in sources if kind in MEDIA_TYPES}

    def close(self) -> None:
        """Stop all work at its next step."""
        self.worker.close()
        if self.corpus_map:
            self.corpus_map.close()
        self.uploads.close()

    def api(self) -> FastAPI:
        """The FastAPI application, without access control."""
        api = FastAPI(title="unmask ui", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
        for path, route in (
            ("/api/state", self.state),
            ("/api/corpus", self.corpus),
            ("/reports/{key}/{number}/{name:path}", self.report),
            ("/{name:path}", self.file),
        ):
            api.add_api_route(path, route, methods=["GET"], response_model=None)
        embedders = self.embedders
        posts: dict[str, Callable[..., Any]] = {
            "/api/similarities": self._on_worker(
                CompareRequest, lambda body, stop: views.similarities(embedders.embed(body.designs, body.texts, stop))
            ),
            "/api/tokens": self._on_worker(
                TextRequest, lambda body, stop: views.token_effects(embedders, body.designs, body.text, stop)
            ),
            "/api/routing": self._on_worker(TextRequest, self._routing),
            "/api/nearest": self._on_worker(
                NearestRequest, lambda body, stop: self._map(body).nearest(body.design, body.query, stop)
            ),
            "/api/map": _in_pool(MapRequest, lambda body: self._map(body).get(body.design, body.layout)),
            "/api/neighbours": _in_pool(NeighboursRequest, lambda body: self._map(body).neighbours(body.design, body.place)),
            "/api/search": _in_pool(SearchRequest, lambda body: self._map(body).search(body.query)),
            "/api/corpus": self.open_corpus,
            "/api/reports": self.open_report,
        }
        for path, route in posts.items():
            api.add_api_route(path, route, methods=["POST"], response_model=None)
        add_error_handlers(api, "There is no such path.", "The page failed on this request.")
        api.add_exception_handler(ClientDisconnect, lambda *_: Response(status_code=499))
        return api

    async def state(self) -> Response:
        """The model, its designs, limits, corpus and reports."""
        backbone = self.embedders.base.backbone
        return _json(
            self.embedders.about
            | {
                "limits": {
                    "texts": MAX_TEXTS,
                    "tokens": views.MAX_TOKENS,
                    "routed": routing.MAX_TOKENS,
                    "upload": MAX_UPLOAD,
                },
                "dense": routing.is_dense(backbone),
                "no_routing": routing.why_no_routing(backbone),
                "corpus": self.corpus_map.summary if self.corpus_map else None,
                "reports": report_pages.as_json(self.reports, self.key),
                "version": __version__,
            }
        )

    async def corpus(self) -> Response:
        """Snippets and labels of the corpus."""
        if self.corpus_map is None:
            raise ApiError(404, _NO_CORPUS)
        return _json(self.corpus_map.about())

    async def open_corpus(self, request: Request) -> Response:
        """Show the map of an uploaded file; the query string has its name, its text column and perhaps its label column."""
        query, body = request.query_params, await request.body()

        def read() -> CorpusMap:
            name = query.get("name", "")
            with self.uploads.temporary_file(name, body) as file:
                corpus = read_corpus(file, query.get("column") or "text", query.get("label") or None)
            number = self.corpus_map.number + 1 if self.corpus_map else 1
            return CorpusMap(self.embedders, replace(corpus, name=name), number)

        corpus_map, previous = await _run_in_pool(read), self.corpus_map
        self.corpus_map = corpus_map
        if previous:
            previous.close()
        return _json(corpus_map.summary)

    async def open_report(self, request: Request) -> Response:
        """List an uploaded report; the query string has its name."""
        name, body = request.query_params.get("name", ""), await request.body()
        if len(self.reports) >= report_pages.MAX_REPORTS:
            raise ApiError(400, f"The page already lists {report_pages.MAX_REPORTS} reports, which is the maximum.")
        self.reports.append(await _run_in_pool(lambda: self.uploads.add_report(name, body)))
        return _json(report_pages.as_json(self.reports, self.key))

    async def file(self, name: str) -> Response:
        """A static file."""
        if (name or "index.html") not in self._files:
            raise ApiError(404, "There is no such path.")
        content, media_type = self._files[name or "index.html"]
        return Response(content, media_type=media_type)

    async def report(self, key: str, number: str, name: str) -> Response:
        """A report by its number, or a file that it links to."""
        if not hmac.compare_digest(key.encode(), self.key.encode()):
            raise ApiError(401, "Open this report from the page that lists it.")
        reports = {str(index): report for index, report in enumerate(self.reports)}
        linked = {"": reports[number].file, **reports[number].files} if number in reports else {}
        if name not in linked:
            raise ApiError(404, "There is no such report.")
        try:
            content = linked[name].read_bytes()
        except OSError:
            raise ApiError(404, "This report has been removed.") from None
        headers = {"content-security-policy": report_pages.POLICY, "cross-origin-resource-policy": "cross-origin"}
        media_type = report_pages.MEDIA_TYPES.get(linked[name].suffix, MEDIA_TYPES[".html"])
        if media_type.startswith(("text/csv", "text/plain", "application/json")):
            headers["content-disposition"] = "attachment"
        return Response(content, media_type=media_type, headers=headers)

    def _on_worker(self, body_type: type[Body], work: Callable[[Any, Stop], Any]) -> Callable[..., Any]:
        async def route(request: Request) -> Response:
            body = parse(body_type, await request.body())
            return _json(await self.worker.run(request.receive, lambda stop: work(body, stop)))

        return route

    def _routing(self, body: TextRequest, stop: Stop) -> Any:
        groups: dict[tuple[Attention, Prompts], tuple[list[str], routing.Routes]] = {}
        for name in dict.fromkeys(body.designs):
            stop()
            embedder = self.embedders.embedder(name)
            key = embedder.design.attention, embedder.design.prompt  # routing depends on nothing else of a design
            if key in groups:
                groups[key][0].append(name)
            else:
                groups[key] = [name], routing.routes(embedder, body.text)
        return routing.as_json(self.embedders.base.backbone, list(groups.values()))

    def _map(self, body: CorpusRequest) -> CorpusMap:
        if self.corpus_map is None:
            raise ApiError(404, _NO_CORPUS)
        if body.corpus != self.corpus_map.number:  # indices of texts refer to one corpus
            raise ApiError(409, "Another file was opened in another tab. Reload the page.")
        return self.corpus_map


def _in_pool(body_type: type[Body], work: Callable[[Any], Any]) -> Callable[..., Any]:
    """A route that does not run the model, so it need not wait for the worker."""

    async def route(request: Request) -> Response:
        body = parse(body_type, await request.body())
        return _json(await _run_in_pool(lambda: work(body)))

    return route


async def _run_in_pool(work: Callable[[], Value]) -> Value:
    try:
        return await run_in_threadpool(work)  # type: ignore[no-any-return]
    except UnmaskError as error:
        raise ApiError(400, str(error)) from None


def _json(value: Any) -> Response:
    # ASCII escapes: a text may contain a lone surrogate, which UTF-8 cannot encode
    return Response(json.dumps(value, separators=(",", ":")), media_type="application/json")
