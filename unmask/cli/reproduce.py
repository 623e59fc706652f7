"""`unmask reproduce STUDY`: a paper's tables and figures measured again, and our own studies."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.command import Command, Group
from unmask.cli.options import Data, ModelOptions, Models, OutputFolder, Settings, with_settings
from unmask.cli.train import data_root, show_settings, training_progress
from unmask.io.paths import expanded

if TYPE_CHECKING:
    from unmask.studies.sheet import Sheet

reproduce = typer.Typer(
    cls=Group,
    help="Repeat the experiments of a paper, or of router configurations, and test their claims.",
    epilog="Example: unmask reproduce moee --scale smoke -o moee",
    no_args_is_help=True,
)
Scale = Annotated[
    str,
    typer.Option(help="smoke (seconds), small (hours on a laptop) or paper (a GPU)."),
]
ShowPlan = Annotated[
    bool,
    typer.Option("--plan", help="Only print the plan as JSON: its settings after --set, and their allowed values."),
]


_STUDIES = (
    (
        "self-moe",
        "Self-MoE (arXiv 2406.12034): main table, ablations, routing by domain, numbers of experts and lessons, overhead.",
        'ablations=["layer routers"]',
    ),
    (
        "routers",
        "Router configurations (docs/router-study.md): which separate domains, predict better, and make better embeddings.",
        'configurations=["standard", "random"]',
    ),
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
)
"""Each study, what it measures, and an example of a setting."""


def _add_command(study: str, summary: str, setting: str) -> None:
    """Add the command of a study."""

    def command(
        scale: Scale,
        output: OutputFolder = Path(study),
        model: Models = [],  # noqa: B006 (typer copies it)
        settings: Settings = None,
        data: Data = None,
        show_plan: ShowPlan = False,
        *,
        options: Annotated[ModelOptions, "dtype", "device", "trust_remote_code"],
    ) -> None:
        from unmask.studies.study import Study, allowed_values, load_plan

        plan = load_plan(study, scale, settings or [])
        if show_plan:
            selected = plan.model_copy(update={"models": tuple(model)}) if model else plan
            show_settings(selected, allowed=allowed_values(study, plan))
            return

        def measure(name: str, folder: Path, callbacks: list[Any]) -> Iterable[Sheet]:
            part = load_plan(study, scale, settings or [], _last_part(name))
            # the command as a page shows it, without local paths
            words = ["unmask", "reproduce", study, "--scale", scale, "-m", _last_part(name) if Path(name).exists() else name]
            words += ["--data", "DATA"] if data or "UNMASK_DATA" in os.environ else []
            words += [] if options.dtype == "auto" else ["--dtype", options.dtype]
            words += [word for setting in settings or [] for word in ("--set", setting)]
            return (
                Study(
                    name=study,
                    scale=scale,
                    source=options.source(name),
                    root=data_root(data),
                    folder=folder,
                    command=shlex.join([*words, "-o", study]),
                    callbacks=callbacks,
                )
                .measure(part)
                .terminal_tables()
            )

        _run_on_models(model or plan.models, output, measure)

    help_of_set = f"Change a setting of the plan: key=value, such as '{setting}'. Repeat for several. --plan shows the keys."
    command.__annotations__["settings"] = Annotated[list[str] | None, typer.Option("--set", help=help_of_set)]
    example = f"Example: unmask reproduce {study} --scale small -m smollm2 --data DATA -o {study}"
    reproduce.command(study, cls=Command, help=summary, epilog=example)(with_settings(command))


for _study in _STUDIES:
    _add_command(*_study)


def _run_on_models(models: Iterable[str], output: Path, measure: Callable[[str, Path, list[Any]], Iterable[Sheet]]) -> None:
    """Run a study on each base model, in a subfolder, and print its tables."""
    from unmask.io.files import inside
    from unmask.io.terminal import console, tell_result
    from unmask.studies.results import REPORT, refuse_foreign_files

    folders = {name: inside(output, _last_part(name)) for name in models}
    for folder in folders.values():  # before hours of work on the first model
        refuse_foreign_files(folder)
    results = []
    for name, folder in folders.items():
        with training_progress() as callbacks:
            tables = list(measure(name, folder, callbacks))
        results.append({"model": name, "report": str(folder / REPORT), "tables": [asdict(sheet) for sheet in tables]})
        for sheet in tables:
            console().print(sheet.rich())
        print(f"Report: {folder / REPORT}")
        print(f"Next: unmask report {shlex.quote(str(folder))}")
    tell_result(results)


def _last_part(model: str) -> str:
    """The last part of a model's name or path, which may be `.` or `../x`."""
    path = expanded(model)
    return path.resolve().name if path.exists() else path.name
