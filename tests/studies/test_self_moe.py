"""The study of Self-MoE, small: every table is there, of what it says; a run that was killed goes on; what was made is not made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.training.running import At, die, killed
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.experts.lessons import read_lessons
from unmask.experts.likelihood import response_likelihood
from unmask.experts.speakers import load_speaker
from unmask.loading import Source
from unmask.studies.self_moe.plan import MIXSE, VARIANTS, Plan, load_plan, scales
from unmask.studies.self_moe.run import BASE, INSTANCE, ORACLE, Findings, rows_of, study
from unmask.studies.self_moe.tables import sheets

DOMAINS = ["knowledge", "reasoning", "math", "coding"]
LITTLE = ["number=4", "held_out=4", "sizes=[2]", "router.steps=2", "expert.steps=2"]


def run(plan: Plan, folder: Path, *callbacks: Any) -> Findings:
    source = Source("pico", dtype="float32")
    return study(plan, source, Path(), folder, lambda _: None, lambda *_: None, callbacks)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run by the command line."""
    folder = tmp_path_factory.mktemp("study")
    given = ["reproduce", "self-moe", "--scale", "smoke", "-o", str(folder), "--dtype", "float32"]
    for setting in [*LITTLE, 'ablations=["layer routers", "shared expert", "joint top-2"]']:
        given += ["--set", setting]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0 and "Main table" in done.stdout and "Overhead of 4 experts" in done.stdout
    return folder / "pico"


def test_every_table_is_there(whole: Path) -> None:
    found = json.loads((whole / "results.json").read_text())
    rows = [row["model"] for row in found["main"]]
    assert rows == [
        BASE,
        *(f"expert {name}" for name in DOMAINS),
        ORACLE,
        INSTANCE,
        "TIES",
        "DARE",
        "linear",
        MIXSE,
        "MiXSE, renormalised",
    ]
    assert {row["model"] for row in found["ablations"]} > {"MiXSE, random", "layer routers", "shared expert", "joint top-2"}
    assert [row["model"] for row in found["experts"]] == [
        "0: base", "1: knowledge", "2: and reasoning", "3: and math", "4: and coding",
    ]  # fmt: skip
    assert [row["model"] for row in found["lessons"]] == [
        f"{name}, {number} lessons" for number in (2, 4) for name in (INSTANCE, MIXSE)
    ]
    assert set(found["routing"]) == {MIXSE, "layer routers", "shared expert", "joint top-2"}
    assert found["overhead"]["experts"] == 4 and found["overhead"]["forward"] > 0
    report = (whole / "report.md").read_text()
    for title in (
        "Main table",
        "Ablations",
        "Routing",
        "Number of experts",
        "Number of lessons of a domain",
        "Overhead of 4 experts",
    ):
        assert f"## {title}" in report
    for name in ("routing", "growth", "overhead"):
        assert f"(figures/{name}.png)" in report and (whole / "figures" / f"{name}.png").stat().st_size > 5000


def test_rows_are_what_they_say(whole: Path) -> None:
    found = json.loads((whole / "results.json").read_text())
    main = {row["model"]: row for row in found["main"]}
    held_out = {name: read_lessons(whole / "lessons" / f"{name}.held-out.jsonl") for name in DOMAINS}
    for row, model in ((BASE, "pico"), ("expert math", whole / "experts/math"), (MIXSE, whole / "mixtures/MiXSE")):
        speaker, tokenizer = load_speaker(Source(str(model), dtype="float32"))
        for name, lessons in held_out.items():
            expected = response_likelihood(speaker, tokenizer, lessons, max_length=256).mean()
            assert main[row]["domains"][name] == pytest.approx(expected, abs=1e-5)
    for name in DOMAINS:
        assert main[ORACLE]["domains"][name] == main[f"expert {name}"]["domains"][name]
        learned = {(one.instruction, one.input) for one in read_lessons(whole / "lessons" / f"{name}.seeds.jsonl")}
        assert not learned & {(one.instruction, one.input) for one in held_out[name]}
    assert main[BASE]["difference"] == [0, 0, 0]


