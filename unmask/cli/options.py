"""Options that several commands share, and groups of options that a command receives as one settings object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer

from unmask.designs.design import Attention
from unmask.encoding.quantization import Precision
from unmask.errors import UnmaskError
from unmask.moe import names

if TYPE_CHECKING:
    from unmask.encoding.encoder import Encoder
    from unmask.models.loading import Source
    from unmask.training.lora import LoraOptions

ADVANCED = "Advanced options"
MAX_STEPS, MAX_TEXTS, MAX_TOKENS, MAX_SEED = 10_000_000, 1_000_000, 1_000_000_000, 2**32 - 1


@dataclass(frozen=True)
class Reads:
    """Marks a text option that can name a file or folder. suffix: other values are names, not paths."""

    is_model: bool = False
    is_task: bool = False
    suffix: str = ""


@dataclass(frozen=True)
class Writes:
    """Marks an output. folder: None if it is a folder unless its name has a suffix. resumable: the same command continues."""

    folder: bool | None = True
    resumable: bool = False

    def is_folder(self, output: Path) -> bool:
        """Whether the command writes a folder."""
        return not output.suffix if self.folder is None else self.folder


def complete_model(incomplete: str) -> list[str]:
    """Complete names of bundled models. The shell completes folders."""
    from unmask.models.bundled import BUNDLED

    return [name for name in BUNDLED if name.startswith(incomplete)]


def complete_design(incomplete: str) -> list[str]:
    """Complete names of designs, also after a comma."""
    from unmask.designs.presets import PRESETS, SETS

    complete, comma, last = incomplete.rpartition(",")
    return [complete + comma + name for name in [*PRESETS, *SETS] if name.startswith(last)]


Model = Annotated[
    str,
    Reads(is_model=True),
    typer.Option("--model", "-m", help="Hub id, folder or bundled name (see `unmask models`).", autocompletion=complete_model),
]
Models = Annotated[
    list[str],
    Reads(is_model=True),
    typer.Option(
        "--model", "-m", help="Hub id, folder or bundled name. Repeat for several models.", autocompletion=complete_model
    ),
]
Design = Annotated[
    str | None,
    typer.Option(
        "--design",
        "-d",
        help="A design (see `unmask designs`). Default: the saved embedder's design, or a common one.",
        autocompletion=complete_design,
    ),
]
Designs = Annotated[
    list[str] | None,
    typer.Option(
        "--designs",
        "-d",
        help="Designs or sets of designs (see `unmask designs`), separated by commas. LABEL=DESIGN gives a design a label. "
        "Default: the saved embedder's design, or common ones.",
        autocompletion=complete_design,
    ),
]
Tasks = Annotated[
    list[str],
    Reads(is_task=True),
    typer.Option(
        "--task",
        "-t",
        help="FOLDER, FOLDER:kind, FOLDER#200 (a sample of 200 items), a task or task set of mteb, `starter` or starter:NAME. "
        "Repeat for several.",
    ),
]
OutputFolder = Annotated[
    Path,
    Writes(resumable=True),
    typer.Option("--output", "-o", metavar="FOLDER", help="Output folder. Run the same command again to continue."),
]
OptionalFolder = Annotated[
    Path | None, Writes(), typer.Option("--output", "-o", metavar="FOLDER", help="Output folder.", show_default=False)
]
NewFolder = Annotated[Path, Writes(), typer.Option("--output", "-o", metavar="FOLDER", help="New folder for the result.")]
OutputFile = Annotated[Path, Writes(folder=False), typer.Option("--output", "-o", metavar="FILE", help="Output file (jsonl).")]
Texts = Annotated[Path, typer.Argument(help="File of texts: txt (one text per line), jsonl, csv, tsv or parquet.")]
TextsOption = Annotated[
    Path | None,
    typer.Option(help="File of texts: txt, jsonl, csv, tsv or parquet. Default: sentences that come with unmask."),
]
Column = Annotated[str, typer.Option(help="Column that holds the text.")]
IdColumn = Annotated[
    str | None,
    typer.Option(help="Column that identifies a row. Default: _id or id if an index is built, else file and row number."),
]
Precisions = Annotated[Precision | None, typer.Option(help="Number format of the vectors. Default: float32.")]
Instruction = Annotated[str | None, typer.Option(help="Text that replaces {instruction} in the prompt.")]
FitOn = Annotated[
    Path | None,
    typer.Option(
        help="File of texts to fit zscore, whiten, alpha and idf on. Default: sentences that come with unmask.",
        rich_help_panel=ADVANCED,
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use at most this many rows, sampled at random with a fixed seed.")]
Lessons = Annotated[
    list[str], Reads(), typer.Option(metavar="NAME=FILE", help="Lessons of one domain. Repeat for each domain.")
]
Number = Annotated[int, typer.Option("--number", "-n", min=1, max=MAX_TEXTS, help="How many lessons to produce.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Random seed.", rich_help_panel=ADVANCED)]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run on the Ray cluster at this address; 'local' starts one on this machine.",
        rich_help_panel=ADVANCED,
    ),
]
Base = Annotated[str | None, Reads(is_model=True), typer.Option(help="Base model, if the experts do not name it.")]
Scale = Annotated[
    str | None,
    typer.Option(
        help="smoke (seconds), small (hours on a laptop) or paper (as published, on a GPU). Required if there are scales."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: key=value, such as simcse.steps=100. Repeat for several."),
]
Data = Annotated[
    Path | None,
    Reads(),
    typer.Option(metavar="FOLDER", help="Folder that data paths are relative to. Default: UNMASK_DATA, or the current folder."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Check = Annotated[bool, typer.Option("--check", help="Load the model, check everything, and exit.")]
AttentionOption = Annotated[
    Attention | None,
    typer.Option("--attention", "-a", help="Attention of the model. Required unless it is a saved embedder."),
]
Label = Annotated[str | None, typer.Option(help="Column of labels: gold clusters, or the colours of a map.")]
Layer = Annotated[int | None, typer.Option(min=1, help="Layer to read. Default: the last one, after the final norm.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]


@dataclass(frozen=True)
class ModelOptions:
    """How to load a model and encode texts with it, named as the arguments of `Embedder.from_pretrained`."""

    PANEL: ClassVar[str] = "Model options"

    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens of a text, prompt included. Default: the saved embedder's value, or 512."),
    ] = None
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of a batch. Default: chosen for the device.")
    ] = None
    adapter: Annotated[
        list[str] | None,
        Reads(is_model=True),
        typer.Option(help="PEFT adapter to load: folder or hub id. Repeat for a stack of adapters, lowest first."),
    ] = None
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the model on the hub.")] = None
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, or auto: bfloat16 if the device is fast at it, else float32.")
    ] = "auto"
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "auto"
    device_map: Annotated[
        str | None,
        typer.Option(
            help="Spread the model over GPUs, main memory and disk, in place of --device: auto, balanced, a table as JSON, or FILE.json."
        ),
    ] = None
    quantize: Annotated[
        str | None, typer.Option(help="Quantise the weights: 8bit (package torchao) or 4bit (package bitsandbytes).")
    ] = None
    attn_implementation: Annotated[
        str | None, typer.Option("--attn", help="Attention implementation: sdpa or eager. Default: sdpa if supported.")
    ] = None
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Run Python code that comes with the models you name. UNMASK_TRUST_CODE_OF allows code of further models.",
        ),
    ] = False

    def source(self, model: str) -> Source:
        """The model and how to load it."""
        from unmask.models.loading import Source
        from unmask.models.placement import as_device_map

        return Source(
            model,
            self.revision,
            tuple(self.adapter or ()),
            dtype=self.dtype,
            device=self.device,
            device_map=as_device_map(self.device_map),
            quantize=self.quantize,
            attn_implementation=self.attn_implementation,
            trust_remote_code=self.trust_remote_code,
        )

    def encoder(self, model: str, attention: Attention | None, *, predicts: bool = False) -> Encoder:
        """Load the model, without a design."""
        from unmask.saving.load_model import load_encoder

        limits = {"max_length": self.max_length, "batch_tokens": self.batch_tokens}
        return load_encoder(self.source(model), attention, **limits, predicts=predicts)


LOADING = ("revision", "dtype", "device", "device_map", "quantize", "attn_implementation", "trust_remote_code")
"""Names of the options that say how to load a model."""
LoadOptions = Annotated[ModelOptions, *LOADING]
"""For commands that read neither adapters nor texts."""


@dataclass(frozen=True)
class LearningOptions:
    """How to train on lessons, named as the fields of `Learning`. None is the default of an expert or router."""

    PANEL: ClassVar[str] = "Training options"

    steps: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_STEPS, help="Optimiser steps. Default: 96 for an expert, 48 for a router, 192 for joint training."
        ),
    ] = None
    batch: Annotated[int, typer.Option(min=1, max=MAX_TEXTS, help="Lessons per step.")] = 8
    accumulate: Annotated[
        int, typer.Option(min=1, max=MAX_TEXTS, help="Forward passes per step; more of them save memory.")
    ] = 1
    lr: Annotated[float | None, typer.Option(help="Peak learning rate. Default: 3e-4 for experts, 1e-2 for a router.")] = None
    max_length: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="Maximum tokens of a lesson.")] = 512
    average: Annotated[names.LossAverage, typer.Option(help="Average the loss over examples or tokens.")] = "example"
    seed: Seed = 0


@dataclass(frozen=True)
class LoraSettings:
    """Size of new LoRA experts."""

    PANEL: ClassVar[str] = "Training options"

    r: Annotated[int, typer.Option(min=1, help="Rank of a new LoRA.")] = 8
    alpha: Annotated[float, typer.Option(help="A new LoRA is scaled by alpha / r.")] = 16

    def lora(self) -> LoraOptions:
        """The options of the training."""
        from unmask.errors import in_one_sentence
        from unmask.training.lora import LoraOptions

        with in_one_sentence():
            return LoraOptions(r=self.r, alpha=self.alpha)


def refuse_options(context: typer.Context, options: Collection[str], reason: str) -> None:
    """Raise UnmaskError if one of these options is given, since it would change nothing."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in options and source is not None and source.name == "COMMANDLINE":
            raise UnmaskError(f"{parameter.opts[0]} {reason}")


