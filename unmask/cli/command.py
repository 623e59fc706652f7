"""The class of every command: --quiet and --json, the model as an argument or an option, and checks before anything runs.

Outputs and inputs are found by the markers `Reads` and `Writes` in the annotations of options (unmask/cli/options.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from unmask.cli.options import ADVANCED, AsJson, Reads, Writes, complete_model
from unmask.errors import UnmaskError
from unmask.io.paths import expanded
from unmask.io.terminal import complain, output_mode, say

_TYPE_NAMES = {"int": "NUMBER", "float": "NUMBER", "str": "TEXT", "path": "FILE"}
_MODEL_ARGUMENT = typer.Argument(metavar="MODEL", help="The same as -m.", show_default=False, autocompletion=complete_model)


def _every_command(
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no messages.")] = False,
) -> None: ...
def _one_model(model_argument: Annotated[str | None, _MODEL_ARGUMENT] = None) -> None: ...
def _several_models(model_argument: Annotated[list[str] | None, _MODEL_ARGUMENT] = None) -> None: ...


@cache
def _parameters_of(function: Callable[..., None]) -> list[Any]:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return list(typer.main.get_command(app).params)


class Command(TyperCommand):
    """A command that checks its arguments before it runs.

    It refuses a repeated option, numbers that are not finite, and outputs that are an input, lie inside a model or cannot be written. A
    command without a parameter `as_json` passes its result to `tell_result`.
    """

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **options)
        names = [parameter.name for parameter in self.params]
        self._prints_json = "as_json" in names
        self.params += [parameter for parameter in _parameters_of(_every_command) if parameter.name not in names]
        hints = get_type_hints(self.callback, include_extras=True)
        self.outputs: dict[str, Writes] = dict(_find_markers(hints, Writes))
        self.inputs: dict[str, Reads] = dict(_find_markers(hints, Reads)) | {
            name: Reads() for name, hint in hints.items() if _is_path(hint) and name not in self.outputs
        }
        self.params.sort(key=lambda parameter: getattr(parameter, "rich_help_panel", None) == ADVANCED)
        model = next((parameter for parameter in self.params if parameter.name == "model"), None)
        self.requires_model = False
        if model is not None and not any(parameter.param_type_name == "argument" for parameter in self.params):
            self.requires_model, model.required = model.required, False
            self.params = [*_parameters_of(_several_models if model.multiple else _one_model), *self.params]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, refusing a second value of an option, which would replace the first silently."""
        order: list[Any] = self.make_parser(ctx).parse_args(list(args))[2]
        for option in set(order):
            if option.param_type_name == "option" and not (option.multiple or option.is_flag) and order.count(option) > 1:
                raise UnmaskError(f"{option.opts[0]} takes one value, but was given {order.count(option)} times.")
        rest = super().parse_args(ctx, args)
        argument = ctx.params.pop("model_argument", None)
        if argument and ctx.params["model"]:
            ctx.fail("The model is given by -m and as an argument. Give the model once.")
        if argument:
            ctx.params["model"] = argument
        if self.requires_model and not ctx.params["model"] and not ctx.resilient_parsing:
            ctx.fail("No model is given. Name one as an argument or with '--model' / '-m' (see `unmask models`).")
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Check the arguments, then run."""
        quiet = ctx.params.pop("quiet")
        as_json = not self._prints_json and ctx.params.pop("as_json")
        with output_mode(quiet=quiet, as_json=as_json):
            self._check_numbers(ctx)
            ctx.params.update({name: _expand_home(value) for name, value in ctx.params.items()})
            self.check_outputs(ctx.params)
            models = ctx.params.get("model")
            if models and not ctx.params.get("show_plan"):  # importing the libraries alone takes seconds
                say(f"loading {models if isinstance(models, str) else ', '.join(models)} ...")
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                complain("Stopped. Run the same command again to continue." if self.is_resumable(ctx.params) else "Stopped.")
                raise  # typer exits with 130

    def is_resumable(self, arguments: dict[str, Any]) -> bool:
        """Whether the same command continues a run that was stopped."""
        return any(
            output.resumable and output.is_folder(arguments[name])
            for name, output in self.outputs.items()
            if arguments[name] is not None
        )

    def check_outputs(self, arguments: dict[str, Any]) -> None:
        """Raise UnmaskError if an output is an input, lies inside a model that is read, or cannot be written."""
        from unmask.io.files import check_output

        outputs = {name: arguments[name] for name in self.outputs if arguments.get(name) is not None}
        for name, output in outputs.items():
            inputs = {key: list(_paths(arguments.get(key), kind)) for key, kind in self.inputs.items()}
            is_folder = self.outputs[name].is_folder(output)
            check_output(output, chain.from_iterable(inputs.values()), folder=is_folder)
            target = expanded(output).resolve()
            if not is_folder and target.exists() and self.outputs[name].folder is not None:
                for folder in chain.from_iterable(inputs.values()):
                    if expanded(folder).is_dir() and expanded(folder).resolve() in target.parents:
                        raise UnmaskError(f"'{output}' is a file of the input '{folder}', which the output would overwrite.")
            refuse_inside_models(output, [path for key, kind in self.inputs.items() if kind.is_model for path in inputs[key]])
        if len({output.resolve() for output in outputs.values()}) < len(outputs):
            raise UnmaskError(f"'{output}' is given for two outputs: give two files.")

    def _check_numbers(self, ctx: Any) -> None:
        """click accepts nan for any range, and integers of any size."""
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            for number in value if isinstance(value, list | tuple) else [value]:
                if (isinstance(number, float) and not math.isfinite(number)) or (
                    isinstance(number, int) and abs(number) >= 2**63
                ):
                    raise typer.BadParameter(f"{number} is not a finite number, or too large.", ctx, parameter)  # type: ignore[arg-type]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line. typer writes {FOLDER} for a required value, as if it were a choice."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, with plain names of their types."""
        return _with_type_names(super().get_params(ctx))