def test_a_table_is_in_its_own_order_whatever_it_is_compared_with() -> None:
    values = {name: {"a": np.array([number, number])} for name, number in ((BASE, 3.0), ("x", 1.0), (INSTANCE, 2.0))}
    found = Findings(main=values)
    for against, differences in ((BASE, [0, -2, -1]), (INSTANCE, [1, -1, 0])):
        rows = rows_of(found, values, against)
        assert [row.model for row in rows] == list(values)
        assert [row.difference[0] for row in rows] == differences
    [sheet] = sheets(found)
    assert sheet.rows[1] == ("x", "1.000", "1.000", "-2.000 ± 0.000", "-1.000 ± 0.000")
    assert "| x | 1.000 | 1.000 |" in sheet.markdown()


def test_what_was_made_is_not_made_again_and_a_kill_loses_nothing(whole: Path, tmp_path: Path) -> None:
    plan = load_plan("smoke", [*LITTLE, "ablations=[]"])
    killed(lambda: run(plan, tmp_path / "cut", At(".MiXSE-mixing", 1, die)))
    assert (tmp_path / "cut/experts/instance").is_dir() and not (tmp_path / "cut/mixtures/MiXSE").exists()
    made = {
        file: file.stat().st_mtime_ns for file in (tmp_path / "cut").rglob("*") if file.is_file() and "experts" in str(file)
    }
    found = run(plan, tmp_path / "cut")
    assert made == {file: file.stat().st_mtime_ns for file in made}
    again = json.loads((whole / "results.json").read_text())
    for row in again["main"]:
        assert row["average"] == float(np.mean([values.mean() for values in found.main[row["model"]].values()]))
    with pytest.raises(UnmaskError, match="holds a run of other lessons or settings"):
        run(load_plan("smoke", [*LITTLE, "ablations=[]", "lora.r=2"]), tmp_path / "cut")


def test_rows_are_asked_what_they_can(data: Path, tmp_path: Path) -> None:
    from unmask.experts.abilities.harness import accuracy, draw_items

    asked = ['abilities.piqa="piqa/valid.jsonl"', 'abilities.hellaswag="hellaswag/validation.jsonl"', "limit=6"]
    plan = load_plan("smoke", [*LITTLE, "ablations=[]", "sizes=[]", *asked])
    source = Source("pico", dtype="float32")
    found = study(plan, source, data, tmp_path, lambda _: None, lambda *_: None)
    assert set(found.abilities) == set(found.main) - {ORACLE, "MiXSE, renormalised"}
    speaker, tokenizer = load_speaker(Source(str(tmp_path / "experts/math"), dtype="float32"))
    right = accuracy(speaker, tokenizer, "piqa", draw_items("piqa", data / "piqa/valid.jsonl", 6, 0))
    assert found.abilities["expert math"]["piqa"].tolist() == (100 * right).tolist()
    [sheet] = [sheet for sheet in sheets(found) if sheet.title == "Abilities"]
    assert sheet.columns == ("", "piqa", "hellaswag", "average", "less base") and len(sheet.rows) == len(found.abilities)
    with pytest.raises(UnmaskError, match="run_code=true"):
        study(load_plan("smoke", [*LITTLE, 'abilities.mbpp="mbpp/all.jsonl"']), source, data, tmp_path / "code", print, print)


def test_plans(tmp_path: Path) -> None:
    assert scales() == ["smoke", "small", "paper"]
    for scale in scales():
        assert load_plan(scale).models
    small = load_plan("small")
    assert small.expert_learning(4 * small.number).steps == 4 * small.expert_learning(small.number).steps, "equal data"
    assert small.router_learning("example", 3, trained=True).batch == 6, "as many lessons of each domain"
    assert VARIANTS[MIXSE].routing.top_k == 1
    for setting, why in (("ablations=['no']", "Unknown ablation|no"), ("numbers=3", "numbers"), ("number=1", "number")):
        with pytest.raises(UnmaskError, match=why):
            load_plan("small", [setting])
    with pytest.raises(UnmaskError, match="smal"):
        load_plan("smal")
    with pytest.raises(UnmaskError, match="give the folder of the data sets"):
        run(load_plan("smoke", ['seeds.math="none.jsonl"']), tmp_path)