def parse_named(option: str, values: Collection[str], form: str = "NAME=FILE") -> dict[str, str]:
    """Parse repeated NAME=VALUE options; names are unique."""
    by_name: dict[str, str] = {}
    for value in values:
        name, _, text = value.partition("=")
        if not name or not text:
            raise UnmaskError(f"--{option} takes {form}, not '{value}'.")
        if name in by_name:
            raise UnmaskError(f"--{option} names '{name}' twice.")
        by_name[name] = text
    return by_name


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer the fields of settings objects as options, and pass the objects to the command.

    A parameter annotated with a dataclass becomes one option per field; `Annotated[Group, "field", ...]` selects fields.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, tuple[Any, tuple[str, ...]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        parts: tuple[Any, ...] = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        group, selected = parts[0], parts[1:]
        if not hasattr(group, "PANEL"):
            parameters.append(parameter)
            continue
        hints = get_type_hints(group, include_extras=True)
        selection = selected or tuple(field.name for field in fields(group))
        groups[parameter.name] = (group, selection)
        for field in fields(group):
            if field.name in selection:
                for info in get_args(hints[field.name]):
                    if isinstance(info, typer.models.OptionInfo):
                        info.rich_help_panel = info.rich_help_panel or group.PANEL
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name]))
    if not groups:
        return command
    parameters.sort(key=lambda parameter: parameter.kind)

    @wraps(command)
    def run(**arguments: Any) -> None:
        settings = {
            name: group(**{field: arguments.pop(field) for field in selection}) for name, (group, selection) in groups.items()
        }
        command(**arguments, **settings)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
