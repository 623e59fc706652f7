"""The study of routers: its plan and lessons, its tests and sentences on synthetic cells, and a whole run on pico."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.studies import smoke
from tools.keep import MEASURED
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.moe.experts.lessons.lessons import Lesson, read_lessons
from unmask.runs import runs
from unmask.studies.claims.claim import Claim, Finding, findings
from unmask.studies.plan import plan_tables
from unmask.studies.results import read_results
from unmask.studies.routers import cells as anchoring
from unmask.studies.routers.analysis import (
    Replication,
    Row,
    most_distinct,
    noise_of,
    replicate,
    rows_of,
    verdicts,
)
from unmask.studies.routers.cells import Anchor, Cell, CellRecord
from unmask.studies.routers.configurations import CONFIGURATIONS, EMBEDDINGS, OWN, STANDARD, baseline_of
from unmask.studies.routers.findings import _MEASURES, MeasuredCells, RoutersFindings
from unmask.studies.routers.plan import RoutersPlan, draw
from unmask.studies.study import load_plan as load_any_plan

DOMAINS = ["knowledge", "reasoning", "math", "coding"]


def load_plan(scale: str, settings: Sequence[str] = ()) -> RoutersPlan:
    plan: RoutersPlan = load_any_plan("routers", scale, settings)
    return plan


def findings_of(rows: Sequence[Row], claims: Sequence[Finding] = (), replication: Replication | None = None) -> RoutersFindings:
    base = Cell({}, {}, {"hidden": {"task0": 0.6}})
    measured = MeasuredCells(Anchor(1, (1.0,)), {"far": base}, replication=replication)
    return RoutersFindings(load_plan("small"), "pico", measured, {row.name: row for row in rows}, {}, list(claims))


def test_every_scale_has_a_plan_and_every_configuration_a_reference() -> None:
    for scale in plan_tables("routers")["scale"]:
        plan = load_plan(scale)
        assert STANDARD in plan.configurations
    assert set(load_plan("small").configurations) == set(CONFIGURATIONS), "the small scale measures all of them"
    assert all(baseline_of(name) in CONFIGURATIONS for name in CONFIGURATIONS)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('configurations=["standard", "top-3"]', "top-3"),
        ('configurations=["standard", "8 experts"]', "compared with '4 experts'"),
        ('configurations=["soft"]', "compared with 'renormalised'"),
        ("seeds=[]", "seeds"),
        ("fresh_seeds=[2, 3]", "seed 2 is not fresh"),
        ("numbr=3", "numbr"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(setting: str, words: str) -> None:
    with pytest.raises(UnmaskError, match=words):
        load_plan("small", [setting])


def test_lessons_are_drawn_once_without_overlap_and_without_long_ones(tmp_path: Path) -> None:
    plan = load_plan("smoke")
    plan = plan.model_copy(update={"configurations": (STANDARD,), "max_length": 40})

    def length(lesson: Lesson) -> int:
        return len(lesson.output.split())

    first = draw(plan, tmp_path, tmp_path / "lessons", length)
    assert list(first) == ["far"] and list(first["far"].learned) == DOMAINS
    for name in DOMAINS:
        learned, held_out = first["far"].learned[name], first["far"].held_out[name]
        assert (len(learned), len(held_out)) == (plan.number, plan.held_out)
        assert not {lesson.prompt for lesson in learned} & {lesson.prompt for lesson in held_out}
        assert max(map(length, [*learned, *held_out])) <= 40
    kept = read_lessons(tmp_path / "lessons" / "far" / "math.learned.jsonl")
    assert draw(plan, tmp_path, tmp_path / "lessons", length)["far"].learned["math"] == kept
    fewer = plan.model_copy(update={"number": plan.number - 1})
    with pytest.raises(
        UnmaskError, match=r"learned.jsonl' holds 4 lessons of an earlier run, and these settings and data give 3"
    ):
        draw(fewer, tmp_path, tmp_path / "lessons", length)
    assert read_lessons(tmp_path / "lessons" / "far" / "math.learned.jsonl") == kept


def made_cell(distinct: float, gain: float, score: float, seed: int, texts: int = 24) -> Cell:
    """A cell whose experts follow the domains to a degree, with a gain in nats over a base of 2 and a score of routing weights."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), texts // 4)
    shares = (1 - distinct) * random.dirichlet([2.0] * 4, size=(texts, 3)) + distinct * np.eye(4)[labels][:, None]
    nats = 2 - gain + random.normal(0, 0.02, size=(4, texts // 4))
    scores = {
        design: {f"task{k}": score + better + 0.02 * k + random.normal(0, 0.002) for k in range(6)}
        for design, better in (("hidden", 0.1), ("routing", 0.0), ("concat", 0.12), ("sum", 0.11))
    }
    return Cell(
        {f"domain{k}": tuple(row) for k, row in enumerate(nats.tolist())},
        {measure: {"corrected": distinct} for measure in _MEASURES},
        scores,
        shares,
    )


def made(values: Mapping[str, tuple[float, float, float]], seeds: int = 3) -> tuple[Any, Any]:
    cells = {
        name: {seed: made_cell(*value, seed=100 * place + seed) for seed in range(seeds)}
        for place, (name, value) in enumerate(values.items())
    }
    base = Cell({f"domain{k}": (2.0,) * 6 for k in range(4)}, {}, {"hidden": {"task0": 0.6}})
    return cells, {"far": base}


def test_differences_are_told_apart_where_they_are_and_only_there() -> None:
    cells, bases = made({STANDARD: (0.3, 0.2, 0.4), "layer routers": (0.6, 0.1, 0.45), "by text so far": (0.3, 0.2, 0.4)})
    rows = {row.name: row for row in rows_of(cells, bases)}
    assert rows[STANDARD].tests == {}
    better, equal = rows["layer routers"].tests, rows["by text so far"].tests
    assert better["information"].difference > 0.1 and better["information"].p_holm < 0.01  # type: ignore[operator]
    assert better["gain"].difference == pytest.approx(-0.1, abs=0.02) and better["gain"].p_holm < 0.01  # type: ignore[operator]
    assert all(better[design].difference == pytest.approx(5, abs=0.5) for design in EMBEDDINGS)
    assert all(test.p > 0.05 and test.interval[0] < 0 < test.interval[1] for test in (equal["information"], equal["gain"]))
    assert rows["layer routers"].information > rows[STANDARD].information + 0.1  # type: ignore[operator]


def test_papers_are_confirmed_refuted_or_undecided_by_the_tests() -> None:
    cells, bases = made({
        STANDARD: (0.3, 0.2, 0.4), "renormalised": (0.3, 0.2, 0.4), "trained top-1": (0.3, 0.2, 0.4),
        "layer routers": (0.3, 0.1, 0.4), "soft": (0.3, 0.3, 0.4), "joint top-1": (0.3, 0.2, 0.4),
    })  # fmt: skip
    found = {one.claim.id: one.verdict for one in verdicts(load_plan("small").claims, cells, bases)}
    assert found == {
        "shared-router": "confirmed",
        "all-are-worse-than-one": "refuted",
        "joint-is-worse": "undecided",
        "joint-has-no-domains": "undecided",
        "random-is-worse": "not measured",
        "balance-against-domains": "not measured",
        "global-balance-leaves-room": "not measured",
        "global-balance-predicts": "not measured",
    }


def test_the_replication_is_with_the_most_distinct_rival_and_says_who_is_better() -> None:
    cells, bases = made({
        STANDARD: (0.3, 0.2, 0.4), "layer routers": (0.6, 0.2, 0.4), "soft": (0.4, 0.2, 0.4), OWN: (0.9, 0.2, 0.4),
    })  # fmt: skip
    assert most_distinct(rows_of(cells, bases)) == "layer routers"
    fresh = {name: cells[name] for name in (OWN, "layer routers")}
    replication = replicate("layer routers", fresh, bases, noise_of(cells, bases))
    assert replication.seeds == 3 and replication.tests["information"].difference > 0.2
    words = " ".join(findings_of(rows_of(cells, bases), replication=replication).conclusion)
    told = words.partition("**Our own structure.**")[2]
    assert "Distinct routing: better (+" in told and "Predicting held-out responses: not shown to differ (" in told


@pytest.mark.parametrize(
    ("effect", "difference", "p", "word", "verdict"),
    [
        (2.0, 0.1, 0.001, "better", "confirmed"),
        (-2.0, -0.1, 0.001, "worse", "refuted"),
        (-2.0, 0.1, 0.001, "not shown", "undecided"),
        (2.0, 0.1, 0.2, "not shown", "undecided"),
    ],
)
def test_tables_conclusion_and_claims_say_the_same_of_a_test(
    effect: float, difference: float, p: float, word: str, verdict: str
) -> None:
    """The mean and the effect may point in different directions. Then nothing is shown, wherever it is told."""
    cells, bases = made({STANDARD: (0.3, 0.2, 0.4), "layer routers": (0.6, 0.2, 0.4)})
    [first, row] = rows_of(cells, bases)
    interval = (difference - 0.01, difference + 0.01)
    test = replace(row.tests["gain"], effect=effect, difference=difference, p=p, p_holm=None, interval=interval, bounds=None)
    row = replace(row, tests={"gain": test})
    [said] = [point for point in findings_of([first, row]).conclusion if point.startswith("**Predicting held-out responses.**")]
    assert set(_words(said)) == {word}
    [replication] = [
        point
        for point in findings_of([first], replication=Replication(row.name, 3, {"gain": test})).conclusion
        if "Our own" in point
    ]
    assert set(_words(replication)) == {word}
    claim = Claim(id="a", where="b", says="c", better="layer routers", than=("standard",))
    [found] = findings([claim], {("a", "standard"): test}, lambda _: "nats")
    assert found.verdict == verdict
    [_, line] = findings_of([first, row]).tables()[0].rows
    assert line[-1].endswith("*") == (word != "not shown")


def _words(sentence: str) -> Iterator[str]:
    yield from (word for word in ("better", "worse") if f"{word.capitalize()}: " in sentence or f": {word} (" in sentence)
    yield from (["not shown"] if ": not shown to differ" in sentence or "no difference was shown" in sentence else [])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run by the command line, at smoke scale."""
    folder = tmp_path_factory.mktemp("study")
    done = CliRunner().invoke(app, command(folder), catch_exceptions=False)
    assert done.exit_code == 0 and "Distinct routing, and prediction" in done.stdout
    return folder / "pico"


def command(folder: Path, *more: str) -> list[str]:
    return [*smoke.command("routers", folder), *more]


def test_a_run_says_everything(whole: Path) -> None:
    content = json.loads((whole / "results.json").read_text())
    plan = load_plan("smoke")
    assert [row["name"] for row in content["configurations"]] == list(plan.configurations)
    assert all(row["seeds"] == len(plan.seeds) for row in content["configurations"])
    by_name = {row["name"]: row for row in content["configurations"]}
    assert by_name["oracle"]["information"] is None and set(by_name["oracle"]["tests"]) == {"gain"}
    assert set(by_name["layer routers"]["scores"]) == {"hidden", "routing", "concat", "sum"}
    assert content["anchor"]["layer"] == 1
    report = (whole / "report.md").read_text()
    assert "## Conclusion" in report and "| anchored |" in report and "10 of 10 cells" in report
    said = read_results(whole)
    assert said.finished and said.smoke and all(table.markdown() in report for table in said.tables)
    assert [table.title for table in said.tables][:2] == ["Distinct routing, and prediction", "Embeddings"]
    assert len(said.data) > len(plan.tasks) and said.data["far, knowledge learned"].startswith(f"{plan.number} lessons")
    units = {one.claim.kinds: test.measured_in for one in said.claims for test in one.tests}
    assert units and units.items() <= {("gain",): "nats per token", ("information",): "I(D;E)"}.items()


def test_a_finished_study_measures_nothing_again_and_grows(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "pico")
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("cell.json")}
    results = (tmp_path / "pico" / "results.json").read_bytes()
    assert CliRunner().invoke(app, command(tmp_path), catch_exceptions=False).exit_code == 0
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("cell.json")} == before
    assert (tmp_path / "pico" / "results.json").read_bytes() == results
    more = command(tmp_path, "--set", 'configurations=["standard", "renormalised", "soft"]')
    assert CliRunner().invoke(app, more, catch_exceptions=False).exit_code == 0
    grown = json.loads((tmp_path / "pico" / "results.json").read_text())
    assert [(row["name"], row["seeds"]) for row in grown["configurations"]] == [
        ("standard", 2),
        ("soft", 2),
        ("renormalised", 2),
    ]
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_a_cell_outlives_its_mixture(whole: Path, tmp_path: Path) -> None:
    """Mixtures and experts are large. What was measured stays without them."""
    shutil.copytree(whole, tmp_path / "pico")
    results = (tmp_path / "pico" / "results.json").read_bytes()
    for name in ("mixtures", "experts"):
        shutil.rmtree(tmp_path / "pico" / name)
    assert CliRunner().invoke(app, command(tmp_path), catch_exceptions=False).exit_code == 0
    assert (tmp_path / "pico" / "results.json").read_bytes() == results
    assert not (tmp_path / "pico" / "mixtures").exists()


def test_cells_of_different_experts_are_refused_and_older_cells_accepted(whole: Path, tmp_path: Path) -> None:
    """The record of one cell says that an expert was another one, as after a training on another machine."""
    shutil.copytree(whole, tmp_path / "pico", ignore=shutil.ignore_patterns("mixtures", "experts"))
    files = {name: tmp_path / "pico" / "cells" / name.replace(" ", "-") / "1" / "cell.json" for name in (STANDARD, "anchored")}
    records = {name: record for name, file in files.items() if (record := CellRecord.read(file)) is not None}
    assert records[STANDARD].experts.keys() == {f"far/{name}" for name in DOMAINS}
    assert records[STANDARD].experts == records["anchored"].experts, "all configurations route between the same experts"
    results = (tmp_path / "pico" / "results.json").read_bytes()
    records[STANDARD].model_copy(update={"experts": {}}).write(files[STANDARD])
    assert CliRunner().invoke(app, command(tmp_path), catch_exceptions=False).exit_code == 0
    assert (tmp_path / "pico" / "results.json").read_bytes() == results
    others = {**records["anchored"].experts, "far/math": "another"}
    records["anchored"].model_copy(update={"experts": others}).write(files["anchored"])
    done = CliRunner().invoke(app, command(tmp_path))
    assert isinstance(done.exception, UnmaskError) and "'far/math'" in str(done.exception)
    assert "'anchored' with seed 1" in str(done.exception) and "different experts" in str(done.exception)


@pytest.mark.parametrize("study", ["routers", "moee", "pooling-and-attention"])
def test_the_record_of_a_kept_study_has_the_settings_of_now(study: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(MEASURED / f"{study}-smollm2-values.zip") as values:
        values.extract("study.json", tmp_path)
    record = runs.read(tmp_path, "study.json")
    assert record is not None and record.settings["study"] == study
    plan = load_any_plan(study, "small")
    if study == "routers":
        now = plan.fixed_settings("configurations", "seeds", "fresh_seeds", "domains", "tasks")
        assert now.items() <= record.settings["plan"].items()
    else:
        made = {name: making.model_dump(mode="json") | {"seeds": None} for name, making in plan.made.items()}
        assert record.settings["made"].items() <= made.items()


@pytest.mark.parametrize(
    ("accuracies", "chosen"), [((0.5, 0.86, 0.9, 0.9, 0.7), 2), ((0.5, 0.6, 0.7, 0.9, 0.7), 4), ((1.0, 1.0, 0.9), 1)]
)
def test_the_anchor_is_the_first_layer_that_is_about_as_good_as_the_best(
    monkeypatch: pytest.MonkeyPatch, accuracies: tuple[float, ...], chosen: int
) -> None:
    """Of 50 texts, 0.9 has a standard error of 0.042."""
    found = iter(accuracies)
    monkeypatch.setattr(anchoring, "prototype_accuracy", lambda *_: next(found))
    monkeypatch.setattr(anchoring, "Encoder", MagicMock())
    monkeypatch.setattr(anchoring, "find_layers", lambda _: range(len(accuracies) + 1))
    for name in ("Backbone", "body_of"):
        monkeypatch.setattr(anchoring, name, MagicMock())
    assert anchoring.find_anchor(None, None, {"a": [Lesson("do", "it")] * 100}, 64).layer == chosen
