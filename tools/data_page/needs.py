"""What needs a set: recipes and studies at the scale `small`, and commands of other pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tools.claims import PAPERS, plan_of
from unmask.studies.embedders.plan import EmbeddersPlan
from unmask.studies.routers.plan import RoutersPlan
from unmask.studies.self_moe.plan import SelfMoEPlan
from unmask.training.recipe import Recipe, load_recipe, shipped

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "data.md"
TRAIN: Final = "unmask train"
REPRODUCE: Final = "unmask reproduce"
_SCALE: Final = "small"


class Paths(NamedTuple):
    """Paths below the data folder: what is trained on, and what is tested on."""

    trained: list[str]
    tested: list[str]


@cache
def needs() -> dict[str, Paths]:
    """What each recipe and study reads, by its command."""
    found = {f"{TRAIN} {name}": _of_recipe(load_recipe(name, _SCALE)) for name in shipped()}
    return found | {f"{REPRODUCE} {study}": _of_study(plan_of(study)) for study in PAPERS}


def _of_recipe(recipe: Recipe) -> Paths:
    asked = recipe.evaluation
    trained = (source.path for source in recipe.data.values())
    return Paths(_below_data(trained), _below_data([*asked.tasks, *asked.held_out, *asked.compared]))


def _of_study(plan: EmbeddersPlan | RoutersPlan | SelfMoEPlan) -> Paths:
    if isinstance(plan, SelfMoEPlan):
        tests = [*plan.requested_abilities.values(), *plan.requested_answers.values(), *plan.requested_choices.values()]
        return Paths(_below_data(plan.seeds.values()), _below_data(tests))
    if isinstance(plan, RoutersPlan):
        lessons = (source.file for domains in plan.domains.values() for source in domains.values())
        return Paths(_below_data(lessons), _below_data(plan.tasks))
    recipes = [_of_recipe(recipe) for making in plan.made.values() if (recipe := making.recipe_at(_SCALE))]
    trained = (path for paths in recipes for path in paths.trained)
    return Paths(_below_data(trained), _below_data([*plan.tasks, *(path for paths in recipes for path in paths.tested)]))


def _below_data(paths: Iterable[str]) -> list[str]:
    """Paths without samples (`#200`), and without what comes from elsewhere."""
    found = (path.partition("#")[0] for path in paths if not path.startswith(("hub:", "starter")))
    return list(dict.fromkeys(found))


def folder_of(path: str) -> str:
    """The folder of a path below the data folder. Nothing for a file that lies in none: it is the user's."""
    folder, _, _ = path.partition("/")
    return "" if Path(folder).suffix else folder


def pages_of_folders() -> dict[str, list[str]]:
    """The folders that commands of the other pages name, with these pages."""
    found: dict[str, list[str]] = {}
    for file in sorted({*DOCS.rglob("*.md")} - {PAGE}):
        for folder in sorted(set(re.findall(r"\bDATA/([\w-]+)", file.read_text(encoding="utf-8")))):
            found.setdefault(folder, []).append(file.relative_to(DOCS).as_posix())
    return found


def needed_by(folder: str) -> str:
    """The recipes, studies and pages that need a folder, as a cell of a table."""
    commands = [command for command, paths in needs().items() if folder in map(folder_of, [*paths.trained, *paths.tested])]
    parts = []
    for start, kind in ((TRAIN, "recipes"), (REPRODUCE, "studies")):
        if names := [f"`{command.removeprefix(start).strip()}`" for command in commands if command.startswith(start)]:
            parts.append(f"{kind} {', '.join(names)}")
    if pages := pages_of_folders().get(folder):
        parts.append(f"pages {', '.join(f'[{Path(page).stem}]({page})' for page in pages)}")
    return "; ".join(parts) or "-"
