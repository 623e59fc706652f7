"""The file that `unmask ui --open` gives to the browser: it leads to the page, and only its user can read it."""

from __future__ import annotations

import stat
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from typer.testing import CliRunner

from unmask.cli import app
from unmask.ui.page_file import opened
from unmask.ui.server import PageServer

ADDRESS = "http://127.0.0.1:8000/?token=abc-_&x=1"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the browser was asked to open."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    return addresses


def file_of(address: str) -> Path:
    return Path(url2pathname(urlsplit(address).path))


def test_the_file_leads_to_the_page_and_is_private_and_goes(shown: list[str]) -> None:
    with opened(ADDRESS):
        (address,) = shown
        file = file_of(address)
        assert "abc" not in address and address.startswith("file:")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert 'http-equiv="refresh" content="0; url=http://127.0.0.1:8000/?token=abc-_&amp;x=1"' in file.read_text()
    assert not file.parent.exists()


@pytest.mark.parametrize("options", [(), ("--open",)])
def test_the_command_never_gives_the_token_to_a_command_line(
    options: tuple[str, ...], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    contents: list[str] = []

    def run(server: Any) -> None:
        contents.extend(file_of(address).read_text() for address in shown)
        assert all(server.address in content for content in contents)
        assert not any(server.token in address for address in shown)
        server.page.close()

    monkeypatch.setattr(PageServer, "run", run)
    done = CliRunner().invoke(app, ["ui", "-m", "pico", "-d", "mean", "--device", "cpu", *options])
    assert done.exit_code == 0, done.output
    assert len(contents) == len(options) and not any(file_of(address).exists() for address in shown)
