"""The paths of the page: each view's answer, mistakes in the words of the command line, and work that ends when nobody waits."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import until
from tests.ui.conftest import HOSTILE
from tests.ui.running import Client, running
from unmask.embedder import Embedder
from unmask.ui.app import MAX_TEXTS
from unmask.ui.embedders import Embedders
from unmask.ui.worker import MAX_WAITING

TWO = ["A man plays a guitar.", "The stock market fell."]


def test_the_state_of_a_dense_model_and_of_a_mixture(dense: Client, routed: Client) -> None:
    state = dense.get("/api/state").json
    assert (state["layers"], state["routers"], state["chosen"]) == (3, 0, ["mean", "last"])
    assert state["corpus"] == {"texts": 46, "rows": 46, "name": "texts <i>.jsonl"}
    assert state["dense"] and "unmask upcycle" in state["no_routing"]
    other = routed.get("/api/state").json
    assert (other["routers"], other["corpus"], other["no_routing"]) == (3, None, None)


def test_the_files_of_the_page_are_those_of_the_folder_and_the_colours(dense: Client) -> None:
    folder = Path(str(files("unmask.ui") / "page"))
    for file in folder.iterdir():
        assert dense.get(f"/{file.name}").body == file.read_bytes()
    assert b"--ink" in dense.get("/colours.css").body
    assert dense.get("/main.js").headers["content-type"].startswith("text/javascript")
    assert dense.get("/").body == (folder / "index.html").read_bytes()
    for path in ("/../app.py", "/%2e%2e/app.py", "//etc/passwd", "/main.js%00"):
        assert dense.get(path).status == 404


def test_the_page_has_no_inline_script_and_no_external_address() -> None:
    folder = files("unmask.ui") / "page"
    html = (folder / "index.html").read_text("utf-8")
    assert html.count("<script") == 1 and "<style" not in html and " style=" not in html and " onclick" not in html
    for file in folder.iterdir():
        text = file.read_text("utf-8")
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text, file.name
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
            assert danger not in text, f"{danger} in {file.name}"


def test_similarities(dense: Client) -> None:
    answer = dense.post("/api/similarities", designs=["mean", "causal/eol/last@1"], texts=[*TWO, *HOSTILE]).json
    assert [one["design"] for one in answer["designs"]] == ["causal/plain/mean", "causal/eol/last@1"]
    assert answer["pairs"] == 28 and -1 <= answer["spearman"] <= 1
    assert len(answer["designs"][0]["cosines"]) == 8


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/api/similarities", {}, "one design or two"),
        ("/api/similarities", {"designs": ["mean"], "texts": ["one"]}, f"2 to {MAX_TEXTS} texts"),
        ("/api/similarities", {"designs": ["mean"], "texts": ["x", "y" * 30_000]}, "characters"),
        ("/api/similarities", {"designs": ["mean"] * 3, "texts": TWO}, "one design or two"),
        ("/api/similarities", {"designs": ["mean"], "texts": TWO, "more": 1}, "more"),
        ("/api/similarities", {"designs": ["mena"], "texts": TWO}, "Did you mean 'mean'"),
        ("/api/tokens", {"designs": ["mean"], "text": ""}, "Give a text"),
        ("/api/tokens", {"designs": ["mean"], "text": "word " * 150}, "at most 100"),
        ("/api/tokens", {"designs": ["causal/plain/mean@9"], "text": "x"}, "layer 9"),
        ("/api/routing", {"designs": ["mean"], "text": "x"}, "dense"),
        ("/api/map", {"design": "routing"}, "routing weights"),
        ("/api/neighbours", {"design": "echo", "place": 0}, "not ready"),
        ("/api/search", {"query": 3}, "query"),
        *(("/api/search", body, "") for body in (b"", b"{", b"[]", b"\xff", b'{"query": "\\ud800"}', b"null")),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(path: str, fields: Any, message: str, dense: Client) -> None:
    answer = dense.ask("POST", path, fields)
    assert answer.status == 400 and message in answer.problem


def test_a_page_without_a_corpus_says_how_to_give_one(routed: Client) -> None:
    nearest = routed.post("/api/nearest", design="mean", query="x")
    for answer in (routed.get("/api/corpus"), routed.post("/api/map", design="mean"), nearest):
        assert answer.status == 404 and "--corpus" in answer.problem


def test_a_failure_shows_no_traceback(
    pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "unmask")

    def fail(*_: Any) -> None:
        raise RuntimeError("the secret text")

    with running(pico()) as client:
        monkeypatch.setattr(client.server.page.embedders, "embed", fail)
        answer = client.post("/api/similarities", designs=["mean"], texts=TWO)
        assert answer.status == 500 and answer.problem == "The page failed on this request."
        assert "RuntimeError" in caplog.text and "secret" not in caplog.text


def test_a_map_comes_in_steps(dense: Client) -> None:
    until(lambda: dense.post("/api/map", design="mean").json["ready"])
    answer = dense.post("/api/map", design="mean").json
    assert len(answer["points"]) == 46 and answer["dim"] == 64 and 0 < answer["share"] <= 1
    about = dense.get("/api/corpus").json
    assert about["label_names"] == ["music", "sport", "<b>odd</b>"]
    near = dense.post("/api/neighbours", design="mean", place=3).json
    assert near["text"] == about["snippets"][3] and len(near["neighbours"]) == 10
    assert dense.post("/api/search", query="CHOIR number 3").json == {"places": [7]}
    assert dense.post("/api/neighbours", design="mean", place=46).problem


# --- work ------------------------------------------------------------------------------------------------------------


class Held:
    """A page whose work goes on until it is told to stop. begun: how many pieces of work."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.stopped, self.release = 0, 0, threading.Event()

        def embed(names: Any, texts: Any, progress: Callable[[int], None]) -> Any:
            self.begun += 1
            while not self.release.is_set():
                time.sleep(0.01)
                try:
                    progress(0)
                except Exception:
                    self.stopped += 1
                    raise
            return Embedders.embed(client.server.page.embedders, names, texts, progress)

        monkeypatch.setattr(client.server.page.embedders, "embed", embed)
        self.client = client

    def ask(self) -> http.client.HTTPConnection:
        """Send a request whose answer nobody has read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.client.server.port, timeout=20)
        headers = {"x-unmask-token": self.client.server.token, "content-type": "application/json"}
        connection.request("POST", "/api/similarities", json.dumps({"designs": ["mean"], "texts": TWO}), headers)
        return connection


@pytest.fixture
def held(pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch) -> Any:
    with running(pico()) as client:
        made = Held(client, monkeypatch)
        yield made
        made.release.set()


def test_one_request_at_a_time_computes(held: Held) -> None:
    connections = [held.ask() for _ in range(3)]
    until(lambda: held.begun == 1)
    time.sleep(0.2)
    assert held.begun == 1
    assert held.client.get("/api/state").status == 200  # what needs no model is answered meanwhile
    held.release.set()
    assert [connection.getresponse().status for connection in connections] == [200] * 3
    assert held.begun == 3


def test_work_ends_when_the_browser_stops_waiting(held: Held) -> None:
    first, second = held.ask(), held.ask()
    until(lambda: held.begun == 1)
    first.close()
    until(lambda: held.stopped == 1 and held.begun == 2)  # the next one's turn comes
    held.release.set()
    assert second.getresponse().status == 200


def test_too_many_that_wait_are_refused(held: Held) -> None:
    connections = [held.ask() for _ in range(MAX_WAITING + 1)]
    until(lambda: held.begun == 1)
    time.sleep(0.3)
    refused = held.client.post("/api/similarities", designs=["mean"], texts=TWO)
    assert refused.status == 429 and refused.problem
    held.release.set()
    assert {connection.getresponse().status for connection in connections} == {200}
