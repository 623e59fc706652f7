"""Terminal: what reaches a screen is shown as it stands, whatever a name, a text or an error holds.

Design labels, task names, paths, texts and labels come from users and from files. No table, bar or message reads markup in them,
and no control character in them reaches the terminal.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table

_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that a terminal obeys or cannot show: control and format characters, lone surrogates, separators of lines."""
_JOINERS = "\u200c\u200d"
"""Format characters that change how their neighbours look, in emoji and in Persian words."""
_FILLERS = "\u115f\u1160\u3164\uffa0"
"""Letters that look like nothing."""
_PIPE_WIDTH = 1000
_SECONDS, _SECONDS_OF_LONG_WORK = 5.0, 60.0
"""Time between two lines of progress in a log: a few seconds at first, a minute in a run of hours."""


@dataclass
class _Mode:
    """What the command line shows. json: where the JSON of a result goes; None if results are for people."""

    quiet: bool = False
    json: TextIO | None = None
    last_line: float = -_SECONDS_OF_LONG_WORK


_MODE = _Mode()


def visible(text: str, keep: str = "") -> str:
    r"""Text in which nothing is hidden: control and invisible characters are shown escaped (`\n`, `\x1b`), all others unchanged.

    keep: characters that stay whatever they are, such as the line breaks of a message of our own.
    """
    if text.isprintable() and not any(filler in text for filler in _FILLERS):
        return text
    return "".join(character if character in keep else _escape_hidden(character) for character in text)


def _escape_hidden(character: str) -> str:
    if character in _FILLERS or (unicodedata.category(character) in _HIDDEN and character not in _JOINERS):
        return character.encode("unicode_escape").decode("ascii")
    return character


def escape_unencodable() -> None:
    r"""Write characters that the encoding of standard output lacks as escapes (`\u2026`), instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def counted(number: int, noun: str) -> str:
    """A number and a noun: 1 task, 2 tasks."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


@contextmanager
def output_mode(*, quiet: bool = False, as_json: bool = False) -> Iterator[None]:
    """Run a command that shows no progress and no messages (quiet), or prints nothing but the JSON of `tell_result` on standard output.

    With as_json, everything else that the command prints goes to standard error, and with both it is dropped.
    """
    before, level = (_MODE.quiet, _MODE.json), _LOG.level
    _MODE.quiet, _MODE.json = quiet, sys.stdout if as_json else None
    if quiet:
        _LOG.setLevel(logging.WARNING)
    try:
        if not as_json:
            yield
        elif quiet:
            with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123 (a device)
                yield
        else:
            with redirect_stdout(sys.stderr):
                yield
    finally:
        _MODE.quiet, _MODE.json = before
        _LOG.setLevel(level)


def is_quiet() -> bool:
    """Whether progress and messages are hidden."""
    return _MODE.quiet


def draws_bars() -> bool:
    """Whether progress is shown as a bar: on a terminal, unless it is hidden."""
    return sys.stderr.isatty() and not _MODE.quiet


def tell_result(content: Any) -> None:
    """Print the result of a command as JSON if --json asks for it. The command tells it to people in its own words."""
    if _MODE.json is not None:
        with redirect_stdout(_MODE.json):
            tell_json(content)


def enumeration(words: Sequence[str], separator: str = ", ", last: str = " and ") -> str:
    """Words as a list in a sentence: a, b and c."""
    return f"{separator.join(words[:-1])}{last}{words[-1]}" if len(words) > 1 else "".join(words)


def say(message: str) -> None:
    """Tell how long work gets on, in one line: an INFO message of the logger `unmask`, hidden by default."""
    _MODE.last_line = time.monotonic()
    _LOG.info(message)


def is_line_due(seconds: float) -> bool:
    """Whether work that has taken so long should tell its progress in a log, which has been silent for a while."""
    pause = min(max(_SECONDS, seconds / 10), _SECONDS_OF_LONG_WORK)
    return not _MODE.quiet and time.monotonic() - _MODE.last_line >= pause


def show_messages() -> None:
    """Show on standard error what `say` tells, as the command line does."""
    _LOG.addHandler(_HANDLER)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False  # whoever configures logging would show it again


def complain(message: str) -> None:
    """Print one line on standard error."""
    print(f"unmask: {visible(message)}", file=sys.stderr, flush=True)


