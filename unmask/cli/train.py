"""`unmask train`: a recipe in, a trained embedder out. `unmask recipes`: list, show, copy and check recipes."""

from __future__ import annotations

import os
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.command import Command, Group, model_paths, refuse_inside_models
from unmask.cli.options import ADVANCED, Data, OutputFolder, Reads, Scale, Settings, Writes
from unmask.errors import UnmaskError
from unmask.io.terminal import say, tell, tell_json, tell_result

if TYPE_CHECKING:
    from pydantic import BaseModel

    from unmask.training.lora import Coverage
    from unmask.training.records import TrainingJob

Name = Annotated[
    str, Reads(suffix=".toml"), typer.Argument(help="A shipped recipe (see `unmask recipes list`) or a TOML file.")
]

recipes = typer.Typer(
    cls=Group,
    help="List, show, copy and check training recipes.",
    epilog="Example: unmask recipes show llm2vec",
    no_args_is_help=True,
)


def train(
    recipe: Name,
    output: OutputFolder,
    scale: Scale = None,
    settings: Settings = None,
    data: Data = None,
    keep_leaks: Annotated[
        bool,
        typer.Option("--keep-leaks", help="Train also on rows that occur in the evaluation tasks.", rich_help_panel=ADVANCED),
    ] = False,
) -> None:
    """Train an embedder with a recipe. You can stop and continue. Writes TensorBoard files, scores and a model card."""
    from unmask.io.files import check_output
    from unmask.training.recipe import load_recipe, scales
    from unmask.training.recipe_run import run_recipe
    from unmask.training.train import Listener

    if scale is None and (available := scales(recipe)):
        raise UnmaskError(f"Recipe '{recipe}' needs --scale: {', '.join(available)}.")
    root, plan = data_root(data), load_recipe(recipe, scale, settings or [])
    check_output(output, [plan.model, *(root / source.path for source in plan.data.values())], folder=True)
    refuse_inside_models(output, model_paths(plan.model))
    say(f"loading {plan.model} ...")
    with training_progress() as callbacks:
        jobs = run_recipe(plan, output, root, Listener(_print_coverage, callbacks), keep_leaks=keep_leaks)
    if _is_first_process():
        _report(jobs)


@contextmanager
def training_progress() -> Iterator[list[Any]]:
    """Callbacks that show the progress of a training."""
    from transformers.utils.logging import disable_progress_bar

    from unmask.training.progress import LiveProgress

    disable_progress_bar()  # of files being written
    bar = LiveProgress()
    try:
        yield [bar]
    finally:
        bar.close()


def _report(jobs: Sequence[TrainingJob]) -> None:
    """Print the result of each job, and its comparison with the untrained base."""
    from unmask.io.terminal import console as open_console
    from unmask.reporting.tables import gain_table
    from unmask.runs import runs
    from unmask.training.records import TrainingResult

    results = [runs.read_result(job.folder, TrainingResult) for job in jobs]
    gains = [result.gain if result else None for result in results]
    content = [
        {
            "design": job.design.name,
            "seed": job.seed,
            "model": str(job.result),
            "gain": gain and gain.model_dump(mode="json"),
        }
        for job, gain in zip(jobs, gains, strict=True)
    ]
    tell_result({"runs": content})
    console = open_console(stderr=True)
    for job, gain in zip(jobs, gains, strict=True):
        if gain is not None:
            console.print(gain_table(gain, job.label))
            for sentence in (gain.sentence, *gain.notes):
                console.print(sentence, soft_wrap=True, markup=False)
        say(f"trained embedder in {job.result}; its README.md says how")


def _print_coverage(stage: str, kinds: Sequence[Coverage]) -> None:
    from unmask.io.terminal import console
    from unmask.reporting.tables import coverage_table

    if _is_first_process():
        console(stderr=True).print(coverage_table(stage, kinds))


@recipes.command("list", cls=Command, epilog="Example: unmask recipes list")
def list_recipes() -> None:
    """List the recipes of this package and their scales."""
    from unmask.io.terminal import console
    from unmask.reporting.tables import recipe_table
    from unmask.training.recipe import load_recipe, scales, shipped_recipes

    recipes_by_name = {name: (load_recipe(name, scales(name)[0]), scales(name)) for name in shipped_recipes()}
    tell_result([{"recipe": name, "scales": list(of_recipe)} for name, (_, of_recipe) in recipes_by_name.items()])
    console().print(recipe_table(list(recipes_by_name.values())))


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
def copy(
    recipe: Name, file: Annotated[Path, Writes(folder=False), typer.Argument(metavar="FILE", help="File to write.")]
) -> None:
    """Copy a recipe to a file that you can change."""
    from unmask.io.files import atomic
    from unmask.training.recipe import recipe_file, scales

    if not file.name.endswith(".toml"):
        raise UnmaskError(f"'{file}' is not a valid name of a recipe: name it {file.name}.toml.")
    if file.exists():
        raise UnmaskError(f"'{file}' exists: give a new file.")
    with atomic(file) as scratch:
        shutil.copyfile(recipe_file(recipe), scratch)
    tell_result({"file": str(file)})
    available = scales(recipe)
    scale = f" --scale {'small' if 'small' in available else available[0]}" if available else ""
    say(f"wrote {file}; train with: unmask train {shlex.quote(str(file))}{scale} -o FOLDER")


@recipes.command("check", cls=Command, epilog="Example: unmask recipes check llm2vec --scale small --data DATA")
def check(recipe: Name, scale: Scale = None, settings: Settings = None, data: Data = None) -> None:
    """Check a recipe and every row of its data, without loading a model."""
    from unmask.training.recipe import load_recipe
    from unmask.training.train import check_data

    plan = load_recipe(recipe, scale, settings or [])
    checked = check_data(plan, data_root(data))
    tell_result(
        [
            {
                "stage": stage,
                "data": dataset.name,
                "kind": dataset.kind,
                "examples": len(dataset.examples),
                "skipped": dict(dataset.skipped),
                "unread": list(dataset.unread),
            }
            for stage, sets in checked.items()
            for dataset in sets
        ]
    )
    for stage, sets in checked.items():
        for dataset in sets:
            tell(f"{stage}: {dataset.summary}")
    print("ok")


def show_settings(settings: BaseModel, **extra: Any) -> None:
    """Print the settings of a recipe or study as JSON, and further values."""
    content = settings.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"claims"})
    tell_result(content | extra)
    tell_json(content | extra)


def data_root(data: Path | None) -> Path:
    """The folder that data paths are relative to: the option, UNMASK_DATA, or the current folder."""
    root = data or Path(os.environ.get("UNMASK_DATA", "."))
    if not root.is_dir():
        raise UnmaskError(f"There is no data folder '{root}'.")
    return root


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"  # unmask.training.processes would load torch
