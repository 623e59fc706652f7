"""Standard input as a file of texts, since rows are read twice: once to check them, once to embed them."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from unmask.errors import UnmaskError
from unmask.io.compressed import BadLine, open_text
from unmask.io.lines import UnlimitedLines

STDIN: Final = Path("-")


@contextmanager
def spooled_stdin() -> Iterator[Path]:
    """A temporary copy of standard input: JSON lines if its first line is a JSON object, else one text per line.

    Errors that name the copy name standard input instead.
    """
    with tempfile.TemporaryDirectory(prefix="unmask-") as folder:
        file = Path(folder, "stdin")
        with file.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        file = file.rename(file.with_suffix(".jsonl" if _begins_with_an_object(file) else ".txt"))
        try:
            yield file
        except UnmaskError as error:
            raise UnmaskError(str(error).replace(str(file), "standard input")) from error


def _begins_with_an_object(file: Path) -> bool:
    try:
        with open_text(file) as stream:
            return isinstance(json.loads(next(UnlimitedLines(stream), "")), dict)
    except (ValueError, RecursionError, BadLine):
        return False
