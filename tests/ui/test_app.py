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
from urllib.parse import quote

import pytest

from tests.server.running import until
from tests.ui.conftest import HOSTILE
from tests.ui.running import Client, running
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.ui.app import MAX_TEXTS
from unmask.ui.embedders import Embedders
from unmask.ui.worker import MAX_WAITING

TWO = ["A man plays a guitar.", "The stock market fell."]


def test_the_state_says_what_there_is(dense: Client, routed: Client) -> None:
    state = dense.get("/api/state").json
    assert (state["layers"], state["routers"], state["chosen"]) == (3, 0, ["mean", "last"])
    assert state["corpus"] == {"number": 1, "texts": 46, "rows": 46, "name": "texts <i>.jsonl"}
    assert state["dense"] and "unmask upcycle" in state["no_routing"]
    assert [report["title"] for report in state["reports"]] == ["unmask report: 4 designs on 3 tasks"]
    other = routed.get("/api/state").json
    assert (other["routers"], other["corpus"], other["reports"], other["no_routing"]) == (3, None, [], None)


def test_the_files_of_the_page_are_those_of_the_folder_and_the_colours(dense: Client) -> None:
    folder = Path(str(files("unmask.ui") / "page"))
    names = [file.name for file in folder.iterdir()]
    assert "index.html" in names
    for name in names:
        assert dense.get(f"/{name}").body == (folder / name).read_bytes()
    assert b"--ink" in dense.get("/colours.css").body
    assert dense.get("/main.js").headers["content-type"].startswith("text/javascript")
    assert dense.get("/").headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    "path",
    [
        "/../app.py",
        "/..%2fapp.py",
        "/%2e%2e/app.py",
        "/page/index.html",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/index.html/",
        "/\\app.py",
        "/main.js%00",
    ],
)
def test_no_path_reaches_the_file_system(path: str, dense: Client) -> None:
    assert dense.get(path).status == 404


def test_the_page_has_no_script_or_style_inside_and_asks_nobody_else() -> None:
    folder = files("unmask.ui") / "page"
    html = (folder / "index.html").read_text("utf-8")
    assert html.count("<script") == 1 and "<style" not in html and " style=" not in html and " onclick" not in html
    for file in folder.iterdir():
        text = file.read_text("utf-8")
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text, file.name
        assert "darker" not in text, f"{file.name}: in the dark scheme, a stronger colour is a lighter one"
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
            assert danger not in text, f"{danger} in {file.name}"


def test_similarities(dense: Client) -> None:
    answer = dense.post("/api/similarities", designs=["mean", "causal/eol/last@1"], texts=[*TWO, *HOSTILE]).json
    assert [one["design"] for one in answer["designs"]] == ["causal/plain/mean", "causal/eol/last@1"]
    assert answer["pairs"] == 28 and -1 <= answer["spearman"] <= 1
    assert len(answer["designs"][0]["cosines"]) == 8


@pytest.mark.parametrize("path", ["/api/similarities", "/api/tokens"])
@pytest.mark.parametrize("design", ["mena", "nv-embed", "routing", "causal/plain/mean@9"])
def test_a_wrong_design_is_told_in_the_words_of_the_command_line(path: str, design: str, dense: Client) -> None:
    embedders = dense.server.page.embedders
    with pytest.raises(UnmaskError) as error:
        embedders.embedder(design)
    given: dict[str, Any] = {"texts": TWO} if path == "/api/similarities" else {"text": TWO[0]}
    answer = dense.post(path, designs=["mean", design], **given)
    assert answer.status == 400 and answer.problem == str(error.value)


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/api/similarities", {}, "one design or two"),
        ("/api/similarities", {"designs": ["mean"], "texts": ["one"]}, f"2 to {MAX_TEXTS} texts"),
        ("/api/similarities", {"designs": ["mean"], "texts": ["x"] * (MAX_TEXTS + 1)}, f"2 to {MAX_TEXTS} texts"),
        ("/api/similarities", {"designs": ["mean"], "texts": ["x", 3]}, "texts"),
        ("/api/similarities", {"designs": ["mean"], "texts": ["x", "y" * 30_000]}, "characters"),
        ("/api/similarities", {"designs": [], "texts": TWO}, "one design or two"),
        ("/api/similarities", {"designs": ["mean"] * 3, "texts": TWO}, "one design or two"),
        ("/api/similarities", {"designs": ["mean"], "texts": TWO, "more": 1}, "more"),
        ("/api/tokens", {"designs": ["mean"], "text": ""}, "Give a text"),
        ("/api/tokens", {"designs": ["mean"], "text": "word " * 150}, "at most 100"),
        ("/api/routing", {"designs": ["mean"], "text": "x"}, "dense"),
        ("/api/map", {"corpus": 1, "design": "mena"}, "Did you mean 'mean'"),
        ("/api/map", {"corpus": 1, "design": "routing"}, "routing weights"),
        ("/api/neighbours", {"corpus": 1, "design": "echo", "place": 0}, "not ready"),
        ("/api/neighbours", {"corpus": 1, "design": "mean", "place": "0"}, "place"),
        ("/api/search", {"corpus": 1, "query": 3}, "query"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(path: str, fields: dict[str, Any], said: str, dense: Client) -> None:
    answer = dense.post(path, **fields)
    assert answer.status == 400 and said in answer.problem


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"query": "\\ud800"}', b"null"])
def test_a_body_that_is_no_request_is_refused(body: bytes, dense: Client) -> None:
    answer = dense.ask("POST", "/api/search", body)
    assert answer.status == 400 and answer.problem


