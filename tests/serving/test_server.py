"""The server as a process: it starts, serves, says what it serves, and stops on a signal with every answer given."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.in_process import run_program
from unmask.errors import UnmaskError
from unmask.serving.server import address_of, listen

CPU = ("--dtype", "float32", "--device", "cpu", "--port", "0")


def start(*words: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """A server, and the address that it prints."""
    import os

    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", "pico", "-d", "mean,last", *CPU, *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stderr
    for line in process.stderr:
        if found := re.search(r"serving at http://([\d.:]+)/v1", line):
            return process, found[1]
    raise AssertionError("it does not start")


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process, address = start()
    yield process, address
    process.kill()
    process.wait()


def ask(address: str, texts: list[str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("POST", "/v1/embeddings", json.dumps({"model": "mean", "input": texts}))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.slow
def test_a_signal_ends_it_when_everything_is_answered(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    answers: list[tuple[int, Any]] = []
    texts = [f"text {place} " + "word " * 300 for place in range(400)]
    asking = threading.Thread(target=lambda: answers.append(ask(address, texts)))
    asking.start()
    while "unmask_requests_in_flight 2.0" not in metrics(address):
        assert asking.is_alive(), "too quick for this test"
    process.send_signal(signal.SIGTERM)
    asking.join(60)
    assert process.wait(30) == 0
    assert process.stderr and process.stderr.read().endswith("unmask: stopped\n")
    assert answers[0][0] == 200 and len(answers[0][1]["data"]) == 400


def metrics(address: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def test_a_port_that_is_taken_is_told() -> None:
    with listen("127.0.0.1", 0) as taken:
        with pytest.raises(UnmaskError, match="Nothing can listen"):
            listen("127.0.0.1", taken.getsockname()[1])
        assert address_of(taken) == f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(UnmaskError, match="Nothing can listen"):
        listen("no such host.invalid", 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    try:
        listening = listen("::1", 0)
    except UnmaskError:
        pytest.skip("no IPv6")
    with listening:
        assert address_of(listening).startswith("http://[::1]:")


def test_without_the_extra_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in ("unmask.serving.server", "unmask.serving.connection"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    said = "This needs uvicorn, which is not installed: pip install 'unmask[serve]'."
    assert run_program(["serve", "pico"], monkeypatch, capfd) == (2, "", f"unmask: {said}\n")
