"""What a study of Self-MoE can add: likelihoods of right answers, and lessons that a model writes. A study that stands is extended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.messages import heard
from tests.sketches import sketching
from tests.studies.test_self_moe import DOMAINS, LITTLE, file_of
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model, load_language_model
from unmask.moe.experts.abilities.ability_tests import read_items
from unmask.moe.experts.abilities.answer_likelihood import answer_likelihood, draw_choices
from unmask.moe.experts.lessons.generation import Sampling, Text, Writer
from unmask.moe.experts.lessons.lessons import read_lessons
from unmask.moe.mixture.expert_folder import read_expert
from unmask.moe.mixture.merging import merge_experts
from unmask.moe.mixture.mixture_folder import load_mixture
from unmask.moe.mixture.model import override_routing
from unmask.studies.self_moe import written_lessons
from unmask.studies.self_moe.measurements import Choices
from unmask.studies.self_moe.paper_claims import verdicts
from unmask.studies.self_moe.plan import MIXSE, load_plan
from unmask.studies.self_moe.report import write_report
from unmask.studies.self_moe.run import BASE, INSTANCE, ORACLE, Findings, study

PICO = Source("pico", dtype="float32")


def run(folder: Path, *settings: str, data: Path = Path()) -> tuple[Findings, list[str]]:
    """The findings of a small study, and what it said."""
    plan = load_plan("smoke", [*LITTLE, "ablations=[]", "fewer_experts=false", *settings])
    with heard() as said:
        found = study(plan, PICO, data, folder, lambda *_: [])
    with sketching():
        write_report(found, folder, "pico", plan)  # once: test_self_moe.py has it written after each table, and drawn
    return found, [message.removeprefix("pico: ") for message in said]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study without any of it."""
    folder = tmp_path_factory.mktemp("plain") / "study"
    run(folder)
    return folder


@pytest.fixture
def standing(plain: Path, tmp_path: Path) -> Path:
    """The same, to be extended."""
    return Path(shutil.copytree(plain, tmp_path / "study"))


@pytest.mark.sample(0)
def test_mixtures_of_fewer_experts_are_added_to_a_study_that_stands(standing: Path) -> None:
    without, said = run(standing)
    assert said == [] and "## Number of experts" not in (standing / "report.md").read_text()
    verdict = {one["claim"]["id"]: one["verdict"] for one in json.loads((standing / "results.json").read_text())["claims"]}
    assert without.growing == {} and verdict["each-expert-helps"] == "not measured"

    found, said = run(standing, "fewer_experts=true")
    fewer = [f"mixtures/MiXSE-{number}" for number in range(2, len(DOMAINS))]
    assert [message for message in said if "training" in message] == [f"training {place}" for place in fewer]
    assert len(found.growing) == len(DOMAINS) + 1 and "## Number of experts" in (standing / "report.md").read_text()


@pytest.mark.sample(0)
def test_answers_are_added_to_a_study_that_stands(standing: Path, tmp_path: Path) -> None:
    few, more = (f'answers.piqa="{file_of(tmp_path, name, number)}"' for name, number in (("few", 3), ("more", 5)))
    found, said = run(standing, few, data=tmp_path)
    assert said == [f"measuring the answers of {row}: piqa" for row in (BASE, INSTANCE, MIXSE)], "and nothing else"
    items = read_items("piqa", tmp_path / "few.jsonl")
    for row, model in ((BASE, "pico"), (INSTANCE, standing / "experts/instance"), (MIXSE, standing / "mixtures/MiXSE")):
        expected = answer_likelihood(*load_language_model(Source(str(model), dtype="float32")), items)
        assert found.answers[row]["piqa"] == pytest.approx(expected, abs=1e-6)
    report = (standing / "report.md").read_text()
    assert "## Answers of ability tests" in report and "Items: piqa 3." in report
    results = json.loads((standing / "results.json").read_text())
    assert [row["model"] for row in results["answers"]] == [BASE, INSTANCE, MIXSE] and results["finished"]

    assert run(standing, few, data=tmp_path)[1] == []
    found, said = run(standing, more, "limit=4", data=tmp_path)
    assert len(said) == 3 and len(found.answers[BASE]["piqa"]) == 4, "other items are other items"
    assert run(standing, more, "answers.piqa=false", data=tmp_path)[0].answers == {}