def test_what_there_is_not_is_told_with_what_to_do(routed: Client) -> None:
    nearest = routed.post("/api/nearest", corpus=1, design="mean", query="x")
    for answer in (routed.get("/api/corpus"), routed.post("/api/map", corpus=1, design="mean"), nearest):
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
    until(lambda: dense.post("/api/map", corpus=1, design="mean").json["ready"])
    answer = dense.post("/api/map", corpus=1, design="mean").json
    assert len(answer["points"]) == 46 and answer["dim"] == 64 and 0 < answer["share"] <= 1
    about = dense.get("/api/corpus").json
    assert about["label_names"] == ["music", "sport", "<b>odd</b>"]
    near = dense.post("/api/neighbours", corpus=1, design="mean", place=3).json
    assert near["text"] == about["snippets"][3] and len(near["neighbours"]) == 10
    assert dense.post("/api/search", corpus=1, query="CHOIR number 3").json == {"places": [7]}
    assert dense.post("/api/neighbours", corpus=1, design="mean", place=46).problem


def test_a_file_is_opened_by_the_name_that_its_user_knows(pico: Callable[..., Embedder]) -> None:
    with running(pico()) as client:
        for name in ("../../a b.jsonl", "/etc/passwd", "..", "", "x" * 300 + ".txt", "a\0.txt", "a.jsonl.gz"):
            answer = client.ask("POST", f"/api/corpus?name={quote(name)}", b'{"text": 1}\n')
            assert answer.status == (200 if name.endswith(".txt") else 400), name
            assert "unmask-" not in answer.body.decode()  # the name of our folder
            if answer.status == 400:
                assert name in answer.problem
        assert client.ask("POST", "/api/corpus?name=a.txt&label=x", b"one\n").status == 400
        before = client.get("/api/state").json["corpus"]
        opened = client.ask("POST", "/api/corpus?name=b.csv&column=t&label=l", b"t,l\none,1\ntwo,2\n").json
        assert opened == {"number": before["number"] + 1, "texts": 2, "rows": 2, "name": "b.csv"}
        assert client.get("/api/corpus").json["label_names"] == ["1", "2"]
        stale = client.post("/api/neighbours", corpus=before["number"], design="mean", place=0)
        assert stale.status == 409 and "Reload" in stale.problem
        refused = client.ask("POST", "/api/reports?name=x.html", b"<title>mine</title>")
        assert refused.status == 400 and refused.problem.startswith("'x.html' is not a report")
        report = b"<title>unmask report: mine</title>"
        (listed,) = client.ask("POST", "/api/reports?name=r.html", report).json
        assert (listed["title"], listed["file"]) == ("unmask report: mine", "r.html")
        assert client.get(listed["address"], x_unmask_token="").body == report
        assert client.ask("POST", "/api/corpus?name=a.txt", b"one\n", x_unmask_token="").status == 401
        folder = client.server.page.reports[0].file.parent
        assert [file.name for file in folder.iterdir()] == [
            client.server.page.reports[0].file.name
        ]  # a corpus is read and goes
    assert not folder.exists()


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
        headers = {"x-unmask-token": self.client.server.token}
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


def test_a_page_that_stops_ends_its_work(pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch) -> None:
    with running(pico()) as client:
        held = Held(client, monkeypatch)
        connection = held.ask()
        until(lambda: held.begun == 1)
    assert held.stopped == 1
    connection.close()
