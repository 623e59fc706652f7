"""Start: mistakes are told before a model is loaded; a saved embedder is shown as it was saved."""

from __future__ import annotations

import os
import re
import signal
import stat
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.abuse.forking import program, start, wait
from tests.in_process import run_program
from tests.server.running import until
from unmask.cli import app
from unmask.embedder import Embedder
from unmask.ui.server import PageServer, load_page, open_in_browser, read_inputs


def test_a_saved_embedder_is_shown_as_it_was_saved(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    pico("causal/eol/last@2").save_pretrained(tmp_path / "saved")
    page = load_page(str(tmp_path / "saved"), read_inputs())
    assert list(page.embedders.designs) == ["causal/eol/last@2"]
    chosen = load_page(str(tmp_path / "saved"), read_inputs(designs="mean"))
    assert list(chosen.embedders.designs) == ["mean"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--label", "kind"), "--corpus"),
        (("--corpus", "nowhere.jsonl"), "nowhere.jsonl"),
        (("-d", "mena"), "Did you mean 'mean'"),
        (("-d", "mean,last,echo"), "3 were given"),
    ],
)
def test_mistakes_are_told_before_the_model_is_loaded(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Embedder, "from_pretrained", load)
    monkeypatch.chdir(tmp_path)
    code, out, err = run_program(["ui", "-m", "pico", *words], monkeypatch, capfd)
    assert (code, out) == (2, "") and said in err and err.removeprefix("unmask: loading pico ...\n").count("\n") == 1


@pytest.mark.slow
def test_the_program_prints_an_address_and_a_signal_ends_it(pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """In a copy of this process, since a new one would import for seconds."""
    copy = start(program("ui", "-m", pico_folder("llama")), tmp_path, notes := tmp_path / "notes")
    try:
        until(lambda: bool(address_in(notes / "err")), 60)
        with urllib.request.urlopen(address_in(notes / "err"), timeout=20) as page:
            assert b"<!doctype html>" in page.read()
    finally:
        os.kill(copy, signal.SIGINT)
        done = wait(copy, notes)
    assert (done.code, done.out) == (0, "") and done.sentence.endswith("stopped")


def address_in(file: Path) -> str:
    """The address that a page has printed, or nothing."""
    printed = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+(?=\s)", file.read_text("utf-8") if file.exists() else "")
    return printed[0] if printed else ""


def test_the_browser_gets_a_private_file_and_not_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    with open_in_browser("http://127.0.0.1:8000/?token=abc-_&x=1"):
        (address,) = opened
        file = Path(address.removeprefix("file://"))
        assert "abc" not in address
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert 'content="0; url=http://127.0.0.1:8000/?token=abc-_&amp;x=1"' in file.read_text()
    assert not file.parent.exists()

    def run(server: PageServer) -> None:
        assert not any(server.token in address for address in opened)
        server.page.close()

    monkeypatch.setattr(PageServer, "run", run)
    assert CliRunner().invoke(app, ["ui", "-m", "pico", "-d", "mean", "--device", "cpu", "--open"]).exit_code == 0
    assert len(opened) == 2
