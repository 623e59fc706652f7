"""The door: only a page that has the token, only a page of our own, only under our names, and within limits."""

from __future__ import annotations

import json

import pytest

from tests.ui.running import Client
from unmask.ui.access import HEADERS, MAX_BODY, POLICY

PATHS = ("/", "/main.js", "/style.css", "/api/state", "/api/corpus", "/nowhere")


@pytest.mark.parametrize("path", ["/api/state", "/api/corpus", "/api/nowhere", "/%61pi/state"])
def test_nothing_is_told_without_the_token(path: str, dense: Client) -> None:
    for token in ("", "x", f"{dense.server.token}x", "\xff"):
        answer = dense.get(path, x_unmask_token=token)
        assert answer.status == 401 and "token" in answer.problem
    body = json.dumps({"query": "song"}).encode()
    assert dense.ask("POST", "/api/search", body, x_unmask_token="").status == 401


def test_a_cookie_opens_nothing_and_none_is_set(dense: Client) -> None:
    path = dense.server.address.partition(str(dense.server.port))[2]
    answer = dense.get(path, x_unmask_token="", sec_fetch_site="none")
    assert answer.status == 200 and b"<!doctype html>" in answer.body and "set-cookie" not in answer.headers
    cookie = f"unmask-{dense.server.port}={dense.server.token}; token={dense.server.token}"
    assert dense.get("/api/state", x_unmask_token="", cookie=cookie).status == 401
    assert dense.get(f"/api/state?token={dense.server.token}", x_unmask_token="").status == 401


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "0.0.0.0:{port}"],
)
def test_another_name_of_this_machine_is_refused(host: str, dense: Client) -> None:
    for path in (*PATHS, f"/?token={dense.server.token}"):
        assert dense.get(str(path), host=host.format(port=dense.server.port)).status == 421


@pytest.mark.parametrize(
    "header",
    [
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},  # another server of this machine
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1"},
    ],
)
def test_another_page_may_not_use_ours(header: dict[str, str], dense: Client) -> None:
    assert dense.get("/api/state", **header).status == 403
    body = json.dumps({"query": "song"}).encode()
    assert dense.ask("POST", "/api/search", body, **header).status == 403


@pytest.mark.parametrize("path", [*PATHS, "/api/similarities"])
def test_every_answer_has_the_headers(path: str, dense: Client) -> None:
    for answer in (
        dense.get(path),
        dense.get(path, x_unmask_token=""),
        dense.get(path, host="evil.example"),
        dense.ask("POST", path, b"{"),
    ):
        assert HEADERS.items() <= answer.headers.items()
        assert "server" not in answer.headers
    assert "unsafe" not in POLICY and "*" not in POLICY
    assert "default-src 'none'" in POLICY


def test_a_long_body_is_refused(dense: Client) -> None:
    assert dense.ask("POST", "/api/search", b"x" * (MAX_BODY + 1)).status == 413
