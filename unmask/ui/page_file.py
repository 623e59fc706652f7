"""Page file: what the browser is given to open, so that nobody else sees the token of the page."""

from __future__ import annotations

import html
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def opened(address: str) -> Iterator[None]:
    """Open an address in the browser, and keep what that needs while the block runs.

    Every user of this machine sees the command line of a browser. So the browser is given a file, which only this user can read, and the
    file leads to the address.
    """
    with TemporaryDirectory(prefix="unmask-") as folder:
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        target = html.escape(address)
        file.write_text(
            f'<!doctype html><meta charset="utf-8"><title>unmask</title><meta http-equiv="refresh" content="0; url={target}">'
            f'<p><a href="{target}">Open the page</a></p>\n',
            encoding="utf-8",
        )
        webbrowser.open(file.as_uri())
        yield
