"""Every command has an example, and every example works."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.abuse.examples import ALIKE, EXAMPLES, WRITERS, commands
from tests.abuse.forking import command, run
from tests.abuse.recovery import case_of
from tests.proofs import ALL
from tests.test_docs import parse
from unmask.cli import app


def test_every_command_has_an_example() -> None:
    assert set(commands()) == set(EXAMPLES), "add an example to tests/abuse/examples.py"


@pytest.mark.sample(6)
@pytest.mark.parametrize("path", [path for path in EXAMPLES if ALL or path not in WRITERS], ids=" ".join)
def test_an_example_works(path: tuple[str, ...], here: Path, tmp_path: Path) -> None:
    example = EXAMPLES[path]
    done = run(command(*example.line(path), drawn=ALL), here, tmp_path / "notes")
    assert done.code == 0, done.err
    assert done.out.strip() or example.output
    for name in (example.output, *example.beside):
        assert name is None or (here / name).exists()


@pytest.mark.parametrize("path", sorted(ALIKE), ids=" ".join)
def test_an_example_that_is_run_elsewhere_has_no_mistake(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Studies and analyses run whole in tests/studies and probing/test_analyses.py, by other words: so these are only read.

    A study reads its settings, too. `make test-all` runs the examples.
    """
    monkeypatch.chdir(tmp_path)
    words = EXAMPLES[path].line(path)
    parse(words)
    if path[0] == "reproduce":
        done = CliRunner().invoke(app, [*words, "--plan"])
        assert done.exit_code == 0, done.output


@pytest.mark.sample(8)
@pytest.mark.parametrize("path", [path for path in WRITERS if ALL or path not in ALIKE], ids=" ".join)
def test_an_example_that_writes_leaves_its_output(path: tuple[str, ...], furnished: Path, tmp_path: Path) -> None:
    """The run that cuts and full disks are held against: in `make test` no other is needed."""
    case = case_of(path, furnished, tmp_path)
    case.measure()
    left = {place for name in case.undisturbed for place in (name, *map(str, Path(name).parents))}
    assert {EXAMPLES[path].output, *EXAMPLES[path].beside} <= left
