"""The report of a benchmark: notes and tables, printed as they are measured, and kept as JSON with `--keep FILE`.

Print and file come from the same rows. `python -m tools.results NAME FILE` makes a table of a page from the file.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import _inputs

Value = str | int | float | None
_FIRST, _OTHERS = 40, 9


def parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark that makes a report: the options of all, and `--keep`."""
    return _keeping(_inputs.parser(description))


def _keeping(options: argparse.ArgumentParser | None) -> argparse.ArgumentParser:
    options = options or argparse.ArgumentParser(add_help=False)
    options.add_argument("--keep", type=Path, metavar="FILE", help="also write what was measured as JSON")
    return options


def cells(columns: Mapping[str, str], row: Sequence[Value]) -> list[str]:
    """The texts of a row. A cell without a value is empty."""
    return ["" if value is None else form.format(value) for form, value in zip(columns.values(), row, strict=True)]


@dataclass
class Table:
    """Rows of values below headings. columns: the format of each heading's values, such as `{:.1f}`."""

    title: str
    columns: dict[str, str]
    rows: list[list[Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        print(f"\n{self.title}")
        self._print(list(self.columns))

    def add(self, *row: Value) -> None:
        """Add a row, and print it."""
        self.rows.append(list(row))
        self._print(cells(self.columns, row))

    def _print(self, texts: Sequence[str]) -> None:
        widths = [_FIRST, *(max(_OTHERS, len(heading)) for heading in list(self.columns)[1:])]
        first, *others = (
            f"{text:<{width}}" if not place else f"{text:>{width}}"
            for place, (text, width) in enumerate(zip(texts, widths, strict=True))
        )
        print(first, *others, sep="  ", flush=True)


class Report:
    """What one run of a benchmark found. Use it in a `with`: the file is written when all has been measured.

    script: the file of the benchmark; arguments: what its `main` was given, None for those of the command line.
    """

    def __init__(self, script: str, arguments: Sequence[str] | None) -> None:
        kept, others = _keeping(None).parse_known_args(arguments)
        self.command = shlex.join(["python", "-m", f"benchmarks.{Path(script).stem}", *others])
        self.parts: list[str | Table] = []
        self._file: Path | None = kept.keep

    def note(self, text: str) -> None:
        """Print and keep a sentence, such as what the inputs are."""
        self.parts.append(text)
        print(text, flush=True)

    def table(self, title: str, columns: dict[str, str]) -> Table:
        """Begin a table."""
        table = Table(title, columns)
        self.parts.append(table)
        return table

    def as_json(self) -> dict[str, Any]:
        """Command, hardware, versions, and all parts in order."""
        import torch

        from unmask.models.loading import pick_device
        from unmask.models.provenance import hardware, installed_versions

        machine, threads = hardware(pick_device("auto")), torch.get_num_threads()
        return {
            "command": self.command,
            "hardware": f"{machine}, {threads} thread{'s' * (threads > 1)}",
            "versions": installed_versions(("unmask", "torch", "transformers")),
            "parts": [part if isinstance(part, str) else vars(part) for part in self.parts],
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None and self._file is not None:
            self._file.write_text(json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
