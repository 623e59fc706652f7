"""`unmask reproduce STUDY`: a paper's tables and figures measured anew, and studies of our own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.lesson_options import showing
from unmask.cli.options import ModelOptions, with_model_options
from unmask.cli.outputs import Command, Group
from unmask.cli.train import Data, Settings, root_of

if TYPE_CHECKING:
    from unmask.studies.sheet import Sheet

reproduce = typer.Typer(
    cls=Group, help="Measure a paper's tables and figures anew, and questions that papers left open.", no_args_is_help=True
)
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the study; the same command goes on.")
]
Scale = Annotated[str, typer.Option(help="smoke (seconds), small (hours on a laptop) or paper (a GPU).")]
Models = Annotated[list[str] | None, typer.Option("--model", "-m", help="Base model; repeat. The scale's if not given.")]


@reproduce.command(
    "self-moe", cls=Command, epilog="Example: unmask reproduce self-moe --scale small -m smollm2 --data DATA -o self-moe"
)
@with_model_options
def self_moe(
    output: Output,
    scale: Scale,
    model: Models = None,
    settings: Settings = None,
    data: Data = None,
    *,
    options: Annotated[ModelOptions, "dtype", "device", "trust_remote_code"],
) -> None:
    """Self-MoE: main table, ablations, routing by domain, number of experts and of lessons, overhead (arXiv 2406.12034)."""
    from unmask.studies.self_moe.plan import load_plan
    from unmask.studies.self_moe.report import write_report
    from unmask.studies.self_moe.run import Findings, study
    from unmask.studies.self_moe.tables import sheets

    plan = load_plan(scale, settings or [])

    def run(name: str, folder: Path, callbacks: list[Any]) -> Iterable[Sheet]:
        def write(findings: Findings, place: Path) -> list[Sheet]:
            return write_report(findings, place, name, plan)

        command = _command("self-moe", scale, name, settings, data, options.dtype)
        return sheets(study(plan, options.source(name), root_of(data), folder, write, callbacks, command, scale))

    _each(model or plan.models, output, run)


@reproduce.command(
    "routers", cls=Command, epilog="Example: unmask reproduce routers --scale small -m smollm2 --data DATA -o routers"
)
@with_model_options
def routers(
    output: Output,
    scale: Scale,
    model: Models = None,
    settings: Settings = None,
    data: Data = None,
    *,
    options: Annotated[ModelOptions, "dtype", "device", "trust_remote_code"],
) -> None:
    """Router configurations: which give distinct routing, which predict better, which make better embeddings (docs/routers.md)."""
    from unmask.errors import require_package
    from unmask.studies.routers.findings import Findings
    from unmask.studies.routers.plan import load_plan
    from unmask.studies.routers.report import sheets, write_report
    from unmask.studies.routers.run import study
    from unmask.tasks.find import resolve_tasks, specs_below

    require_package("mteb")
    plan, root = load_plan(scale, settings or []), root_of(data)
    tasks = resolve_tasks(specs_below(root, plan.tasks))

    def run(name: str, folder: Path, callbacks: list[Any]) -> Iterable[Sheet]:
        def write(findings: Findings, place: Path) -> list[Sheet]:
            return write_report(findings, place, name, plan)

        source = replace(options.source(name), attn_implementation=plan.attn_implementation)
        command = _command("routers", scale, name, settings, data, options.dtype)
        return sheets(study(plan, source, root, tasks, folder, write, callbacks, command, scale))

    _each(model or plan.models, output, run)


def _of_embedders(study_name: str, about: str) -> None:
    """Add the command of a study that compares embedders."""

    @reproduce.command(
        study_name, cls=Command, help=about,
        epilog=f"Example: unmask reproduce {study_name} --scale small -m smollm2 --data DATA -o {study_name}",
    )  # fmt: skip
    @with_model_options
    def command(
        output: Output,
        scale: Scale,
        model: Models = None,
        settings: Settings = None,
        data: Data = None,
        *,
        options: Annotated[ModelOptions, "dtype", "device", "trust_remote_code"],
    ) -> None:
        from unmask.errors import require_package
        from unmask.studies.embedders.plan import load_plan
        from unmask.studies.embedders.report import sheets, write_report
        from unmask.studies.embedders.run import study

        require_package("mteb")
        plan = load_plan(study_name, scale, settings or [])

        def run(name: str, folder: Path, callbacks: list[Any]) -> Iterable[Sheet]:
            command = _command(study_name, scale, name, settings, data, options.dtype)
            part, source = load_plan(study_name, scale, settings or [], _called(name)), options.source(name)
            return sheets(study(part, scale, source, root_of(data), folder, write_report, callbacks, command))

        _each(model or plan.models, output, run)


for _study, _about in (
    ("llm2vec", "LLM2Vec: each stage of the recipe, and each stage left out, under three poolings (arXiv 2404.05961)."),
    (
        "moee",
        "MoEE: hidden states, routing weights and both, standardised alike, with and without a prompt (arXiv 2410.10814).",
    ),
    (
        "pooling-and-attention",
        "Pooling and Attention: five designs, controls, parts of the head left out or enlarged, data with labels (arXiv 2409.02727).",
    ),
):
    _of_embedders(_study, _about)


def _each(models: Iterable[str], output: Path, run: Callable[[str, Path, list[Any]], Iterable[Sheet]]) -> None:
    """Run a study on each base model, in a folder of its own, and print its tables."""
    from unmask.io.files import inside
    from unmask.io.terminal import console

    for name in models:
        folder = inside(output.expanduser(), _called(name))
        with showing() as callbacks:
            tables = run(name, folder, callbacks)
        for sheet in tables:
            console().print(sheet.rich())
        print(f"Report: {folder / 'report.md'}")
        print(f"Look at it next: unmask report {shlex.quote(str(folder))}")


def _command(study: str, scale: str, model: str, settings: list[str] | None, data: Path | None, dtype: str) -> str:
    """The command of a run, as a page shows it: without the places of one machine."""
    words = ["unmask", "reproduce", study, "--scale", scale, "-m", _called(model) if Path(model).exists() else model]
    words += ["--data", "DATA"] if data or "UNMASK_DATA" in os.environ else []
    words += [] if dtype == "auto" else ["--dtype", dtype]
    words += [word for setting in settings or [] for word in ("--set", setting)]
    return shlex.join([*words, "-o", study])


def _called(model: str) -> str:
    """The last part of a model's name, or of its folder's, however that was given (`.`, `../x`)."""
    place = Path(model).expanduser()
    return place.resolve().name if place.exists() else place.name
