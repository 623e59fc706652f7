"""Outputs: before a command does anything, its output is held against everything that it reads.

`command` and `app.command(cls=Command)` do this for every command, so that a new one cannot forget it: it has to say of each
text option whether it names something to read (tests/test_outputs.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from click import Context, Parameter

# what a command writes: FILE or FOLDER, as its metavar says
OUTPUTS = ("output", "held_out", "file")
# text options that name a file, a folder, a model or a task, with what may stand around its path: NAME=FILE, FOLDER:kind#200
READ = (
    "ability",
    "adapter",
    "base",
    "corpus",
    "data",
    "domain",
    "lessons",
    "model",
    "pairs",
    "recipe",
    "reference",
    "task",
    "train",
)
FILE, FOLDER = "FILE", "FOLDER"


class Command(TyperCommand):
    """A command that refuses an output which is one of its inputs, or which cannot be written, before it does anything."""

    def invoke(self, ctx: Context) -> Any:
        """Check, then run."""
        check_outputs(self.params, ctx.params)
        return super().invoke(ctx)


def check_outputs(parameters: list[Parameter], given: dict[str, Any]) -> None:
    """Raise UnmaskError if a command's output is one of its inputs, or cannot be written."""
    from unmask.files import check_output

    for parameter in parameters:
        output = given.get(parameter.name or "")
        if parameter.name not in OUTPUTS or output is None:
            continue
        inputs = [path for name, value in given.items() if name != parameter.name for path in _paths(name, value)]
        check_output(output, inputs, folder=parameter.metavar == FOLDER)
        if parameter.metavar == FILE:
            _refuse_part_of(output, inputs)


def _paths(name: str, value: Any) -> Iterator[Path]:
    """What an option reads. A text counts where it names something on this disk, and nothing that this package brings along."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _paths(name, one)
    elif isinstance(value, Path):
        yield value
    elif isinstance(value, str) and name in READ and not _comes_with_us(value):
        before_limit = value.rpartition("#")[0]
        for text in (value, value.partition("=")[2], before_limit, value.rpartition(":")[0], before_limit.rpartition(":")[0]):
            path = Path(text).expanduser()
            if text and "\0" not in text and path.exists():
                yield path
                if name == "task" and path.is_file():  # one split of a task, which stands for its folder
                    yield path.parent


def _comes_with_us(name: str) -> bool:
    """Whether a bundled model, a recipe or a domain of this package has this name: a folder of that name is then not read."""
    from unmask.models import BUNDLED

    return name in BUNDLED or name == "starter" or any(Path(__file__).parents[1].glob(f"*/*/{name}.toml"))


def _refuse_part_of(output: Path, inputs: list[Path]) -> None:
    """Raise UnmaskError for a file that exists inside a folder which the command reads: it may be what is read."""
    from unmask.errors import UnmaskError

    place = output.expanduser().resolve()
    for folder in inputs:
        if place.exists() and folder.expanduser().is_dir() and folder.expanduser().resolve() in place.parents:
            raise UnmaskError(f"'{output}' is a file of the input '{folder}', and the output would overwrite it: give another.")