class Group(TyperGroup):
    """A command with subcommands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, with plain names of their types."""
        return _with_type_names(super().get_params(ctx))


def _with_type_names(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
            parameter.display_type_rich = lambda ctx: ""
        elif parameter.metavar is None:
            kind = str(parameter.display_type(None)).strip("<>").removeprefix("list[").rstrip("]").removesuffix(" range")
            parameter.metavar = "" if parameter.is_flag else _TYPE_NAMES.get(kind.lower(), kind)
    return parameters


def _find_markers(hints: dict[str, Any], marker: type) -> Iterator[tuple[str, Any]]:
    for name, hint in hints.items():
        for extra in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if isinstance(extra, marker):
                yield name, extra


def _is_path(hint: Any) -> bool:
    return hint is Path or any(_is_path(part) for part in get_args(hint))


def _expand_home(value: Any) -> Any:
    """The shell does not expand `~` in `--output=~/x`."""
    if isinstance(value, Path):
        return expanded(value)
    return [_expand_home(item) for item in value] if isinstance(value, list) else value


def model_paths(*names: str) -> list[Path]:
    """The local paths among names of models."""
    return list(_paths(names, Reads(is_model=True)))


def refuse_inside_models(output: Path, models: Iterable[Path]) -> None:
    """Raise UnmaskError for an output inside the folder of a model, where all files count as the model's."""
    target = expanded(output).resolve()
    for folder in models:
        if expanded(folder).is_dir() and expanded(folder).resolve() in target.parents:
            raise UnmaskError(
                f"'{output}' lies inside the model folder '{folder}', and new files there would change the model: "
                "give an output outside this folder."
            )


def _paths(value: Any, kind: Reads) -> Iterator[Path]:
    """The existing paths that an option names, in any of its forms: FILE, NAME=FILE, FOLDER:kind, FOLDER#200."""
    from unmask.models.bundled import BUNDLED

    if isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _paths(item, kind)
    elif isinstance(value, Path):
        yield value
    elif isinstance(value, str) and value.endswith(kind.suffix):
        unsampled = value.rpartition("#")[0] or value
        for text in (value, value.partition("=")[2], unsampled, unsampled.rpartition(":")[0]):
            path = expanded(text)
            if text and text not in BUNDLED and text != "starter" and os.path.exists(path):  # noqa: PTH110 (Path.exists fails on a long name)
                yield path
                if kind.is_task and path.is_file():  # a split of a task
                    yield path.parent
