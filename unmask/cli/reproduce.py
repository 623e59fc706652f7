"""`unmask reproduce STUDY`: the tables and figures of a paper or of a study of this project, measured again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.command import Command, Group
from unmask.cli.options import Data, ModelOptions, Models, OutputFolder, Settings, with_settings
from unmask.cli.train import data_root, show_settings, training_progress
from unmask.io.paths import expanded

if TYPE_CHECKING:
    from unmask.studies.plans import WholePlan
    from unmask.studies.sheet import Sheet

reproduce = typer.Typer(
    cls=Group,
    help="Repeat the experiments of a paper, or of router configurations, and test their claims.",
    epilog="Example: unmask reproduce moee --scale smoke -o moee",
    no_args_is_help=True,
)
Scale = Annotated[
    str,
    typer.Option(
        help="smoke (seconds), small (hours on a laptop) or paper (a GPU; --plan shows its differences from the paper)."
    ),
]
ShowPlan = Annotated[
    bool,
    typer.Option("--plan", help="Only print the plan as JSON: its settings after --set, and their allowed values."),
]


def _with_example(setting: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Show a setting of the study's plan in the help of --set."""
    about = f"Change a setting of the plan: key=value, such as '{setting}'. Repeat for several. --plan shows the keys."

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command.__annotations__["settings"] = Annotated[list[str] | None, typer.Option("--set", help=about)]
        return command

    return decorate


@reproduce.command(
    "self-moe", cls=Command, epilog="Example: unmask reproduce self-moe --scale small -m smollm2 --data DATA -o self-moe"
)
@with_settings
@_with_example('ablations=["layer routers"]')
def self_moe(
    scale: Scale,
    output: OutputFolder = Path("self-moe"),
    model: Models = [],  # noqa: B006 (typer copies it)
    settings: Settings = None,
    data: Data = None,
    show_plan: ShowPlan = False,
    *,
    options: Annotated[ModelOptions, "dtype", "device", "trust_remote_code"],
) -> None:
    """Self-MoE (arXiv 2406.12034): main table, ablations, routing by domain, numbers of experts and lessons, overhead."""
    from unmask.studies.self_moe.plan import ABLATIONS, load_plan
    from unmask.studies.self_moe.report import write_report
    from unmask.studies.self_moe.run import Findings, study
    from unmask.studies.self_moe.tables import sheets

    plan = load_plan(scale, settings or [])
    if show_plan:
        _show(plan, model, ablations=ABLATIONS)
        return

    def run(name: str, folder: Path, callbacks: list[Any]) -> Iterable[Sheet]:
        def write(findings: Findings, folder: Path) -> list[Sheet]:
            return write_report(findings, folder, name, plan)

        command = _command("self-moe", scale, name, settings, data, options.dtype)
        return sheets(
            study(plan, options.source(name), data_root(data), folder, write, callbacks=callbacks, command=command, scale=scale)
        )

    _each(model or plan.models, output, run)


@reproduce.command(
    "routers", cls=Command, epilog="Example: unmask reproduce routers --scale small -m smollm2 --data DATA -o routers"
)
@with_settings
@_with_example('configurations=["standard", "random"]')
def routers(
    scale: Scale,
    output: OutputFolder = Path("routers"),
    model: Models = [],  # noqa: B006 (typer copies it)
    settings: Settings = None,
    data: Data = None,
    show_plan: ShowPlan = False,
    *,
    options: Annotated[ModelOptions, "dtype", "device", "trust_remote_code"],
) -> None:
    """Router configurations (docs/router-study.md): which tell domains apart, predict better, and make better embeddings."""
    from unmask.errors import require_package
    from unmask.studies.routers.configurations import CONFIGURATIONS
    from unmask.studies.routers.findings import Findings
    from unmask.studies.routers.plan import load_plan
    from unmask.studies.routers.report import sheets, write_report
    from unmask.studies.routers.run import study
    from unmask.tasks.find import resolve_tasks, specs_below

    plan = load_plan(scale, settings or [])
    if show_plan:
        _show(plan, model, configurations=CONFIGURATIONS)
        return
    require_package("mteb")
    root = data_root(data)
    tasks = resolve_tasks(specs_below(root, plan.tasks))

    def run(name: str, folder: Path, callbacks: list[Any]) -> Iterable[Sheet]:
        def write(findings: Findings, folder: Path) -> list[Sheet]:
            return write_report(findings, folder, name, plan)

        source = replace(options.source(name), attn_implementation=plan.attn_implementation)
        command = _command("routers", scale, name, settings, data, options.dtype)
        return sheets(study(plan, source, root, tasks, folder, write, callbacks=callbacks, command=command, scale=scale))

    _each(model or plan.models, output, run)


