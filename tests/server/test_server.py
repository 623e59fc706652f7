"""The server as a process: it starts, serves, says what it serves, and stops on a signal with every answer given."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.forking import program, start, wait
from tests.in_process import run_program
from tests.server.running import until
from unmask.errors import UnmaskError
from unmask.server.served import ServedModels
from unmask.server.server import address_of, listen

CPU = ("--dtype", "float32", "--device", "cpu", "--port", "0")


def ask(address: str, texts: list[str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("POST", "/v1/embeddings", json.dumps({"model": "mean", "input": texts}))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.slow
def test_a_signal_ends_it_when_everything_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of this process, since a new one would import for seconds. It computes nothing until the signal."""
    original, signalled = ServedModels.compute, tmp_path / "signalled"

    def compute(self: ServedModels, *given: Any) -> Any:
        (tmp_path / "computing").touch()
        until(signalled.exists, 60)
        time.sleep(0.5)  # the server looks ten times a second whether it may end
        return original(self, *given)

    monkeypatch.setattr(ServedModels, "compute", compute)
    copy = start(program("serve", "pico", "-d", "mean,last", *CPU), tmp_path, notes := tmp_path / "notes")
    answers: list[tuple[int, Any]] = []
    texts = [f"text {place}" for place in range(40)]
    try:
        until(lambda: bool(address_in(notes / "err")), 60)
        address = address_in(notes / "err")
        asking = threading.Thread(target=lambda: answers.append(ask(address, texts)))
        asking.start()
        until((tmp_path / "computing").exists, 60)
    finally:
        os.kill(copy, signal.SIGTERM)
        signalled.touch()
        done = wait(copy, notes)
    asking.join(60)
    assert done.code == 0 and done.err.endswith("unmask: stopped\n")
    assert answers[0][0] == 200 and len(answers[0][1]["data"]) == 40


def address_in(file: Path) -> str:
    """The address that a server has printed, or nothing."""
    printed = re.search(r"serving at http://([\d.:]+)/v1", file.read_text("utf-8") if file.exists() else "")
    return printed[1] if printed else ""


def test_a_port_that_is_taken_is_told() -> None:
    with listen("127.0.0.1", 0) as taken:
        with pytest.raises(UnmaskError, match="Cannot listen"):
            listen("127.0.0.1", taken.getsockname()[1])
        assert address_of(taken) == f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(UnmaskError, match="Cannot listen"):
        listen("no such host.invalid", 0)


def test_without_the_extra_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in ("unmask.server.server", "unmask.ui.server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    said = "This needs uvicorn, which is not installed: pip install 'unmask[serve]'."
    assert run_program(["serve", "pico"], monkeypatch, capfd) == (2, "", f"unmask: loading pico ...\nunmask: {said}\n")
