"""The study of Self-MoE, small: every table is there, of what it says; a run that was killed goes on; what was made is not made again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.messages import heard
from tests.studies.smoke import SETTINGS, command
from tests.training.running import At, die, killed
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.io.seals import read_record, write_record
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.lessons.lessons import Lesson, read_lessons
from unmask.moe.experts.likelihood import response_likelihood
from unmask.starter import starter_lessons
from unmask.studies.claims.claim import Claim
from unmask.studies.results import read_results
from unmask.studies.self_moe.measurements import Measurements, Values
from unmask.studies.self_moe.paper_claims import verdicts
from unmask.studies.self_moe.plan import MIXSE, VARIANTS, StudyPlan, load_plan, scales
from unmask.studies.self_moe.run import BASE, INSTANCE, ORACLE, Findings, _require_lessons, is_complete, rows_of, study
from unmask.studies.self_moe.study_data import StudyData
from unmask.studies.self_moe.tables import sheets

DOMAINS = ["knowledge", "reasoning", "math", "coding"]
*LITTLE, ABLATIONS = SETTINGS["self-moe"]


def run(plan: StudyPlan, folder: Path, *callbacks: Any) -> Findings:
    source = Source("pico", dtype="float32")
    return study(plan, source, Path(), folder, lambda *_: [], callbacks)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run by the command line."""
    folder = tmp_path_factory.mktemp("study")
    done = CliRunner().invoke(app, command("self-moe", folder), catch_exceptions=False)
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
        f"{name}, {number} lessons" for number in (2, 5) for name in (INSTANCE, MIXSE)
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
        speaker, tokenizer = load_language_model(Source(str(model), dtype="float32"))
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
    for against, changes in ((BASE, [0, -2, -1]), (INSTANCE, [1, -1, 0])):
        rows = rows_of(found, values, against)
        assert [row.model for row in rows] == list(values)
        assert [row.difference[0] for row in rows] == changes
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
    assert made and made == {file: file.stat().st_mtime_ns for file in made}
    again = json.loads((whole / "results.json").read_text())
    for row in again["main"]:
        assert row["average"] == float(np.mean([values.mean() for values in found.main[row["model"]].values()]))
    with pytest.raises(UnmaskError, match="holds a run with other lessons or settings"):
        run(load_plan("smoke", [*LITTLE, "ablations=[]", "lora.r=2"]), tmp_path / "cut")