def _of_embedders(study_name: str, about: str, setting: str) -> None:
    """Add the command of a study that compares embedders."""

    @reproduce.command(
        study_name, cls=Command, help=about,
        epilog=f"Example: unmask reproduce {study_name} --scale small -m smollm2 --data DATA -o {study_name}",
    )  # fmt: skip
    @with_settings
    @_with_example(setting)
    def command(
        scale: Scale,
        output: OutputFolder = Path(study_name),
        model: Models = [],  # noqa: B006 (typer copies it)
        settings: Settings = None,
        data: Data = None,
        show_plan: ShowPlan = False,
        *,
        options: Annotated[ModelOptions, "dtype", "device", "trust_remote_code"],
    ) -> None:
        from unmask.errors import require_package
        from unmask.studies.embedders.plan import load_plan
        from unmask.studies.embedders.report import sheets, write_report
        from unmask.studies.embedders.run import study

        plan = load_plan(study_name, scale, settings or [])
        if show_plan:
            _show(plan, model, only=plan.embedders)
            return
        require_package("mteb")

        def run(name: str, folder: Path, callbacks: list[Any]) -> Iterable[Sheet]:
            command = _command(study_name, scale, name, settings, data, options.dtype)
            part, source = load_plan(study_name, scale, settings or [], _called(name)), options.source(name)
            return sheets(
                study(part, scale, source, data_root(data), folder, write_report, callbacks=callbacks, command=command)
            )

        _each(model or plan.models, output, run)


for _study, _about, _setting in (
    (
        "llm2vec",
        "LLM2Vec (arXiv 2404.05961): each stage of training, and each stage left out, with three poolings.",
        'only=["uni", "mntp"]',
    ),
    (
        "moee",
        "MoEE (arXiv 2410.10814): hidden states, routing weights and both, with and without a prompt.",
        'only=["hidden-z", "routing-z"]',
    ),
    (
        "pooling-and-attention",
        "Pooling and Attention (arXiv 2409.02727): five designs, controls, changed heads, and data with labels.",
        'only=["untrained EOS", "design 1", "design 5"]',
    ),
):
    _of_embedders(_study, _about, _setting)


def _show(plan: WholePlan, models: list[str], **names: Iterable[str]) -> None:
    """Print a plan. names: allowed values by setting."""
    chosen = plan.model_copy(update={"models": tuple(models)}) if models else plan
    show_settings(chosen, allowed={key: list(values) for key, values in names.items()})


def _each(models: Iterable[str], output: Path, run: Callable[[str, Path, list[Any]], Iterable[Sheet]]) -> None:
    """Run a study on each base model, in a subfolder, and print its tables."""
    from unmask.io.files import inside
    from unmask.io.terminal import console, tell_result
    from unmask.studies.results import REPORT, refuse_foreign_files

    folders = {name: inside(output, _called(name)) for name in models}
    for folder in folders.values():  # before hours of work on the first model
        refuse_foreign_files(folder)
    results = []
    for name, folder in folders.items():
        with training_progress() as callbacks:
            tables = list(run(name, folder, callbacks))
        results.append({"model": name, "report": str(folder / REPORT), "tables": [asdict(sheet) for sheet in tables]})
        for sheet in tables:
            console().print(sheet.rich())
        print(f"Report: {folder / REPORT}")
        print(f"Next: unmask report {shlex.quote(str(folder))}")
    tell_result(results)


def _command(study: str, scale: str, model: str, settings: list[str] | None, data: Path | None, dtype: str) -> str:
    """The command of a run as a page shows it, without local paths."""
    words = ["unmask", "reproduce", study, "--scale", scale, "-m", _shown(model)]
    words += ["--data", "DATA"] if data or "UNMASK_DATA" in os.environ else []
    words += [] if dtype == "auto" else ["--dtype", dtype]
    words += [word for setting in settings or [] for word in ("--set", setting)]
    return shlex.join([*words, "-o", study])


def _shown(model: str) -> str:
    """A model as a command on a page: only the name of a folder that is not below the current one."""
    path = Path(model)
    is_elsewhere = path.is_absolute() or ".." in path.parts or path == Path()
    return _called(model) if is_elsewhere and path.exists() else model


def _called(model: str) -> str:
    """The last part of a model's name or path, which may be `.` or `../x`."""
    path = expanded(model)
    return path.resolve().name if path.exists() else path.name