class _Shown(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


_LOG, _HANDLER = logging.getLogger("unmask"), _Shown()


def tell(line: str) -> None:
    """Print a line of a result on standard output."""
    print(visible(line))


def tell_wrapped(text: str, indent: str) -> None:
    """Print a paragraph of at most 80 characters a line. indent: what the first line begins with; the others begin with as many spaces."""
    for line in textwrap.wrap(text, 80, initial_indent=indent, subsequent_indent=" " * len(indent), break_on_hyphens=False):
        tell(line)


def tell_json(content: Any) -> None:
    """Print a result as JSON on standard output. What `visible` would escape, or the encoding cannot write, is an escape of JSON."""
    lines = json.dumps(content, indent=2, ensure_ascii=False).split("\n")
    print("\n".join(line if visible(line) == line and _is_encodable(line) else _escape_line(line) for line in lines))


def _escape_line(line: str) -> str:
    return "".join(
        character if _escape_hidden(character) == character and _is_encodable(character) else json.dumps(character)[1:-1]
        for character in line
    )


def _is_encodable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def console(stderr: bool = False, **options: Any) -> Console:
    """The console that every table and note is printed on: no markup, no emoji codes, no highlighting, no control characters."""
    kind: type[Console] = _console()
    if not (stderr or options or sys.stdout.isatty() or "COLUMNS" in os.environ):
        options = {"width": _PIPE_WIDTH}  # so that no path and no id is broken for the program that reads it
    return kind(stderr=stderr, quiet=stderr and _MODE.quiet, markup=False, emoji=False, highlight=False, **options)


def table(title: str, **options: Any) -> Table:
    """An empty table in the style of this program, for `console`, which reads no markup in its strings."""
    from rich import box
    from rich.table import Table

    style: dict[str, Any] = {"title_justify": "left", "box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    return Table(title=title, **(style | options))


def two_lines(first: str, second: str) -> RenderableType:
    """A header with a dim second line."""
    from rich.text import Text

    return Text(visible(first, keep="\n")).append(f"\n{visible(second)}", style="dim")


@contextmanager
def progress_bar(title: str, total: int, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of units done since its last call.

    show: None draws a bar on a terminal, and elsewhere logs a line every few seconds; True always draws; False shows nothing.
    """
    if show is False or _MODE.quiet:
        yield lambda _: None
    elif show or draws_bars():
        with empty_bar() as bar:
            task = bar.add_task(visible(title), total=total)
            yield lambda done: bar.advance(task, done)
    else:
        start, sum_done = time.monotonic(), 0

        def log_progress(count: int) -> None:
            nonlocal sum_done
            sum_done += count
            seconds = time.monotonic() - start
            if sum_done < total and is_line_due(seconds):
                say(_progress_line(title, sum_done, total, seconds / sum_done if sum_done else None))

        yield log_progress


def _progress_line(title: str, finished: int, total: int, pace: float | None) -> str:
    """pace: seconds for each unit, if any was done."""
    if pace is None or finished >= total:
        return f"{title}: {finished} of {total}"
    seconds = pace * (total - finished)
    remaining = f"{seconds:.0f} s" if seconds < _SECONDS_OF_LONG_WORK else f"{seconds / 60:.1f} min"
    return f"{title}: {finished} of {total}, {remaining} left"


def empty_bar() -> Progress:
    """A progress bar in the house's style, without a task. It draws from its start to its stop."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(stderr=True), transient=True)


def progress_lines(title: str, total: int) -> Callable[[int], None]:
    """A function that tells how many units are done, and the minutes that are left after its first call."""
    first: list[tuple[float, int]] = []

    def tell_progress(count: int) -> None:
        first.append((time.monotonic(), count))
        (start, before), (now, _) = first[0], first[-1]
        say(_progress_line(title, count, total, (now - start) / (count - before) if before < count else None))

    return tell_progress


@cache
def _console() -> Any:
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        """A console whose segments hold no control character except rich's."""

        def render_str(self, text: str, **options: Any) -> Any:
            """The text of a table's cell, made visible before its width is measured."""
            return super().render_str(visible(text, keep="\n"), **options)

        def render(self, *args: Any, **options: Any) -> Any:
            """Segments, made visible."""
            for segment in super().render(*args, **options):
                text, style, control = segment
                yield segment if control else Segment(visible(text, keep="\n"), style)

    return PlainConsole
