"""At the scale `paper`, every recipe and study says where it is not the paper, and docs/paper-scale.md says it too."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from tools.claims import PAPERS, plan_of
from tools.paper_scale import PAGE, SCALE, differences, page
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.studies.engine import load_plan
from unmask.studies.plan import plan_tables
from unmask.training.difference import Difference
from unmask.training.recipe import load_recipe, scales, shipped

ROW = {"what": "data", "paper": "18 sets", "here": "one", "why": "it is on the hub"}


def scales_of(study: str) -> list[str]:
    return list(plan_tables(study)["scale"])


def test_every_recipe_and_study_of_this_scale_is_asked() -> None:
    recipes = {f"train {name}" for name in shipped() if SCALE in scales(name)}
    assert len(recipes) > 5
    assert set(differences()) == recipes | {f"reproduce {study}" for study in PAPERS}


@pytest.mark.parametrize("command", differences())
def test_the_scale_of_the_paper_says_where_it_is_not_the_paper(command: str) -> None:
    rows = differences()[command]
    assert rows, "no scale here is the paper in everything"
    assert len({row.what for row in rows}) == len(rows), "a setting differs once"
    assert not any("|" in cell or "\n" in cell for row in rows for cell in row.model_dump().values()), "a cell of a table"


@pytest.mark.parametrize("name", shipped())
def test_other_scales_of_a_recipe_claim_no_difference(name: str) -> None:
    assert not any(load_recipe(name, scale).differences for scale in scales(name) if scale != SCALE)


@pytest.mark.parametrize("study", PAPERS)
def test_other_scales_of_a_study_claim_no_difference(study: str) -> None:
    assert SCALE in scales_of(study)
    assert not any(plan_of(study, scale).differences for scale in scales_of(study) if scale != SCALE)


def test_a_study_does_not_repeat_its_recipe() -> None:
    for study in PAPERS:
        if study in shipped():
            recipe = {(row.paper, row.here) for row in load_recipe(study, SCALE).differences}
            assert not recipe & {(row.paper, row.here) for row in plan_of(study, SCALE).differences}


def test_the_page_follows_from_recipes_and_plans() -> None:
    assert page() == PAGE.read_text(encoding="utf-8"), "write it again: python -m tools.paper_scale"
    assert sum(map(len, differences().values())) == page().count("\n| `")


@pytest.mark.parametrize(
    "words",
    [["recipes", "show", "llm2vec", "--scale", SCALE], *(["reproduce", study, "--scale", SCALE, "--plan"] for study in PAPERS)],
    ids=" ".join,
)
def test_the_command_that_shows_settings_shows_the_differences(words: list[str]) -> None:
    shown = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)["differences"]
    command = f"{'train' if words[0] == 'recipes' else 'reproduce'} {words[2] if words[0] == 'recipes' else words[1]}"
    assert tuple(Difference.model_validate(row) for row in shown) == differences()[command]


@pytest.mark.parametrize("cell", ROW)
def test_a_row_says_all_four(cell: str) -> None:
    assert Difference.model_validate(ROW)
    for wrong in ({key: value for key, value in ROW.items() if key != cell}, ROW | {cell: ""}):
        with pytest.raises(ValidationError, match=cell):
            Difference.model_validate(wrong)
    with pytest.raises(UnmaskError, match=f"differences.0.{cell}"):
        plan_of_row({**ROW, cell: ""})


def plan_of_row(row: dict[str, str]) -> None:
    load_plan(
        "self-moe", "smoke", [f"differences=[{{{', '.join(f'{key}={json.dumps(value)}' for key, value in row.items())}}}]"]
    )