def test_claims_about_abilities_are_decided_by_answers() -> None:
    random = np.random.default_rng(0)
    noise = {name: random.normal(size=60) for name in ("hellaswag", "piqa", "truthfulqa", "humaneval")}

    def row(worse: float) -> dict[str, Any]:
        return {name: items + worse + 0.001 * random.normal(size=60) for name, items in noise.items()}

    claims = [claim for claim in load_plan("small").claims if claim.kinds[:1] == ("hellaswag",)]
    found = Findings(answers={BASE: row(0), MIXSE: row(0.01), INSTANCE: row(0.2)})
    verdict = {one.claim.id: one.verdict for one in verdicts(claims, found.rows)}
    assert verdict == dict.fromkeys(("nothing-forgotten", "instance-forgets", "mixse-forgets-less"), "confirmed")
    found.answers = {BASE: row(0), MIXSE: row(0.1), INSTANCE: row(-0.2)}
    assert {one.verdict for one in verdicts(claims, found.rows)} == {"refuted"}
    [test] = next(one.tests for one in verdicts(claims, found.rows) if one.claim.id == "nothing-forgotten")
    assert test.n == 180, "coding is a domain of the study, so its items do not count"


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
    mixture, _ = load_mixture(standing / "mixtures/MiXSE", PICO)
    merged, tokenizer = load_base_language_model(PICO)
    experts = [read_expert(standing / "experts" / name) for name in DOMAINS]
    with override_routing(mixture, "renormalised"):
        merged = merge_experts(merged, experts, "ties", density=load_plan("smoke").ties_density)
        models = {"TIES": merged.eval(), "MiXSE, renormalised": mixture.model.eval()}
        folders = {BASE: "pico", "expert math": standing / "experts/math", MIXSE: standing / "mixtures/MiXSE"}
        models |= {row: load_language_model(Source(str(place), dtype="float32"))[0] for row, place in folders.items()}
        for row, model in models.items():
            expected = answer_likelihood(model, tokenizer, [one.item for one in choices])
            assert found.multiple_choice[row].behind["gsm8k"] == pytest.approx(expected, abs=1e-5)
            solutions = answer_likelihood(model, tokenizer, [one.solution for one in choices if one.solution])
            assert found.multiple_choice[row].nats["gsm8k"] == pytest.approx(solutions, abs=1e-5)
            assert found.multiple_choice[row].right["gsm8k"].tolist() == [100 * (value < 0) for value in expected]
    report = (standing / "report.md").read_text()
    assert "## Multiple choice\n" in report and "| chance | 25.0 |" in report and "Items: gsm8k 5." in report
    results = json.loads((standing / "results.json").read_text())["multiple choice"]
    assert results["chance"] == {"gsm8k": 25} and [row["model"] for row in results["right"]] == CHOOSING

    assert run(standing, f'multiple_choice.gsm8k="{file}#5"', data=tmp_path)[1] == []
    found, said = run(standing, f'multiple_choice.gsm8k="{file}"', data=tmp_path)
    assert len(said) == len(CHOOSING) and len(found.multiple_choice[BASE].behind["gsm8k"]) == 8, "other items are other items"
    found, _ = run(standing, "multiple_choice.gsm8k=false", data=tmp_path)
    assert not found.multiple_choice and "multiple choice" not in (standing / "report.md").read_text().casefold()


