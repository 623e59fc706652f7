"""What is printed stands as it is: no name is read as markup, and no control character reaches a terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from tests.messages import heard
from tests.reporting.synthetic import Folder
from tests.test_layout import PACKAGE
from unmask.evaluation.leader import KindLeader
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.training_gain import TrainingGain
from unmask.evaluation.verdict import comparisons
from unmask.io import terminal
from unmask.io.terminal import progress_bar
from unmask.reporting import tables
from unmask.studies.sheet import Sheet

HOSTILE = ("[/INST]", ":smile:", "\x1b[31mred", "a\nb", "\u202eabc")


def on(make: Callable[[Console], RenderableType]) -> str:
    """What a wide console shows."""
    stream = io.StringIO()
    console = terminal.console(file=stream, width=300)
    console.print(make(console))
    return stream.getvalue()


@pytest.fixture(params=HOSTILE, ids=ascii)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def found(name: str, tmp_path: Path) -> tuple[list[Result], ResultStore]:
    """Results of two designs on two tasks, each with such a name."""
    of = Folder({name: (name, 0.9), "mean": ("causal/plain/mean", 0.1)}, {f"sts {name}": "sts", "other": "sts"}, model=name)
    of.write(tmp_path)
    store = ResultStore(tmp_path)
    return store.results, store


Found = tuple[list[Result], ResultStore]
TABLES: dict[str, Callable[[str, Found], RenderableType]] = {
    "ranking": lambda _, found: tables.ranking(found[0], 300),
    "ranking on a narrow terminal": lambda _, found: tables.ranking(found[0], 70),
    "differences": lambda _, found: tables.differences(found[0], comparisons(*found), 100),
    "advice": lambda name, found: tables.advice([KindLeader("sts", found[0][0].system, 0.5, (f"beats {name}",))], found[0]),
    "shared_readings": lambda name, _: tables.shared_readings({name: [name]}),
    "coverage_table": lambda name, _: tables.coverage_table(name, [coverage(name)]),  # type: ignore[list-item]
    "gain_table": lambda name, _: tables.gain_table(gain(name), name),
    "recipe_table": lambda name, _: tables.recipe_table([(recipe(name), [name])]),  # type: ignore[list-item]
    "sheet of a study": lambda name, _: Sheet(name, (name, name), ((name, name),), name).rich(),
    "a table": lambda name, _: two(name),
    "a note": lambda name, _: name,
}


def coverage(name: str) -> SimpleNamespace:
    return SimpleNamespace(kind=name, adapted=1, present=2, parameters=3, trainable=4)


def gain(name: str) -> TrainingGain:
    return TrainingGain(kinds={name: "sts"}, untrained=name, scores={name: {name: 0.5}}, test=None, left_out={})


def recipe(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, stages=[name], about=name, source=name)


def two(name: str) -> RenderableType:
    table = terminal.table(name, caption=name, show_footer=True)
    table.add_column(terminal.two_lines(name, name), footer=name)
    table.add_row(name)
    return table


@pytest.mark.parametrize("made", TABLES)
def test_a_table_shows_every_name_as_it_stands(made: str, name: str, found: Found) -> None:
    printed = on(lambda _: TABLES[made](name, found))
    for part in terminal.visible(name, keep="\n").split("\n"):
        assert part in printed
    assert not any(ord(character) < 32 or character in "\x7f\u202e" for character in printed if character != "\n")


def test_a_progress_bar_and_a_message_show_every_name_as_it_stands(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar(f"{name} on a task", 2, show=True) as advance:
        advance(2)
    assert f"{terminal.visible(name)} on a task" in capsys.readouterr().err
    terminal.complain(f"{name} on a task")
    assert capsys.readouterr().err == f"unmask: {terminal.visible(name)} on a task\n"
    terminal.tell(name)
    assert capsys.readouterr().out == f"{terminal.visible(name)}\n"


def test_messages_are_for_whoever_listens(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say("nobody listens")
    with heard() as messages:
        terminal.say("100 % of \x1b")
    assert messages == ["100 % of \x1b"] and capsys.readouterr().err == ""
    terminal.show_messages()
    terminal.show_messages()
    terminal.say("100 % of \x1b")
    assert capsys.readouterr().err == "unmask: 100 % of \\x1b\n"


def test_without_a_terminal_progress_is_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock: Any = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(terminal, "time", clock)

    def messages_of_a_run(show: bool | None = None) -> list[str]:
        with heard() as messages:
            terminal.say("loading")
            with progress_bar("embedding", 100, show) as advance:
                for _ in range(50):
                    clock.now += 2
                    advance(2)
        return messages[1:]

    messages = messages_of_a_run()
    assert messages[:2] == ["embedding: 6 of 100, 1.6 min left", "embedding: 12 of 100, 1.5 min left"]
    assert len(messages) < 20 and not any("100 of 100" in message for message in messages)
    assert messages_of_a_run(show=False) == [] and capsys.readouterr().err == ""
    with terminal.output_mode(quiet=True):
        assert messages_of_a_run() == []


def test_a_pipe_breaks_no_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/a folder/" + "long-name/" * 30 + "vectors.parquet"
    monkeypatch.delenv("COLUMNS", raising=False)
    table = terminal.table("")
    table.add_column("file", overflow="fold")
    table.add_row(path)
    terminal.console().print(f"Saved to {path}.")
    terminal.console().print(table)
    out = capsys.readouterr().out
    assert out.count(path) == 2 and max(map(len, out.splitlines())) < len(path) + 20


def test_json_mode_leaves_standard_output_to_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        with terminal.output_mode(as_json=True, quiet=quiet):
            terminal.tell("words for people")
            terminal.console().print("a table")
            terminal.tell_result({"vectors": 3})
        out, err = capsys.readouterr()
        assert json.loads(out) == {"vectors": 3}
        assert ("words for people" in err, "a table" in err) == (not quiet, not quiet)
    terminal.tell_result({"vectors": 3})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "character",
    [*"\u00ad\u115f\u200b\u202e\ufeff", "\U000e0041"],
    ids=ascii,
)
def test_an_invisible_character_is_shown(character: str, capsys: pytest.CaptureFixture[str]) -> None:
    escaped = character.encode("unicode_escape").decode()
    assert terminal.visible(f"a{character}b") == f"a{escaped}b"
    assert escaped in on(lambda _: f"a{character}b")
    terminal.tell(f"a{character}b")
    assert capsys.readouterr().out == f"a{escaped}b\n"


def test_json_hides_nothing_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    content = {
        "Ünïcode 漢字 😀": ["\x9b31m red \x1b \x7f", "\u202e turned \U000e0041", "\ud800", 'a "quote" \\ and\nlines', 1.5, None]
    }
    terminal.tell_json(content)
    shown = capsys.readouterr().out
    assert json.loads(shown) == content and "Ünïcode 漢字 😀" in shown
    for escaped in (r"\u009b31m red \u001b \u007f", r"\u202e turned \udb40\udc41", r"\ud800"):
        assert escaped in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_tables_and_consoles_come_from_one_file() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if file.name != "terminal.py"]
    built = re.compile(r"(?<!class )\b(Console|Table)\(|from_markup|render_str")
    sources = {file: file.read_text(encoding="utf-8") for file in files}
    assert not [file for file, source in sources.items() if "rich" in source and built.search(source)]
