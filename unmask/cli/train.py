"""`unmask train`: a recipe in, a trained embedder out. `unmask recipes`: what recipes there are."""

from __future__ import annotations

import os
import shlex
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.lesson_options import showing
from unmask.cli.outputs import Command, Group, models_named, refuse_inside_models
from unmask.errors import UnmaskError
from unmask.io.terminal import say, tell, tell_json, tell_result

if TYPE_CHECKING:
    from pydantic import BaseModel

    from unmask.evaluation.training_gain import TrainingGain
    from unmask.training.lora import Coverage
    from unmask.training.recipe import Recipe
    from unmask.training.records import TrainingRun

Name = Annotated[str, typer.Argument(help="A shipped recipe (see `unmask recipes list`) or a TOML file.")]
Scale = Annotated[
    str | None,
    typer.Option(
        help="Needed if the recipe has scales: smoke (seconds), small (a laptop) or paper (as published; `unmask recipes show` lists what "
        "differs)."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting of the recipe: key=value, such as simcse.steps=100. Repeat for several."),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder that data paths start from. Default: UNMASK_DATA, or the current folder."),
]

recipes = typer.Typer(
    cls=Group,
    help="List, show, copy and check training recipes.",
    epilog="Example: unmask recipes show llm2vec",
    no_args_is_help=True,
)


def train(
    recipe: Name,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the run. Run the same command again to continue."),
    ],
    scale: Scale = None,
    settings: Settings = None,
    data: Data = None,
    keep_leaks: Annotated[
        bool, typer.Option("--keep-leaks", help="Train also on rows that occur in the evaluation tasks.")
    ] = False,
) -> None:
    """Train an embedder with a recipe. You can stop and continue. Writes TensorBoard files, scores and a model card."""
    from unmask.io.files import check_output
    from unmask.training.recipe import load_recipe, scales

    if scale is None and (known := scales(recipe)):
        raise UnmaskError(f"Recipe '{recipe}' needs --scale: {', '.join(known)}.")
    root, plan = root_of(data), load_recipe(recipe, scale, settings or [])
    check_output(output, [plan.model, *(root / source.path for source in plan.data.values())], folder=True)
    refuse_inside_models(output, models_named(plan.model))
    say(f"loading {plan.model} ...")
    _run(plan, output, root, keep_leaks)


def _run(recipe: Recipe, output: Path, root: Path, keep_leaks: bool) -> None:
    from unmask.training.recipe_run import run_recipe
    from unmask.training.run import Listener

    with showing() as callbacks:
        done = run_recipe(recipe, output, root, Listener(_covered, callbacks), keep_leaks=keep_leaks)
    if not _first_process():
        return
    tell_result({"runs": [_run_as_json(run) for run in done]})
    for run in done:
        _show_gain(run)
        say(f"trained embedder in {run.result}; its README.md says how")


def _gain_of(run: TrainingRun) -> TrainingGain | None:
    """Whether training was worth it, if the recipe names tasks to compare on."""
    from unmask.runs import runs
    from unmask.training.records import TrainingResult

    record = runs.read_result(run.folder, TrainingResult)
    return None if record is None else record.gain


def _run_as_json(run: TrainingRun) -> dict[str, Any]:
    gain = _gain_of(run)
    return {
        "design": run.design.name,
        "seed": run.seed,
        "model": str(run.result),
        "gain": None if gain is None else gain.model_dump(mode="json"),
    }


def _show_gain(run: TrainingRun) -> None:
    from unmask.io.terminal import console as open_console
    from unmask.reporting.tables import gain_table

    if (gain := _gain_of(run)) is not None:
        console = open_console(stderr=True)
        console.print(gain_table(gain, f"{run.design.name}, seed {run.seed}"))
        for sentence in (gain.sentence, *gain.notes):
            console.print(sentence, soft_wrap=True, markup=False)