def test_the_right_choice_of_the_human_answer_is_its_likelihood(standing: Path, tmp_path: Path) -> None:
    """Of a test whose right choice is the human answer, as for BBH."""
    rows = [{"task": "navigate", "input": f"Go {one} steps.", "target": ["Yes", "No"][one % 2]} for one in range(4)]
    (tmp_path / "bbh.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found, _ = run(standing, 'multiple_choice.bbh="bbh.jsonl"', data=tmp_path)
    choices = draw_choices("bbh", tmp_path / "bbh.jsonl", None, 0, lambda _: False)
    references = [replace(one.item, choices=(), reference=one.item.choices[int(str(one.item.target))]) for one in choices]
    expected = answer_likelihood(*load_language_model(PICO), references)
    assert found.multiple_choice[BASE].nats["bbh"] == pytest.approx(expected, abs=1e-5)


def test_claims_about_choices_are_decided_by_how_far_right_ones_are_behind() -> None:
    random = np.random.default_rng(0)
    noise = {name: random.normal(size=60) for name in ("bbh", "gsm8k", "mbpp")}

    def row(worse: float) -> Choices:
        values = {name: items + worse + 0.001 * random.normal(size=60) for name, items in noise.items()}
        return Choices(values, {name: -items for name, items in values.items()})

    claims = [claim for claim in load_plan("small").claims if claim.id.startswith("choice-")]
    better = {row for claim in claims for row in (claim.better, *claim.than)}
    assert better == {f"{row}, multiple choice" for row in CHOOSING}, "every row is in a claim"
    levels = {INSTANCE: 0.2, "TIES": 0.2, BASE: 0.4, "expert knowledge": 0.6, MIXSE: 0.1, "MiXSE, renormalised": 0.1}
    found = Findings(multiple_choice={row_: row(levels.get(row_, 0.3)) for row_ in CHOOSING})
    assert {one.verdict for one in verdicts(claims, found.rows)} == {"confirmed"}
    found = Findings(multiple_choice={row_: row(-levels.get(row_, 0.3)) for row_ in CHOOSING})
    assert {one.verdict for one in verdicts(claims, found.rows)} == {"refuted"}


def test_choices_that_cannot_be_asked_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    file = problems(tmp_path, 8)
    for setting, why in (
        ('multiple_choice.gsm8k="none.jsonl"', r"'gsm8k' needs a file.*--set multiple_choice.gsm8k=false"),
        (f'multiple_choice.gsm8k="{file}#no"', "a number of items stands behind '#'"),
        (f'multiple_choice.gsm8k="{file}#0"', "a number of items stands behind '#'"),
        ('multiple_choice.piqa="x"', "Unknown ability as a multiple choice 'piqa'"),
    ):
        with pytest.raises(UnmaskError, match=why):
            run(tmp_path / "study", setting, data=tmp_path)
    assert not list((tmp_path / "study").glob("[a-z]*"))


def test_answers_that_are_not_there_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    for setting in ('answers.piqa="none.jsonl"', 'answers.piqa=""'):
        with pytest.raises(UnmaskError, match=r"The answers of the ability test 'piqa' need a file.*--set answers.piqa=false"):
            run(tmp_path / "study", setting, data=tmp_path)
    with pytest.raises(UnmaskError, match="none-such"):
        run(tmp_path / "study", 'answers.none-such="x"', data=tmp_path)
    assert not list((tmp_path / "study").glob("[a-z]*"))


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
    monkeypatch.setattr(written_lessons, "Writer", Scripted)
    monkeypatch.setattr("unmask.studies.self_moe.study_data._SPARE", 2)
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
    for name in ("self-written", "human-beats-self-written", *(f"self-written-{name}" for name in DOMAINS)):
        assert claims[name]["tests"], name
    assert run(standing, "written=2")[0].written.keys() == found.written.keys()
    assert Scripted.batches == 2 * len(DOMAINS)


@pytest.mark.usefixtures("writing")
def test_lessons_are_written_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot write says so in a minute, not after hours."""
    monkeypatch.setattr(Scripted, "left", 0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "written=2")
    assert (tmp_path / "written").is_dir() and not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.usefixtures("writing")
@pytest.mark.parametrize("settings", [("written=2",), ('lessons="written"',)])
def test_what_the_training_would_refuse_is_refused_before_anything_is_written(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    for more, source, why in (
        ("ablations=[]", replace(PICO, device="cuda:1"), r"first GPU that it sees, and not cuda:1.*CUDA_VISIBLE_DEVICES=1"),
        ('ablations=["joint top-1"]', PICO, "A batch of 6 cannot hold equally many examples of 4 domains"),
    ):
        plan = load_plan("smoke", [*LITTLE, "batch=6", more, *settings])
        with pytest.raises(UnmaskError, match=why):
            study(plan, source, Path(), tmp_path / "study", lambda *_: [])
    assert not (tmp_path / "study").exists()


@pytest.mark.usefixtures("writing")
def test_a_broken_file_of_a_test_is_found_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"question": "Which?"}\n')
    with pytest.raises(UnmaskError, match=r"broken\.jsonl does not fit the test .piqa."):
        run(tmp_path / "study", "written=2", 'answers.piqa="broken.jsonl"', data=tmp_path)
    assert Scripted.batches == 0 and not (tmp_path / "study" / "written").exists()


@pytest.mark.sample(0)
@pytest.mark.usefixtures("writing")
def test_another_writer_is_not_the_model_itself(standing: Path, base: Path) -> None:
    found, _ = run(standing, "written=5", f'writer="{base}"')
    assert f"{MIXSE}, written by {base.name}" in found.written and f"{MIXSE}, self-written" not in found.rows
    for name in DOMAINS:
        whole = found.written[f"expert {name}, human lessons"]
        assert (whole[name] == found.main[f"expert {name}"][name]).all(), "all lessons: the experts of the main table"
    results = json.loads((standing / "results.json").read_text())
    assert {one["claim"]["id"]: one["verdict"] for one in results["claims"]}["self-written"] == "not measured"


@pytest.mark.sample(0)
@pytest.mark.usefixtures("writing")
def test_a_model_that_writes_too_little_learns_from_what_there_is(standing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three lessons in four that pass, two of three are missing in a domain; and of none, no expert learns."""
    monkeypatch.setitem(RESPONSES, "A programmer", "def f(:")
    found, said = run(standing, "written=2")
    assert found.written == {} and found.yields["coding"].kept == 0 and found.yields["math"].kept == 3
    assert any("wrote no lesson of a domain" in message for message in said)
    assert "## What the model wrote" in (standing / "report.md").read_text()

    monkeypatch.setitem(RESPONSES, "A programmer", "def f(x):\n    return x")
    monkeypatch.setattr("unmask.studies.self_moe.study_data._SPARE", 1)
    found, _ = run(standing, "written=3")
    assert {one.kept for one in found.yields.values()} == {2}
    record = json.loads((standing / "experts-2/math/expert.json").read_text())["settings"]
    own = json.loads((standing / "written/pico-3/experts-2/math/expert.json").read_text())
    assert own["lessons"]["number"] == record["lessons"]["number"] == 2, "human lessons are as few"


@pytest.mark.sample(0)
@pytest.mark.usefixtures("writing")
def test_a_domain_with_few_written_lessons_leaves_the_others_theirs(standing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of both arms learn as many lessons of a domain as were written of it, for as many steps."""
    monkeypatch.setattr(Scripted, "weak", "A programmer")
    monkeypatch.setattr("unmask.studies.self_moe.study_data._SPARE", 1)
    found, said = run(standing, "written=3")
    numbers = {name: 1 if name == "coding" else 2 for name in DOMAINS}
    assert {name: one.kept for name, one in found.yields.items()} == numbers
    assert any(", ".join(f"{name} {number}" for name, number in numbers.items()) in message for message in said)
    for arm in (standing, standing / "written/pico-3"):
        for name, number in numbers.items():
            assert (
                json.loads((arm / f"experts-{number}" / name / "expert.json").read_text())["settings"]["lessons"]["number"]
                == number
            )
        mixture = arm / f"mixtures-{'-'.join(map(str, numbers.values()))}" / MIXSE
        domains = json.loads((mixture / "mixing.json").read_text())["settings"]["domains"]
        assert {name: of["number"] for name, of in domains.items()} == numbers, "its router learns the same lessons"
    same, _ = run(standing, "written=3")
    assert all((same.written[row][name] == found.written[row][name]).all() for row in found.written for name in DOMAINS)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["written=6"], "6 written lessons are compared with as many seeds"),
        (["written=2", "number=4"], "written from 5 or more"),
        (["written=2", 'lessons="written"'], "none to compare with"),
        (["written=2", 'seeds={ law = "starter:math", math = "starter:math" }'], "law"),
    ],
)
def test_lessons_that_cannot_be_written_are_refused_at_once(settings: list[str], why: str) -> None:
    with pytest.raises(UnmaskError, match=why):
        load_plan("smoke", [*LITTLE, *settings])


def test_new_parts_of_the_plan_leave_an_old_record_valid(plain: Path) -> None:
    recorded = json.loads((plain / "study.json").read_text())["plan"]
    assert not {"written", "writer", "answers", "multiple_choice", "limit"} & recorded.keys()
