"""What all commands have in common: `app.command(cls=Command)` gives it to each, so that a new one cannot forget it.

Options: --quiet and --json, and the model as an argument or as an option. Checks: before a command does anything, its output is held
against everything that it reads. A new command has to say of each text option whether it names something to read
(tests/cli/test_outputs.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from unmask.cli.numbers import check_numbers
from unmask.cli.options import AsJson, complete_model
from unmask.errors import UnmaskError
from unmask.io.paths import expanded
from unmask.io.terminal import complain, output_mode, say

# what a command writes: FILE or FOLDER, as its metavar says
OUTPUTS = ("output", "held_out", "file")
# text options that name a file, a folder, a model or a task, with what may stand around its path: NAME=FILE, FOLDER:kind#200
READ = (
    "ability",
    "adapter",
    "base",
    "branch",
    "corpus",
    "data",
    "domain",
    "lessons",
    "model",
    "pairs",
    "recipe",
    "reference",
    "task",
    "texts",
    "train",
)
# options that name the folder of a model, whose files are its identity
MODELS = ("adapter", "base", "branch", "experts", "model", "reference", "start_from")
FILE, FOLDER, EITHER = "FILE", "FOLDER", "FILE|FOLDER"  # of either, a name without an ending is a folder
CONTINUES = "Run the same command again to continue"
"""The help of a command that can be stopped says this. So does the command itself when it is stopped."""
_PLAIN_TYPES = {"int": "NUMBER", "float": "NUMBER", "str": "TEXT", "path": "FILE"}
"""What our help shows for a type. An option that takes a folder says so itself."""


def _every_command(
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no messages.")] = False,
) -> None: ...


_MODEL_ARGUMENT = "model_argument"
_MODEL_HELP = "The model; the same as -m."


def _one_model(
    model_argument: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=_MODEL_HELP, show_default=False, autocompletion=complete_model)
    ] = None,
) -> None: ...


def _several_models(
    model_argument: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help=_MODEL_HELP, show_default=False, autocompletion=complete_model)
    ] = None,
) -> None: ...


@cache
def _parameters_of(function: Callable[..., None]) -> list[Any]:
    """The parameters of a function as typer makes them for a command."""
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return list(typer.main.get_command(app).params)


class Command(TyperCommand):
    """A command that checks what it was given, before it does anything.

    It refuses an option of one value that was given twice, numbers that are none, and an output which is an input, lies in a model or
    cannot be written.

    It has --quiet, and --json: a command without a parameter `as_json` passes its result to `tell_result`. Where no other argument is in
    the way, the model can be given as an argument in place of -m.
    """

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **options)
        names = [parameter.name for parameter in self.params]
        self._tells_json_itself = "as_json" in names
        self.params += [parameter for parameter in _parameters_of(_every_command) if parameter.name not in names]
        model = next((one for one in self.params if one.name == "model"), None)
        self.requires_model = False
        if model is not None and not any(one.param_type_name == "argument" for one in self.params):
            self.requires_model, model.required = model.required, False
            self.params = [*_parameters_of(_several_models if model.multiple else _one_model), *self.params]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check that no value would be dropped, then parse."""
        _refuse_second_values(self.make_parser(ctx).parse_args(list(args))[2])
        rest = super().parse_args(ctx, args)
        self._join_models(ctx)
        return rest

    def _join_models(self, ctx: Any) -> None:
        named = ctx.params.pop(_MODEL_ARGUMENT, None)
        if named and ctx.params["model"]:
            shown = ", ".join(f"'{name}'" for name in ([named] if isinstance(named, str) else named))
            ctx.fail(f"-m names a model, and an argument is another one: {shown}. Give the model once.")
        if named:
            ctx.params["model"] = named
        if self.requires_model and not ctx.params["model"] and not ctx.resilient_parsing:
            ctx.fail("No model is given. Name one as an argument or with '--model' / '-m' (see `unmask models`).")

    def invoke(self, ctx: Any) -> Any:
        """Check, then run."""
        quiet = ctx.params.pop("quiet")
        as_json = not self._tells_json_itself and ctx.params.pop("as_json")
        with output_mode(quiet=quiet, as_json=as_json):
            check_numbers(ctx, self.params)
            ctx.params.update({name: _at_home(value) for name, value in ctx.params.items()})
            check_outputs(self.params, ctx.params)
            models = ctx.params.get("model")
            if models and not ctx.params.get("show_plan"):  # at once: importing the libraries alone takes seconds
                say(f"loading {models if isinstance(models, str) else ', '.join(models)} ...")
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                complain(f"Stopped. {CONTINUES}." if self.continues(ctx.params) else "Stopped.")
                raise  # typer exits with 130

    def continues(self, given: dict[str, Any]) -> bool:
        """Whether the same command continues a run that was stopped. `embed` does so for a folder, and not for a file."""
        helps = [self.help, *(getattr(option, "help", None) for option in self.params)]
        if not any(CONTINUES in " ".join((text or "").split()) for text in helps):
            return False
        return not any(option.metavar == EITHER and Path(given[option.name]).suffix for option in self.params)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line. typer writes {FOLDER} for a value that is required, as if it were a choice."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, named for help."""
        return _with_plain_types(super().get_params(ctx))


class Group(TyperGroup):
    """A command that has commands of its own."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, named for help."""
        return _with_plain_types(super().get_params(ctx))