@pytest.fixture
def standing(whole: Path, tmp_path: Path) -> Path:
    """The folder of a whole run, to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "study"))


def test_a_study_of_another_precision_is_refused(standing: Path) -> None:
    """Rows of two precisions would mix in one table."""
    with pytest.raises(UnmaskError, match="holds a run with other lessons or settings"):
        study(load_plan("smoke", [*LITTLE, ABLATIONS]), Source("pico", dtype="bfloat16"), Path(), standing, lambda *_: [])


@pytest.mark.sample(0)
def test_rows_that_were_measured_with_other_weights_are_refused(standing: Path) -> None:
    kept = standing / "values" / "MiXSE, weights.json"
    weights = read_record(kept)
    assert weights
    write_record(kept, {"weights": ["others"]})
    plan = load_plan("smoke", [*LITTLE, ABLATIONS])
    with pytest.raises(UnmaskError, match="'MiXSE' was measured with other weights"):
        run(plan, standing)
    kept.unlink()  # as older versions left it
    run(plan, standing)
    assert read_record(kept) == weights
    write_record(kept, {"weights": ["others"]})  # of a run that was killed before it measured anything
    for values in {*kept.parent.glob("MiXSE.json"), *kept.parent.glob("MiXSE, *.json")} - {kept}:
        values.unlink()
    run(plan, standing)
    assert read_record(kept) == weights


def test_values_beside_a_row_that_was_lost_are_of_its_model_too(base: Path, tmp_path: Path) -> None:
    """They would stand beside values of the new model, in one row of a table."""
    write_record(tmp_path / "x, weights.json", {"weights": ["others"]})
    measurements = Measurements(Source(str(base)), {}, 64, tmp_path)
    for left in ("x", "x, abilities", "x, answers", "x, usage", "x, renormalised, multiple choice"):
        write_record(tmp_path / f"{left}.json", {"math": [1.0]})
        with pytest.raises(UnmaskError, match="'x' was measured with other weights"):
            measurements.model("x", None)
        (tmp_path / f"{left}.json").unlink()
    write_record(tmp_path / "x 2, answers.json", {})  # of another row
    assert measurements.model("x", None) == {}


def test_fewer_lessons_are_fewer() -> None:
    with pytest.raises(UnmaskError, match=r"sizes have to be below number \(4\), and 4 is not"):
        load_plan("smoke", ["number=4", "sizes=[2, 4]"])


def file_of(folder: Path, name: str, number: int) -> str:
    """A file of a test of two choices, of so many items."""
    rows = [
        {"goal": f"Goal {one} of {name}", "sol1": f"do {one}", "sol2": f"leave {one} alone", "label": one % 2}
        for one in range(number)
    ]
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"{name}.jsonl"


def asked(plan: list[str], folder: Path, data: Path) -> tuple[Findings, list[str]]:
    """What a study found, and what it said that it measures."""
    settings = [*LITTLE, ABLATIONS, *plan]
    with heard() as said:
        findings = study(load_plan("smoke", settings), Source("pico", dtype="float32"), data, folder, lambda *_: [])
    measuring = "pico: measuring "
    return findings, [message.removeprefix(measuring) for message in said if message.startswith(measuring)]


EVERY_ROW = [
    BASE, *(f"expert {name}" for name in DOMAINS), INSTANCE, "TIES", "DARE", "linear", MIXSE,
    "MiXSE, renormalised", "MiXSE, top-2", "MiXSE, top-2 renormalised", "MiXSE, all", "MiXSE, random", "MiXSE, uniform",
    "layer routers", "shared expert", "joint top-2", "MiXSE of 2", "MiXSE of 3", "instance merging 2", "MiXSE 2",
]  # fmt: skip


@pytest.mark.sample(0)
def test_a_study_that_stands_measures_what_is_new_and_a_stopped_one_goes_on(
    standing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every model of the study is asked, and shown; what is there is not measured again; other items are other items."""
    from unmask.moe.experts.abilities.harness import accuracies
    from unmask.studies.self_moe import measurements as measuring

    piqa, more = f'abilities.piqa="{file_of(tmp_path, "few", 3)}"', f'abilities.piqa="{file_of(tmp_path, "more", 5)}"'
    found, said = asked([], standing, tmp_path)
    assert found.abilities == {} and said == []

    limit = 7

    def stopped(*given: Any, **named: Any) -> Any:
        nonlocal limit
        limit -= 1
        if not limit:
            raise KeyboardInterrupt
        return accuracies(*given, **named)

    monkeypatch.setattr(measuring, "accuracies", stopped)
    with pytest.raises(KeyboardInterrupt):
        asked([piqa], standing, tmp_path)
    monkeypatch.setattr(measuring, "accuracies", accuracies)
    found, said = asked([piqa], standing, tmp_path)
    assert said == [f"{row}: piqa" for row in EVERY_ROW[6:]], "it goes on where it was stopped"
    assert list(found.abilities) == EVERY_ROW
    assert all(len(values["piqa"]) == 3 for values in found.abilities.values())
    [main, others] = [sheet for sheet in sheets(found) if sheet.title.startswith("Abilities")]
    assert [row[0] for row in main.rows] == [row for row in EVERY_ROW if row in found.main]
    assert [row[0] for row in others.rows] == [BASE, *(row for row in EVERY_ROW if row not in found.main)]
    assert [row["model"] for row in found.as_json()["abilities"]] == EVERY_ROW

    found, said = asked([piqa], standing, tmp_path)
    assert said == [] and list(found.abilities) == EVERY_ROW
    found, said = asked([], standing, tmp_path)
    assert said == [] and list(found.abilities) == EVERY_ROW, "what was measured stays in the report"
    found, said = asked([more, "limit=4"], standing, tmp_path)
    assert said == [f"{row}: piqa" for row in EVERY_ROW]
    assert all(len(values["piqa"]) == 4 for values in found.abilities.values())


@pytest.mark.sample(0)
def test_damaged_and_older_values_are_measured_again(standing: Path, tmp_path: Path) -> None:
    piqa = f'abilities.piqa="{file_of(tmp_path, "few", 3)}"'
    first, _ = asked([piqa], standing, tmp_path)
    values = standing / "values"
    (values / "TIES.json").write_bytes((values / "TIES.json").read_bytes()[:40])
    (values / "MiXSE, usage.json").write_text("")
    (values / "overhead.json").write_text("")
    (values / "DARE, abilities.json").write_text('{"piqa": [100.0, 0.0]}')  # of which items, it does not say
    with pytest.warns(UserWarning, match="is damaged"):
        again, said = asked([piqa], standing, tmp_path)
    assert said == ["TIES", "DARE: piqa", "where the tokens of MiXSE go"]
    for row, right in first.abilities.items():
        assert again.abilities[row]["piqa"].tolist() == right["piqa"].tolist()
    assert {domain: values.tolist() for domain, values in again.main["TIES"].items()} == {
        domain: values.tolist() for domain, values in first.main["TIES"].items()
    }
    assert again.usage == first.usage


