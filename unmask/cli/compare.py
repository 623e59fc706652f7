"""`unmask compare` and `unmask recommend`: which design is best for which task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import AsJson, Designs, FitOn, Model, ModelOptions, Models, OutputFolder, Reads, Tasks
from unmask.io.terminal import tell_json


def compare(
    model: Models,
    task: Tasks,
    designs: Designs = None,
    reference: Annotated[
        list[str] | None,
        Reads(is_model=True),
        typer.Option("--reference", "-r", help="sentence-transformers model to show in the same table. Repeat for several."),
    ] = None,
    output: OutputFolder = Path("report"),
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            "-b",
            help="Test every design against this one only, instead of all pairs. Choose it before you see the scores.",
        ),
    ] = None,
    fit_on: FitOn = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Compare designs on tasks. Prints a ranked table, paired tests, and what to use for each kind of task."""
    from unmask.evaluation.comparison import ComparisonSettings, run_comparison
    from unmask.reporting.console import print_comparison

    settings = ComparisonSettings(
        sources=tuple(map(options.source, model)),
        tasks=tuple(task),
        output=output,
        designs=",".join(designs or ()),
        references=tuple(reference or ()),
        baseline=baseline,
        fit_on=fit_on,
        max_length=options.max_length,
        batch_tokens=options.batch_tokens,
    )
    comparison = run_comparison(settings)
    if as_json:
        tell_json(comparison.as_json())
    else:
        print_comparison(comparison)
    if any(failure.applies for failure in comparison.failures):
        raise typer.Exit(1)


def recommend(
    model: Model,
    task: Tasks,
    designs: Designs = None,
    layers: Annotated[
        bool,
        typer.Option("--layers/--no-layers", help="Also try three earlier layers of the best designs, without extra passes."),
    ] = True,
    output: OutputFolder = Path("recommendation"),
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Recommend a design for your tasks. All designs start on a few items; worse designs drop out, the others get more items."""
    from unmask.evaluation.comparison import ComparisonSettings, recommend_design
    from unmask.reporting.console import print_recommendation

    settings = ComparisonSettings(
        sources=(options.source(model),),
        tasks=tuple(task),
        output=output,
        designs=",".join(designs or ()),
        max_length=options.max_length,
        batch_tokens=options.batch_tokens,
    )
    choice = recommend_design(settings, layers=layers)
    if as_json:
        tell_json(choice.as_json())
    else:
        print_recommendation(choice)