def _with_plain_types(parameters: list[Any]) -> list[Any]:
    """Name in help what each option and argument takes: upper case for a value that the user chooses, lower case for words to type.

    An option takes TEXT, NUMBER or FILE unless it has a better name, or one of its choices (token|sequence), or nothing (a flag). An
    argument shows its name, and no type beside it.
    """
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
            parameter.display_type_rich = lambda ctx: ""
        elif parameter.metavar is None:
            kind = str(parameter.display_type(None)).strip("<>").removeprefix("list[").rstrip("]").removesuffix(" range")
            parameter.metavar = "" if parameter.is_flag else _PLAIN_TYPES.get(kind.lower(), kind)
    return parameters


def _refuse_second_values(given: Sequence[Any]) -> None:
    """given: each option, as often as it was given. Of several values, the parser would keep the last and say nothing."""
    for option in set(given):
        if option.param_type_name == "option" and not (option.multiple or option.is_flag) and given.count(option) > 1:
            raise UnmaskError(f"{option.opts[0]} takes one value, and it was given {given.count(option)} times.")


def _at_home(value: Any) -> Any:
    """A value with the home folder in place of `~` in its paths: the shell leaves it in `--output=~/x`."""
    if isinstance(value, Path):
        return expanded(value)
    return [_at_home(one) for one in value] if isinstance(value, list) else value


def check_outputs(parameters: Sequence[Any], given: dict[str, Any]) -> None:
    """Raise UnmaskError if a command's output is one of its inputs, lies inside a model that it reads, or cannot be written."""
    from unmask.io.files import check_output

    for parameter in parameters:
        output = given.get(parameter.name)
        if parameter.name not in OUTPUTS or output is None:
            continue
        inputs = {name: list(_paths(name, value)) for name, value in given.items() if name not in OUTPUTS}
        folder = parameter.metavar == FOLDER or (parameter.metavar == EITHER and not Path(output).suffix)
        check_output(output, chain.from_iterable(inputs.values()), folder=folder)
        if parameter.metavar == EITHER:  # the job of `embed` knows which of the files of a folder it wrote itself
            inputs.pop("texts", None)
        if not folder:
            _refuse_part_of(output, chain.from_iterable(inputs.values()))
        refuse_inside_models(output, [path for name in MODELS for path in inputs.get(name, ())])
        others = [given[name] for name in OUTPUTS if name != parameter.name and given.get(name) is not None]
        if any(_is_same(output, other) for other in others):
            raise UnmaskError(f"'{output}' is given for two outputs, and the second would overwrite the first: give two files.")


def models_named(*names: str) -> list[Path]:
    """The paths among names of models: neither hub ids nor bundled models."""
    return list(_paths("model", names))


def refuse_inside_models(output: Path, models: Iterable[Path]) -> None:
    """Raise UnmaskError for an output inside the folder of a model or of its base: all files there count as weights and settings."""
    place = expanded(output).resolve()
    for folder in chain.from_iterable(_with_base(model) for model in models):
        if expanded(folder).is_dir() and expanded(folder).resolve() in place.parents:
            raise UnmaskError(
                f"'{output}' lies inside the model folder '{folder}', and new files there would make it another model: "
                "give an output outside this folder."
            )


def _with_base(model: Path) -> Iterator[Path]:
    """The folder of a model, and that of the base which an adapter or a mixture there names."""
    from unmask.models.source import Source, below

    yield model
    with suppress(UnmaskError):  # loading says what is wrong with the base
        base = below(expanded(model), Source(""))
        if base is not None and Path(base.model).is_absolute() and Path(base.model) != model:  # no hub id or bundled model
            yield from _with_base(Path(base.model))


def _paths(name: str, value: Any) -> Iterator[Path]:
    """What an option reads. A text counts where it names something on this disk, and nothing that this package brings along."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths(name, item)
    elif isinstance(value, Path):
        yield value
    elif isinstance(value, str) and name in READ:
        whole = value.rpartition("#")[0] or value
        for text in (value, value.partition("=")[2], whole, whole.rpartition(":")[0]):
            path = expanded(text)
            if text and not _comes_with_us(name, text) and os.path.exists(path):  # noqa: PTH110 (Path.exists fails on a long name)
                yield path
                if name == "task" and path.is_file():  # one split of a task, which stands for its folder
                    yield path.parent


def _comes_with_us(name: str, value: str) -> bool:
    """Whether this is a bundled model, a recipe, a domain or tasks of this package, whatever lies here under that name."""
    from unmask.models.bundled import BUNDLED

    if name == "recipe":
        return not value.endswith(".toml")
    if name == "domain":
        return (Path(__file__).parents[1] / "experts" / "lessons" / "domains" / f"{value}.toml").is_file()
    return value in BUNDLED or value == "starter"


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other) or (one.exists() and other.exists() and one.samefile(other))


def _refuse_part_of(output: Path, inputs: Iterable[Path]) -> None:
    """Raise UnmaskError for a file that exists inside a folder which the command reads: it may be what is read."""
    place = expanded(output).resolve()
    for folder in inputs:
        if place.exists() and expanded(folder).is_dir() and expanded(folder).resolve() in place.parents:
            raise UnmaskError(f"'{output}' is a file of the input '{folder}', and the output would overwrite it: give another.")