@pytest.mark.sample(0)
def test_rows_are_asked_as_they_are(standing: Path, tmp_path: Path) -> None:
    from unmask.moe.experts.abilities.ability_tests import read_items
    from unmask.moe.experts.abilities.harness import accuracy
    from unmask.moe.mixture.mixture_folder import load_mixture
    from unmask.moe.mixture.model import override_routing

    name = file_of(tmp_path, "many", 24)
    found, _ = asked([f'abilities.piqa="{name}"'], standing, tmp_path)
    items, folder = read_items("piqa", tmp_path / name), standing
    for row, model in (("expert math", folder / "experts/math"), ("layer routers", folder / "mixtures/layer-routers")):
        speaker, tokenizer = load_language_model(Source(str(model), dtype="float32"))
        assert found.abilities[row]["piqa"].tolist() == (100 * accuracy(speaker, tokenizer, "piqa", items)).tolist()
    mixture, tokenizer = load_mixture(folder / "mixtures/MiXSE", Source("pico", dtype="float32"))
    for choice in ("top-2", "all", "random", "renormalised"):
        with override_routing(mixture, choice):
            right = accuracy(mixture.model.eval(), tokenizer, "piqa", items)
        assert found.abilities[f"MiXSE, {choice}"]["piqa"].tolist() == (100 * right).tolist()


def test_tests_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    piqa = file_of(tmp_path, "few", 3)
    no_math = [f'abilities.piqa="{piqa}"', 'abilities.math="math/test.jsonl"', "abilities.math=false"]
    for settings, why in (
        (['abilities.mbpp=""'], "run_code=true"),
        (
            ['abilities.math="math/test.jsonl"'],
            r"The file of the ability test 'math' does not exist: '.*math/test.jsonl'.*--set abilities.math=''\), or .*=false",
        ),
        (['abilities.nothing=""'], "nothing"),
    ):
        with pytest.raises(UnmaskError, match=why):
            asked(settings, tmp_path / "study", tmp_path)
    assert not list((tmp_path / "study").glob("[a-z]*"))
    assert load_plan("smoke", no_math).requested_abilities == {"piqa": piqa}
    paper = load_plan("paper").requested_abilities
    assert {"math", "triviaqa", "nq"} <= paper.keys()


@pytest.mark.parametrize("name", ["../math", "a/b", "..", "instance"])
def test_domains_and_models_give_plain_names_to_folders(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=r"not a plain file name|is the name of the expert of all domains"):
        load_plan("smoke", [f"seeds={{'{name}' = 'starter:math', b = 'starter:coding'}}", "number=2"])


@pytest.mark.parametrize("name", ["school math", "math, weights", "math 33"])
def test_a_domain_is_one_word_so_that_no_rows_share_a_file(name: str) -> None:
    with pytest.raises(UnmaskError, match=f"'{name}' is not one word"):
        load_plan("smoke", [f'seeds={{math="starter:math","{name}"="starter:coding"}}'])


def test_starter_lessons_are_ours() -> None:
    with pytest.raises(UnmaskError, match="not a plain file name"):
        starter_lessons("../../secret")


def test_a_folder_is_called_after_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.cli.reproduce import _called

    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert [_called(name) for name in (".", "../model", "x/y", "smollm2")] == ["model", "model", "y", "smollm2"]