def _covered(stage: str, kinds: Sequence[Coverage]) -> None:
    from unmask.io.terminal import console
    from unmask.reporting.tables import coverage_table

    if _first_process():
        console(stderr=True).print(coverage_table(stage, kinds))


@recipes.command("list", cls=Command, epilog="Example: unmask recipes list")
def list_recipes() -> None:
    """List the recipes of this package and their scales."""
    from unmask.io.terminal import console
    from unmask.reporting.tables import recipe_table
    from unmask.training.recipe import load_recipe, scales, shipped

    listed = [(load_recipe(name, scales(name)[0]), scales(name)) for name in shipped()]
    tell_result([{"recipe": name, "scales": list(known)} for name, (_, known) in zip(shipped(), listed, strict=True)])
    console().print(recipe_table(listed))


@recipes.command("show", cls=Command, epilog="Example: unmask recipes show llm2vec --scale small")
def show(recipe: Name, scale: Scale = None, settings: Settings = None) -> None:
    """Print the file of a recipe. With --scale or --set: every setting, as JSON."""
    from unmask.training.recipe import load_recipe, recipe_file

    if scale is None and not settings:
        tell_result(tomllib.loads(recipe_file(recipe).read_text(encoding="utf-8")))
        print(recipe_file(recipe).read_text(encoding="utf-8"), end="")
    else:
        show_settings(load_recipe(recipe, scale, settings or []))


@recipes.command("copy", cls=Command, epilog="Example: unmask recipes copy llm2vec mine.toml")
def copy(recipe: Name, file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")]) -> None:
    """Copy a recipe to a file that you can change."""
    from unmask.io.files import atomic
    from unmask.training.recipe import recipe_file, scales

    if not file.name.endswith(".toml"):
        raise UnmaskError(f"'{file}' would not be found as a recipe: name it {file.name}.toml.")
    if file.exists():
        raise UnmaskError(f"'{file}' exists, and is not overwritten.")
    with atomic(file) as scratch:
        shutil.copyfile(recipe_file(recipe), scratch)
    tell_result({"file": str(file)})
    known = scales(recipe)
    scale = f" --scale {'small' if 'small' in known else known[0]}" if known else ""
    say(f"wrote {file}; train with: unmask train {shlex.quote(str(file))}{scale} -o FOLDER")


@recipes.command("check", cls=Command, epilog="Example: unmask recipes check llm2vec --scale small --data DATA")
def check(recipe: Name, scale: Scale = None, settings: Settings = None, data: Data = None) -> None:
    """Check a recipe and every row of its data, without loading a model."""
    from unmask.training.recipe import load_recipe
    from unmask.training.run import check_data

    plan = load_recipe(recipe, scale, settings or [])
    checked = check_data(plan, root_of(data))
    tell_result(
        [
            {
                "stage": stage,
                "data": one.name,
                "kind": one.kind,
                "examples": len(one.examples),
                "skipped": dict(one.skipped),
                "unread": list(one.unread),
            }
            for stage, sets in checked.items()
            for one in sets
        ]
    )
    for stage, sets in checked.items():
        for dataset in sets:
            left = ", ".join(f"{count} {reason}" for reason, count in dataset.skipped.items())
            unread = ", ".join(dataset.unread)
            tell(
                f"{stage}: {dataset.name}: {len(dataset.examples)} {dataset.kind}"
                + (f" (left out: {left})" if left else "")
                + (f" (columns not read: {unread})" if unread else "")
            )
    print("ok")


def show_settings(settings: BaseModel, **more: Any) -> None:
    """Print the settings of a recipe, or of a study without its claims, as JSON for people. more: values to print after them."""
    content = settings.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"claims"})
    tell_result(content | more)
    tell_json(content | more)


def root_of(data: Path | None) -> Path:
    """Where data paths start: the folder given, else UNMASK_DATA, else here."""
    root = data or Path(os.environ.get("UNMASK_DATA", "."))
    if not root.is_dir():
        raise UnmaskError(f"There is no data folder '{root}'.")
    return root


def _first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"  # as unmask.training.processes, which loads torch
