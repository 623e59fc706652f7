"""The study of Self-MoE: its plan, a whole run on pico, resuming, and what can be added to a finished study."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.messages import heard
from tests.sketches import sketching
from tests.studies.smoke import SETTINGS, command
from tests.training.running import At, die, killed
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.io.seals import write_record
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.abilities.ability_tests import read_items
from unmask.moe.experts.abilities.answer_likelihood import answer_likelihood, draw_choices
from unmask.moe.experts.abilities.harness import accuracies
from unmask.moe.experts.lessons.generation import Sampling, Text, Writer
from unmask.moe.experts.lessons.lessons import read_lessons
from unmask.moe.experts.likelihood import response_likelihood
from unmask.moe.mixture.model import load_mixture
from unmask.moe.mixture.override import override_routing
from unmask.studies.claims.claim import Claim
from unmask.studies.self_moe import data as study_data
from unmask.studies.self_moe import measurements
from unmask.studies.self_moe.findings import BASE, INSTANCE, ORACLE, SelfMoEFindings
from unmask.studies.self_moe.measurements import Values
from unmask.studies.self_moe.plan import MIXSE, SelfMoEPlan
from unmask.studies.study import Study
from unmask.studies.study import load_plan as load_any_plan

DOMAINS = ["knowledge", "reasoning", "math", "coding"]

*LITTLE, ABLATIONS = SETTINGS["self-moe"]


PICO = Source("pico", dtype="float32")


def load_plan(scale: str, settings: Sequence[str] = ()) -> SelfMoEPlan:
    plan: SelfMoEPlan = load_any_plan("self-moe", scale, settings)
    return plan


def run(
    folder: Path, *settings: str, data: Path = Path(), callbacks: Sequence[Any] = (), source: Source = PICO
) -> tuple[SelfMoEFindings, list[str]]:
    """The findings of a small study, and what it printed."""
    study = Study("self-moe", "smoke", source, data, folder, callbacks=callbacks)
    with heard() as said, sketching():
        findings = study.measure(load_plan("smoke", [*LITTLE, "ablations=[]", *settings]))
    assert isinstance(findings, SelfMoEFindings)
    return findings, [message.removeprefix("pico: ") for message in said]


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
    assert {row["model"] for row in found["ablations"]} > {"MiXSE, random", "shared expert", "joint top-2"}
    assert [row["model"] for row in found["experts"]] == [
        "0: base", "1: knowledge", "2: and reasoning", "3: and math", "4: and coding",
    ]  # fmt: skip
    assert [row["model"] for row in found["lessons"]] == [
        f"{name}, {number} lessons" for number in (2, 5) for name in (INSTANCE, MIXSE)
    ]
    assert set(found["routing"]) == {MIXSE, "shared expert", "joint top-2"}
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


def test_what_was_made_is_not_made_again_and_a_kill_loses_nothing(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    killed(lambda: run(folder, callbacks=[At(".MiXSE-run", 1, die)]))
    assert (folder / "experts/instance").is_dir() and not (folder / "mixtures/MiXSE").exists()
    made = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file() and "experts" in str(file)}
    found, _ = run(folder)
    assert made and made == {file: file.stat().st_mtime_ns for file in made}
    for row in json.loads((whole / "results.json").read_text())["main"]:
        assert row["average"] == float(np.mean([values.mean() for values in found.main[row["model"]].values()]))
    with pytest.raises(UnmaskError, match="holds a run with other settings"):
        run(folder, "lora.r=2")
    (folder / "values" / "TIES.json").write_text("")
    with pytest.warns(UserWarning, match="is damaged"):
        assert run(folder)[1] == ["measuring TIES"]
    write_record(folder / "values" / "MiXSE, weights.json", {"weights": ["others"]})
    with pytest.raises(UnmaskError, match="'MiXSE' was measured with other weights"):
        run(folder)


@pytest.fixture
def standing(whole: Path, tmp_path: Path) -> Path:
    """The folder of a whole run, to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "study"))


