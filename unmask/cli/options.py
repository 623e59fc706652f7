"""Options that several commands share: one declaration for code, help and docs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.models.loading import Source


def complete_model(incomplete: str) -> list[str]:
    """Bundled models that begin so, for tab completion. The shell itself completes folders."""
    from unmask.models.bundled import BUNDLED

    return [name for name in BUNDLED if name.startswith(incomplete)]


def complete_design(incomplete: str) -> list[str]:
    """Named designs that begin so, for tab completion; also after a comma."""
    from unmask.designs.presets import PRESETS, SETS

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in [*PRESETS, *SETS] if name.startswith(last)]


Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Hub id, folder or bundled name (see `unmask models`).", autocompletion=complete_model),
]
Design = Annotated[
    str | None,
    typer.Option(
        "--design",
        "-d",
        help="A design (see `unmask designs`). Default: the saved embedder's design, or prompteol.",
        autocompletion=complete_design,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]


@dataclass(frozen=True)
class ModelOptions:
    """How a command loads a model and reads texts with it. The fields are named as `Embedder.from_pretrained` names them.

    A command takes them as its keyword argument `options`.
    """

    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length", min=1, help="Longest input in tokens, prompt included. Default: the saved embedder's value, or 512."
        ),
    ] = None
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in one batch. Default: chosen for the device.")
    ] = None
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            help="PEFT adapter to load with the model: folder or hub id. Repeat for adapters that were trained on top of each other, "
            "the lowest first."
        ),
    ] = None
    revision: Annotated[str | None, typer.Option(help="Revision of the model on the hub: branch, tag or commit.")] = None
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, or auto: bfloat16 if the device is fast at it, else float32.")
    ] = "auto"
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "auto"
    attn_implementation: Annotated[
        str | None,
        typer.Option("--attn", help="Attention implementation: sdpa or eager. Default: sdpa where the model supports it."),
    ] = None
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Run the Python code that comes with the models you name. Code of other models runs only if UNMASK_TRUST_CODE_OF "
            "lists them.",
        ),
    ] = False

    def source(self, model: str) -> Source:
        """Where a model comes from, and how to load it."""
        from unmask.models.loading import Source

        return Source(
            model,
            self.revision,
            tuple(self.adapter or ()),
            dtype=self.dtype,
            device=self.device,
            attn_implementation=self.attn_implementation,
            trust_remote_code=self.trust_remote_code,
        )


LoadOptions = Annotated[ModelOptions, "revision", "dtype", "device", "attn_implementation", "trust_remote_code"]
"""Options of a command that loads a model without an adapter and reads no texts with it. The other fields keep their defaults."""


def refuse_given(context: typer.Context, names: Collection[str], told: str) -> None:
    """Raise UnmaskError if one of these options was given, since it would change nothing. told: what the error says after its name."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is not None and source.name == "COMMANDLINE":
            raise UnmaskError(f"{option.opts[0]} {told}")


def with_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer has to see it: in place of `options`, an option for each field that its annotation names (default: all)."""
    signature = inspect.signature(command, eval_str=True)
    if "options" not in signature.parameters:
        return command
    hints, defaults = get_type_hints(ModelOptions, include_extras=True), ModelOptions()
    names = get_args(signature.parameters["options"].annotation)[1:] or tuple(hints)
    fields = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, name), annotation=hints[name])
        for name in names
    ]
    parameters = [new for old in signature.parameters.values() for new in (fields if old.name == "options" else [old])]

    @wraps(command)
    def run(**given: Any) -> None:
        own = {name: given.pop(name) for name in names}
        command(**given, options=ModelOptions(**own))

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
