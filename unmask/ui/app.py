"""App: the paths of the page and what they answer."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from unmask import __version__
from unmask.designs.design import Attention
from unmask.designs.prompts import Prompts
from unmask.errors import UnmaskError
from unmask.server.gate import note
from unmask.server.protocol import ApiError
from unmask.ui import reports as report_pages
from unmask.ui import requests, routing_view, similarities, tokens
from unmask.ui.corpus import read_corpus
from unmask.ui.corpus_map import CorpusMap
from unmask.ui.door import FAILED, UPLOADS
from unmask.ui.reports import Report
from unmask.ui.requests import (
    Body,
    CompareRequest,
    CorpusRequest,
    MapRequest,
    NearestRequest,
    NeighboursRequest,
    SearchRequest,
    TextRequest,
    parse,
)
from unmask.ui.uploads import Uploads
from unmask.ui.work import Stop, Value, Worker
from unmask.ui.workbench import Workbench

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


class Page:
    """What the page shows: a workbench, perhaps the map of a corpus, and reports."""

    def __init__(self, workbench: Workbench, corpus_map: CorpusMap | None = None, reports: Sequence[Report] = ()) -> None:
        """Read the files of the page. Nothing computes yet."""
        self.workbench, self.corpus_map, self.reports = workbench, corpus_map, list(reports)
        self.worker, self.key, self.uploads = Worker(), secrets.token_urlsafe(24), Uploads()
        self._files = _page_files()

    def close(self) -> None:
        """End all work at its next step."""
        self.worker.close()
        if self.corpus_map:
            self.corpus_map.close()
        self.uploads.close()

    def api(self) -> FastAPI:
        """The application without its door."""
        api = FastAPI(title="unmask ui", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
        for path, route in (
            ("/api/state", self.state),
            ("/api/corpus", self.corpus),
            ("/reports/{key}/{number}/{name:path}", self.report),
            ("/{name:path}", self.file),
        ):
            api.add_api_route(path, route, methods=["GET"], response_model=None)
        posts: dict[str, Callable[..., Any]] = {
            "/api/similarities": self._computed(CompareRequest, self._similarities),
            "/api/tokens": self._computed(TextRequest, self._tokens),
            "/api/routing": self._computed(TextRequest, self._routing),
            "/api/map": _looked_up(MapRequest, lambda given: self._map(given).get(given.design, given.layout)),
            "/api/neighbours": _looked_up(
                NeighboursRequest, lambda given: self._map(given).neighbours(given.design, given.place)
            ),
            "/api/search": _looked_up(SearchRequest, lambda given: self._map(given).search(given.query)),
            "/api/nearest": self._computed(
                NearestRequest, lambda given, stop: self._map(given).nearest(given.design, given.query, stop)
            ),
            "/api/corpus": self.open_corpus,
            "/api/reports": self.open_report,
        }
        for path, answer in posts.items():
            api.add_api_route(path, answer, methods=["POST"], response_model=None)
        api.add_exception_handler(ApiError, _told)
        api.add_exception_handler(HTTPException, _no_such_path)
        api.add_exception_handler(Exception, _failed)
        return api

    async def state(self) -> Response:
        """The model, its designs, the limits, and what there is to look at."""
        return _json(
            self.workbench.about
            | {
                "limits": {
                    "texts": requests.MOST_TEXTS,
                    "tokens": tokens.MOST_TOKENS,
                    "routed": routing_view.MOST_TOKENS,
                    "upload": UPLOADS.body_bytes,
                },
                "dense": routing_view.is_dense(self.workbench.base.backbone),
                "no_routing": routing_view.why_no_routing(self.workbench.base.backbone),
                "corpus": self.corpus_map.summary if self.corpus_map else None,
                "reports": report_pages.as_json(self.reports, self.key),
                "version": __version__,
            }
        )

    async def corpus(self) -> Response:
        """Beginnings and labels of the texts of the corpus."""
        if self.corpus_map is None:
            raise ApiError(404, _NO_CORPUS)
        return _json(self.corpus_map.about())

    async def open_corpus(self, request: Request) -> Response:
        """Show the map of a file that the browser sent. The query names the file, the column of its texts and perhaps that of labels."""
        query, body = request.query_params, await request.body()

        def read() -> CorpusMap:
            name = query.get("name", "")
            with self.uploads.saved(name, body) as file:
                corpus = read_corpus(file, query.get("column") or "text", query.get("label") or None)
            number = self.corpus_map.number + 1 if self.corpus_map else 1
            return CorpusMap(self.workbench, replace(corpus, name=name), number)

        opened, before = await _in_thread(read), self.corpus_map
        self.corpus_map = opened
        if before:
            before.close()
        return _json(opened.summary)

    async def open_report(self, request: Request) -> Response:
        """List a report that the browser sent. The query names its file."""
        name, body = request.query_params.get("name", ""), await request.body()
        if len(self.reports) >= report_pages.MOST_REPORTS:
            raise ApiError(400, f"The page lists {report_pages.MOST_REPORTS} reports already, which is the most it can.")
        self.reports.append(await _in_thread(lambda: self.uploads.add_report(name, body)))
        return _json(report_pages.as_json(self.reports, self.key))

    async def file(self, name: str) -> Response:
        """A file of the page."""
        if (name or "index.html") not in self._files:
            raise ApiError(404, "There is no such path.")
        content, kind = self._files[name or "index.html"]
        return Response(content, media_type=kind)

    async def report(self, key: str, number: str, name: str) -> Response:
        """A report by its number, or a file beside it by its name."""
        listed = {str(place): report for place, report in enumerate(self.reports)}
        if not hmac.compare_digest(key.encode(), self.key.encode()):
            raise ApiError(401, "Open this report from the page that lists it.")
        files = {"": listed[number].file, **listed[number].files} if number in listed else {}
        if name not in files:
            raise ApiError(404, "There is no such report.")
        try:
            content = files[name].read_bytes()
        except OSError:
            raise ApiError(404, "This report is gone.") from None
        headers = {"content-security-policy": report_pages.POLICY, "cross-origin-resource-policy": "cross-origin"}
        kind = report_pages.KINDS.get(files[name].suffix, TYPES[".html"])
        if kind.startswith(("text/csv", "text/plain", "application/json")):
            headers["content-disposition"] = "attachment"
        return Response(content, media_type=kind, headers=headers)

    def _computed(self, kind: type[Body], work: Callable[[Any, Stop], Any]) -> Callable[..., Any]:
        async def route(request: Request) -> Response:
            given = parse(kind, await request.body())
            return _json(await self.worker.run(request.receive, lambda stop: work(given, stop)))

        return route

    def _similarities(self, given: CompareRequest, stop: Stop) -> Any:
        return similarities.as_json(self.workbench.embed(given.designs, given.texts, stop))

    def _tokens(self, given: TextRequest, stop: Stop) -> Any:
        return tokens.as_json(given.text, *tokens.leave_one_out(self.workbench, given.designs, given.text, stop))

    def _routing(self, given: TextRequest, stop: Stop) -> Any:
        found: dict[tuple[Attention, Prompts], tuple[list[str], routing_view.Routes]] = {}
        for name in dict.fromkeys(given.designs):
            stop()
            embedder = self.workbench.embedder(name)
            alike = embedder.design.attention, embedder.design.prompt  # these decide the routing, and nothing else of a design
            if alike in found:
                found[alike][0].append(name)
            else:
                found[alike] = [name], routing_view.routes(embedder, given.text)
        return routing_view.as_json(self.workbench.base.backbone, list(found.values()))

    def _map(self, given: CorpusRequest) -> CorpusMap:
        if self.corpus_map is None:
            raise ApiError(404, _NO_CORPUS)
        if given.corpus != self.corpus_map.number:  # a place in one corpus is another text in the other
            raise ApiError(409, "Another file was opened in another tab. Reload the page.")
        return self.corpus_map


_NO_CORPUS = "There is no corpus. Open a file in the Map tab, or start the page with one: `unmask ui -m MODEL --corpus FILE`."


def _looked_up(kind: type[Body], work: Callable[[Any], Any]) -> Callable[..., Any]:
    """A route that runs no model, and so waits for nobody."""

    async def route(request: Request) -> Response:
        given = parse(kind, await request.body())
        return _json(await _in_thread(lambda: work(given)))

    return route


async def _in_thread(work: Callable[[], Value]) -> Value:
    try:
        result: Value = await run_in_threadpool(work)
        return result
    except UnmaskError as error:
        raise ApiError(400, str(error)) from None


def _page_files() -> dict[str, tuple[bytes, str]]:
    """Content and type of each file of the page, by name. The colours are those of reports."""
    folders = (files("unmask.ui") / "page", files("unmask.reporting") / "page")
    own = [file for file in folders[0].iterdir() if "." + file.name.rpartition(".")[2] in TYPES]
    return {
        file.name: (file.read_bytes(), TYPES["." + file.name.rpartition(".")[2]]) for file in (*own, folders[1] / "colours.css")
    }


def _json(value: Any) -> Response:
    # escaped beyond ASCII: a text may hold half of a character, which no encoding can
    return Response(json.dumps(value, separators=(",", ":")), media_type="application/json")


async def _told(_: Request, error: Any) -> Response:
    return Response(error.body, error.status, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    note(error)
    return await _told(request, ApiError(500, FAILED))


async def _no_such_path(request: Request, error: Any) -> Response:
    message = "This path takes another method." if error.status_code == 405 else "There is no such path."
    return await _told(request, ApiError(error.status_code, message))