def file_of(folder: Path, name: str, number: int) -> str:
    """A file of a test of two choices, of so many items."""
    rows = [
        {"goal": f"Goal {one} of {name}", "sol1": f"do {one}", "sol2": f"leave {one} alone", "label": one % 2}
        for one in range(number)
    ]
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"{name}.jsonl"


EVERY_ROW = [
    BASE, *(f"expert {name}" for name in DOMAINS), INSTANCE, "TIES", "DARE", "linear", MIXSE,
    "MiXSE, renormalised", "MiXSE, top-2", "MiXSE, top-2 renormalised", "MiXSE, all", "MiXSE, random", "MiXSE, uniform",
    "shared expert", "joint top-2", "MiXSE of 2", "MiXSE of 3", "instance merging 2", "MiXSE 2",
]  # fmt: skip


@pytest.mark.sample(0)
def test_abilities_are_added_to_a_finished_study_and_a_stopped_run_continues(
    standing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every model of the study is measured and shown; nothing is measured again; other items are other items."""
    piqa, more = (f'abilities.piqa="{file_of(tmp_path, name, number)}"' for name, number in (("few", 3), ("more", 5)))
    assert run(standing, ABLATIONS, data=tmp_path)[1] == []
    scored = iter(range(6))

    def stopped(*arguments: Any, **options: Any) -> Any:
        if next(scored, None) is None:
            raise KeyboardInterrupt
        return accuracies(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(measurements, "accuracies", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(standing, ABLATIONS, piqa, data=tmp_path)
    found, said = run(standing, ABLATIONS, piqa, data=tmp_path)
    assert said == [f"measuring {row}: piqa" for row in EVERY_ROW[6:]], "it continues where it was stopped"
    assert [row["model"] for row in found.as_json()["abilities"]] == list(found.abilities) == EVERY_ROW
    speaker, tokenizer = load_language_model(Source(str(standing / "experts/math"), dtype="float32"))
    expected = accuracies(speaker, tokenizer, {"piqa": read_items("piqa", tmp_path / "few.jsonl")})["piqa"]
    assert found.abilities["expert math"]["piqa"].tolist() == (100 * expected).tolist()
    found, said = run(standing, ABLATIONS, data=tmp_path)
    assert said == [] and list(found.abilities) == EVERY_ROW, "measured values stay in the report"
    found, said = run(standing, ABLATIONS, more, "limit=4", data=tmp_path)
    assert len(said) == len(EVERY_ROW) and all(len(values["piqa"]) == 4 for values in found.abilities.values())


def test_steps_and_batches_follow_from_the_plan(tmp_path: Path) -> None:
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
    for setting, why in (("ablations=['no']", "Unknown ablation 'no'"), ("numbers=3", "numbers"), ("number=1", "number")):
        with pytest.raises(UnmaskError, match=why):
            load_plan("small", [setting])
    with pytest.raises(UnmaskError, match="smal"):
        load_plan("smal")
    with pytest.raises(UnmaskError, match="Give the folder of the data sets"):
        run(tmp_path, 'seeds.math="none.jsonl"')


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
    plan = load_plan("smoke").model_copy(update={"claims": tuple(claims)})
    found = {finding.claim.id: finding for finding in SelfMoEFindings(plan, "pico", main=rows).claims}
    assert {name: finding.verdict for name, finding in found.items()} == {
        "base": "confirmed", "instance": "refuted", "math": "confirmed", "coding": "undecided",
        "no domain": "not measured", "no row": "not measured",
    }  # fmt: skip
    [test] = found["base"].tests
    assert test.difference == pytest.approx(1, abs=0.05) and (test.n, test.unit) == (24, "items")


def test_the_paper_is_about_written_lessons() -> None:
    """With human lessons, only the rows of written ones test its claims. If all lessons are written, there are no such rows."""
    of_people, of_model = load_plan("small").claims, load_plan("paper").claims
    compared = [claim for claim in of_people if any("self-written" in row for row in (claim.better, *claim.than))]
    assert {claim.id for claim in compared} >= {claim.id for claim in of_people if not claim.is_own} and len(compared) > 12
    others = [claim for claim in of_people if claim not in compared]
    assert all(claim.is_own and claim.says.startswith("With human lessons: ") for claim in others)
    assert [claim.id for claim in of_model] == [claim.id for claim in others]
    assert not any("lessons:" in claim.says or "after" in claim.where for claim in of_model)
    assert sum(not claim.is_own for claim in of_model) > 20


@pytest.mark.sample(0)
def test_answers_are_added_to_a_study_that_stands(standing: Path, tmp_path: Path) -> None:
    few, more = (f'answers.piqa="{file_of(tmp_path, name, number)}"' for name, number in (("few", 3), ("more", 5)))
    found, said = run(standing, few, data=tmp_path)
    assert said == [f"measuring the answers of {row}: piqa" for row in (BASE, INSTANCE, MIXSE)], "and nothing else"
    items = read_items("piqa", tmp_path / "few.jsonl")
    for row, model in ((BASE, "pico"), (INSTANCE, standing / "experts/instance"), (MIXSE, standing / "mixtures/MiXSE")):
        expected = answer_likelihood(*load_language_model(Source(str(model), dtype="float32")), items)
        assert found.answers[row]["piqa"] == pytest.approx(expected, abs=1e-6)
    assert run(standing, few, data=tmp_path)[1] == []
    found, said = run(standing, more, "limit=4", data=tmp_path)
    assert len(said) == 3 and len(found.answers[BASE]["piqa"]) == 4, "other items are other items"
    assert run(standing, more, "answers.piqa=false", data=tmp_path)[0].answers == {}


def problems(folder: Path, number: int) -> str:
    """A file of unlike problems with different results of one digit."""
    asked = [" ".join(f"{'abcdefgh'[one]}{end}" for end in "stuvw") for one in range(number)]
    rows = [
        {"question": f"{words}?", "answer": f"It is {one}+1=<<{one}+1={one + 1}>>{one + 1}.\n#### {one + 1}"}
        for one, words in enumerate(asked, start=1)
    ]
    (folder / "gsm8k.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return "gsm8k.jsonl"


CHOOSING = [BASE, *(f"expert {name}" for name in DOMAINS), INSTANCE, "TIES", MIXSE, "MiXSE, renormalised"]


@pytest.mark.sample(0)
def test_multiple_choice_is_added_to_a_study_that_stands(standing: Path, tmp_path: Path) -> None:
    file = problems(tmp_path, 8)
    found, said = run(standing, f'multiple_choice.gsm8k="{file}#5"', data=tmp_path)
    assert said == [f"measuring the multiple choice of {row}: gsm8k" for row in CHOOSING], "and nothing else"
    choices = draw_choices("gsm8k", tmp_path / file, 5, 0, lambda _: False)
    mixture, tokenizer = load_mixture(standing / "mixtures/MiXSE", PICO)
    with override_routing(mixture, "renormalised"):
        expected = answer_likelihood(mixture.model.eval(), tokenizer, [choice.item for choice in choices])
    row = found.multiple_choice["MiXSE, renormalised"]
    assert row.behind["gsm8k"] == pytest.approx(expected, abs=1e-5)
    assert row.right["gsm8k"].tolist() == [100 * (value < 0) for value in expected]
    solutions = [choice.solution for choice in choices if choice.solution]
    base = answer_likelihood(*load_language_model(PICO), solutions)
    assert found.multiple_choice[BASE].nats["gsm8k"] == pytest.approx(base, abs=1e-5)
    report = (standing / "report.md").read_text()
    assert "## Multiple choice\n" in report and "| chance | 25.0 |" in report and "Items: gsm8k 5." in report
    assert run(standing, f'multiple_choice.gsm8k="{file}#5"', data=tmp_path)[1] == []
    found, _ = run(standing, "multiple_choice.gsm8k=false", data=tmp_path)
    assert not found.multiple_choice and "multiple choice" not in (standing / "report.md").read_text().casefold()


RESPONSES = {
    "A mathematician": "1 + 1 = 2\n#### 2",
    "A scholar": "B. two",
    "A programmer": "def f(x):\n    return x",
    "A logician": "the second of them",
}


class Scripted(Writer):
    """Writes lessons that pass the filters of every domain, but one response of four; dies after so many batches.

    weak: the role in which it loses two responses of four.
    """

    batches, left, weak = 0, 10**9, ""

    def write(self, prefix: str, rows: Sequence[str], sampling: Sampling, stop: str, seed: int) -> list[Text]:
        if not Scripted.left:
            raise KeyboardInterrupt
        Scripted.left, Scripted.batches = Scripted.left - 1, Scripted.batches + 1
        if sampling.temperature:
            names = (f"{'abcdefgh'[place % 8]}{seed % 89}" for place in range(len(rows)))
            asked = (" ".join(f"{name}{end}" for end in "stuvwxyz") for name in names)
            return [Text(f" {words}?\nA. one\nB. two\nC. six\nD. ten", True) for words in asked]
        role, response = next(one for one in RESPONSES.items() if prefix.startswith(one[0]))
        return [Text(f" {response}", place % 4 > (role == Scripted.weak)) for place in range(len(rows))]


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_data, "Writer", Scripted)
    monkeypatch.setattr(study_data, "_SPARE", 2)
    monkeypatch.setattr(Scripted, "batches", 0)
    monkeypatch.setattr(Scripted, "left", 10**9)


@pytest.mark.usefixtures("writing")
def test_written_lessons_are_compared_with_as_many_human_ones(standing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(folder: Path) -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in folder.rglob("*.safetensors")}

    before = kept(standing)
    monkeypatch.setattr(Scripted, "left", 5)
    with pytest.raises(KeyboardInterrupt):
        run(standing, "written=2")
    monkeypatch.setattr(Scripted, "left", 10**9)
    found, said = run(standing, "written=2")
    assert Scripted.batches == 2 * len(DOMAINS), "a batch of instructions and one of responses each, and none is written twice"
    assert "measuring MiXSE, self-written" in said and "measuring MiXSE 2" not in said, (
        "of human lessons it was measured before"
    )
    assert before.items() <= kept(standing).items(), "what was trained before is used"

    arm = standing / "written/pico-2"
    for name in DOMAINS:
        record = json.loads((arm / "experts-2" / name / "expert.json").read_text())["settings"]
        assert (
            record["lessons"]["number"] == 2
            and record["learning"]
            == json.loads((standing / "experts-2" / name / "expert.json").read_text())["settings"]["learning"]
        ), "as many lessons and steps"
        assert len(read_lessons(arm / "lessons" / name / "lessons.jsonl")) >= 2
        assert found.yields[name].instructions == 4 and found.yields[name].dropped["cut off"] == 1
    models = [*(f"expert {name}" for name in DOMAINS), ORACLE, INSTANCE, "TIES", "DARE", "linear", MIXSE]
    assert list(found.written) == [f"{model}, {lessons}" for lessons in ("self-written", "human lessons") for model in models]
    assert list(found.shares) == [f"{model}, self-written" for model in models]
    for name in DOMAINS:
        own = found.written["expert math, self-written"][name]
        assert (found.written[f"{MIXSE}, human lessons"][name] == found.sizes[2][MIXSE][name]).all()
        assert not (own == found.written["expert math, human lessons"][name]).all()
        assert (found.written[f"{INSTANCE}, human lessons"][name] == found.sizes[2][INSTANCE][name]).all()
    report = (standing / "report.md").read_text()
    assert (
        "## Written lessons" in report
        and "## What the model wrote" in report
        and "| math | 32 | 4 | 3 | repeated 12, cut off 1 |" in report
    )
    results = json.loads((standing / "results.json").read_text())
    assert results["finished"] and results["yields"]["math"]["kept"] == 3 and set(results["shares"]) == set(found.shares)
    claims = {one["claim"]["id"]: one for one in results["claims"]}
    rivals = ("instance", "own-expert", "ties", "dare", "linear")
    for name in (
        "self-written",
        "human-beats-self-written",
        *(f"self-written-beats-{rival}" for rival in rivals),
        *(f"self-written-{name}" for name in DOMAINS),
    ):
        assert claims[name]["tests"], name
    assert run(standing, "written=2")[0].written.keys() == found.written.keys()
    assert Scripted.batches == 2 * len(DOMAINS)
