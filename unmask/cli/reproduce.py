"""`unmask reproduce PAPER`: a paper's tables and figures, measured anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.lesson_options import showing
from unmask.cli.options import ModelOptions, with_model_options
from unmask.cli.outputs import Command, Group
from unmask.cli.train import Data, Settings, root_of

reproduce = typer.Typer(cls=Group, help="Measure a paper's tables and figures anew.", no_args_is_help=True)


@reproduce.command(
    "self-moe", cls=Command, epilog="Example: unmask reproduce self-moe --scale small -m smollm2 --data DATA -o self-moe"
)
@with_model_options
def self_moe(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the study; the same command goes on.")
    ],
    scale: Annotated[str, typer.Option(help="smoke (seconds), small (hours on a laptop) or paper (a GPU).")],
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Base model; repeat. The scale's if not given.")
    ] = None,
    settings: Settings = None,
    data: Data = None,
    *,
    options: Annotated[ModelOptions, "dtype", "device", "trust_remote_code"],
) -> None:
    """Self-MoE: main table, ablations, routing by domain, number of experts and of lessons, overhead (arXiv 2406.12034)."""
    from unmask.io.files import inside
    from unmask.io.terminal import console
    from unmask.studies.self_moe.plan import load_plan
    from unmask.studies.self_moe.report import write_report
    from unmask.studies.self_moe.run import study
    from unmask.studies.self_moe.tables import sheets

    plan = load_plan(scale, settings or [])
    for name in model or plan.models:
        folder = inside(output.expanduser(), _called(name))

        with showing() as callbacks:
            findings = study(
                plan,
                options.source(name),
                root_of(data),
                folder,
                lambda findings, place, name=name: write_report(findings, place, name, plan),  # type: ignore[misc]
                callbacks,
            )
        for sheet in sheets(findings):
            console().print(sheet.rich())
        print(f"Report: {folder / 'report.md'}")


def _called(model: str) -> str:
    """The last part of a model's name, or of its folder's, however that was given (`.`, `../x`)."""
    place = Path(model).expanduser()
    return place.resolve().name if place.exists() else place.name