def test_the_command_of_a_study_can_be_typed_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder below the current one keeps its path. No other path of this machine is shown."""
    from unmask.cli.reproduce import _command

    (tmp_path / "here" / "made" / "mixture").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    for given, named in (
        ("made/mixture", "made/mixture"),
        ("smollm2", "smollm2"),
        ("someone/on-a-hub", "someone/on-a-hub"),
        (str(tmp_path / "here/made/mixture"), "mixture"),
        ("../here/made/mixture", "mixture"),
        (".", "here"),
    ):
        assert f" -m {named} " in _command("moee", "small", given, None, None, "auto")


def test_plans(tmp_path: Path) -> None:
    assert scales() == ["smoke", "small", "paper"]
    for scale in scales():
        assert load_plan(scale).models
    small = load_plan("small")
    assert small.expert_learning(4 * small.number, 0).steps == 4 * small.expert_learning(small.number, 0).steps, "equal data"
    assert small.router_learning("example", 3, trained=True, seed=0).batch == 6, "as many lessons of each domain"
    assert {small.router_learning("example", n, trained=True, seed=0).accumulate for n in (2, 3, 4)} == {1}
    saving = load_plan("paper")
    assert (saving.expert_learning(saving.number, 0).batch, saving.expert_learning(saving.number, 0).accumulate) == (32, 16)
    three = saving.router_learning("example", 3, trained=True, seed=0)
    assert (three.batch, three.accumulate) == (30, 30), "16 passes do not share 30 lessons equally; 30 are the next that do"
    few = load_plan("small", ["passes=16", "batch=6"]).expert_learning(small.number, 0)
    assert few.accumulate == 6, "no pass is empty"
    assert VARIANTS[MIXSE].routing.top_k == 1
    for setting, why in (("ablations=['no']", "Unknown ablation 'no'"), ("numbers=3", "numbers"), ("number=1", "number")):
        with pytest.raises(UnmaskError, match=why):
            load_plan("small", [setting])
    with pytest.raises(UnmaskError, match="smal"):
        load_plan("smal")
    with pytest.raises(UnmaskError, match="Give the folder of the data sets"):
        run(load_plan("smoke", ['seeds.math="none.jsonl"']), tmp_path)


def test_claims_are_decided_by_the_rows_of_the_tables() -> None:
    random = np.random.default_rng(0)

    def row(nats: float, math: float = 0.0) -> Values:
        return {name: nats + (math if name == "math" else 0) + 0.01 * random.normal(size=12) for name in ("math", "coding")}

    rows = {
        "MiXSE": row(1.0),
        "base": row(2.0),
        "instance merging": row(0.5),
        "expert math": row(1.5, math=-1),
        "expert coding": row(1.5),
    }
    claims = [
        Claim(id="base", where="1", says="", better="MiXSE", than=("base",)),
        Claim(id="instance", where="1", says="", better="MiXSE", than=("instance merging",)),
        Claim(id="math", where="1", says="", better="expert math", than=("expert coding",), kinds=("math",)),
        Claim(id="coding", where="1", says="", better="expert coding", than=("expert math",), kinds=("coding",)),
        Claim(id="no domain", where="1", says="", better="expert math", than=("base",), kinds=("law",)),
        Claim(id="no row", where="1", says="", better="MiXSE", than=("TIES",)),
    ]
    found = {one.claim.id: one for one in verdicts(claims, rows)}
    assert {name: one.verdict for name, one in found.items()} == {
        "base": "confirmed", "instance": "refuted", "math": "confirmed", "coding": "undecided",
        "no domain": "not measured", "no row": "not measured",
    }  # fmt: skip
    [test] = found["base"].tests
    assert test.difference == pytest.approx(1, abs=0.05) and (test.n, test.unit) == (24, "items")


def test_a_run_says_that_it_is_finished_and_keeps_its_tables(whole: Path) -> None:
    said = read_results(whole)
    report = (whole / "report.md").read_text()
    assert said.finished and said.smoke and said.tables and all(table.markdown() in report for table in said.tables)
    assert sorted(said.data) == sorted(f"{name}, {part}" for name in DOMAINS for part in ("learned", "held out"))
    assert {test.measured_in for one in said.claims for test in one.tests} == {"nats per token"}


def test_a_run_decides_the_claims_whose_rows_it_has(whole: Path) -> None:
    found = {one["claim"]["id"]: one for one in json.loads((whole / "results.json").read_text())["claims"]}
    assert list(found) == [claim.id for claim in load_plan("small").claims]
    assert found["mixse-beats-base"]["tests"] and found["one-beats-all"]["tests"]
    assert not any(one["verdict"] == "not testable here" for one in found.values())
    assert found["self-written"]["verdict"] == found["nothing-forgotten"]["verdict"] == "not measured", "it was not asked for"


def test_a_study_is_complete_with_its_last_table() -> None:
    plan = load_plan("smoke")
    assert not is_complete(Findings(sizes={size: {} for size in plan.sizes}), plan)
    assert is_complete(Findings(sizes={plan.number: {}}), plan)


def test_sizes_that_a_model_did_not_write_are_refused() -> None:
    """Else rows of other numbers would be of the same lessons."""
    plan = load_plan("smoke", ["number=8", "sizes=[2, 6]", 'lessons="written"'])
    lessons = [Lesson(str(number), "x") for number in range(8)]
    data = StudyData({"math": lessons[:5], "coding": lessons}, {}, {})
    with pytest.raises(UnmaskError, match="sizes names 6, and the model wrote 5 lessons of 'math'"):
        _require_lessons(plan, data)
    _require_lessons(plan.model_copy(update={"sizes": (2, 4)}), data)
