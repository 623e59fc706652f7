"""Every command has an example, and every example works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.abuse.examples import EXAMPLES, commands
from tests.abuse.forking import command, run


def test_every_command_has_an_example() -> None:
    assert set(commands()) == set(EXAMPLES), "add an example to tests/abuse/examples.py"


@pytest.mark.parametrize("path", EXAMPLES, ids=" ".join)
def test_an_example_works(path: tuple[str, ...], here: Path, tmp_path: Path) -> None:
    example = EXAMPLES[path]
    done = run(command(*example.line(path)), here, tmp_path / "notes")
    assert done.code == 0, done.err
    assert done.out.strip() or example.output
    for name in (example.output, *example.beside):
        assert name is None or (here / name).exists()
