"""docs/claims.md follows from the plans of the studies and from the results beside it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.synthetic import made, made_findings
from tools import claims
from tools.kept_studies import kept_report
from unmask.designs.prompts import PROMPTS
from unmask.moe.mixture.gating import Routing
from unmask.studies.claims.claim import Claim, Finding
from unmask.studies.engine import load_plan
from unmask.studies.results import StudyResults
from unmask.studies.routers.configurations import CONFIGURATIONS
from unmask.studies.self_moe.plan import VARIANTS
from unmask.training import recipe as training_recipe
from unmask.training.recipe import recipe_file


def test_the_page_is_what_results_and_plans_give() -> None:
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(), "write it again: python -m tools.claims"


@pytest.mark.parametrize("study", claims.PAPERS)
def test_no_result_is_older_than_the_claims_that_it_decides(study: str) -> None:
    for result in claims.results()[study]:
        assert claims.stale(study, result) == [], f"measure again: {result['command']}"


def test_a_claim_that_changes_makes_its_result_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = claims.planned("moee")
    found = [Finding(claim=claim, tests=(), verdict="not measured").model_dump(mode="json") for claim in (first, *others)]
    plan = load_plan("moee", "small").model_dump(mode="json")
    result = {"claims": found, "plan": plan}
    assert claims.stale("moee", result) == []
    for part, value in (("made", {}), ("tasks", ["stsb#10"]), ("max_length", 32), ("reference", "minilm")):
        assert claims.stale("moee", {**result, "plan": {**plan, part: value}}) == [part]
    for chosen in ("seeds", "only", "models"):
        assert claims.stale("moee", {**result, "plan": {**plan, chosen: ["of a command"]}}) == []
    [(name, making)] = plan["made"].items()
    assert claims.stale("moee", {**result, "plan": {**plan, "made": {name: {**making, "seeds": [7]}}}}) == []
    older = {name: {key: value for key, value in one.items() if value} for name, one in plan["embedders"].items()}
    assert older != plan["embedders"]
    assert claims.stale("moee", {**result, "plan": {**plan, "embedders": older}}) == [], "a key may be new, if it is empty"
    changed = first.model_copy(update={"than": ("concat",)})
    monkeypatch.setattr(claims, "planned", lambda _: [changed, *others])
    assert claims.stale("moee", result) == [first.id]
    monkeypatch.setattr(claims, "planned", lambda _: others)
    assert claims.stale("moee", result) == [first.id]


def test_a_command_may_choose_the_number_of_lessons_but_not_the_lessons() -> None:
    [result] = [one for one in claims.results()["self-moe"] if one["place"].endswith("-smollm2")]
    plan = result["plan"]
    assert claims.stale("self-moe", {**result, "plan": {**plan, "number": 7}}) == []
    steps = {**plan["expert"], "steps": 7}
    for part, value in (("seeds", {"math": "other.jsonl"}), ("held_out", 7), ("expert", steps)):
        assert claims.stale("self-moe", {**result, "plan": {**plan, part: value}}) == [part]
    assert claims.stale("self-moe", {**result, "plan": {**plan, "number": 7, "expert": steps}}) == [], (
        "more lessons, more steps"
    )


def test_a_new_claim_is_measured_in_one_result_of_a_study_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that lacks it does not become stale. The page says that it is not measured there."""
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    plan = load_plan("moee", "small").model_dump(mode="json")
    every = [Finding(claim=claim, tests=(), verdict="undecided").model_dump(mode="json") for claim in claims.planned("moee")]
    older, newer = ({**made(model="smollm2", claims=found), "plan": plan} for found in (every[1:], every))
    (tmp_path / "moee-smollm2.json").write_text(json.dumps(older))
    assert claims.stale("moee", older) == [claims.planned("moee")[0].id]
    (tmp_path / "moee-smollm2-more.json").write_text(json.dumps(newer))
    assert claims.stale("moee", older) == [] == claims.stale("moee", newer)
    assert claims.findings(older)[-1].verdict == "not measured"


def test_a_claim_may_be_put_into_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change no number, so nothing has to be measured again. The page has the new words."""
    first, *others = claims.planned("moee")
    found = [Finding(claim=claim, tests=(), verdict="not measured").model_dump(mode="json") for claim in (first, *others)]
    result = {"study": "moee", "claims": found, "plan": load_plan("moee", "small").model_dump(mode="json")}
    reworded = first.model_copy(update={"says": "In plainer words.", "how": "As before.", "where": "table 5"})
    monkeypatch.setattr(claims, "planned", lambda _: [reworded, *others])
    assert claims.stale("moee", result) == []
    assert [one.claim for one in claims.findings(result)] == [reworded, *others]


def changed_recipe(patch: pytest.MonkeyPatch) -> str:
    recipe = recipe_file("pooling-and-attention").read_text(encoding="utf-8")
    patch.setattr(training_recipe, "_tables", lambda _: tomllib.loads(recipe.replace("steps = 60", "steps = 61")))
    return "model 1"


def changed_prompt(patch: pytest.MonkeyPatch) -> str:
    patch.setitem(PROMPTS, "eos", replace(PROMPTS["eos"], template="{text} {eos}"))
    return "embedder design 1"


def changed_configuration(patch: pytest.MonkeyPatch) -> str:
    patch.setitem(CONFIGURATIONS, "top-2", replace(CONFIGURATIONS["top-2"], routing=Routing(top_k=3)))
    return "configuration top-2"


def changed_mixture(patch: pytest.MonkeyPatch) -> str:
    patch.setitem(VARIANTS, "token mean", replace(VARIANTS["token mean"], average="example"))
    return "mixture token mean"


@pytest.mark.parametrize(
    ("study", "change"),
    [
        ("pooling-and-attention", changed_recipe),
        ("pooling-and-attention", changed_prompt),
        ("routers", changed_configuration),
        ("self-moe", changed_mixture),
    ],
)
def test_what_a_result_was_measured_with_makes_it_stale_when_it_changes(
    study: str, change: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding(claim=claim, tests=(), verdict="not measured").model_dump(mode="json") for claim in claims.planned(study)]
    plan = claims.plan_of(study).model_dump(mode="json")
    result = {"claims": found, "plan": plan, "scale": "small", "rests_on": claims.rests_on(study, "small")}
    assert claims.stale(study, result) == []
    old = change(monkeypatch)
    assert old in claims.stale(study, result)
    assert len(claims.stale(study, result)) < len(result["rests_on"]), "the others stay as they were"
    assert claims.stale(study, {**result, "rests_on": None}) == [], "it did not record them"


def test_the_page_says_which_results_do_not_say_what_they_rest_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    for model, rests_on in (("older", None), ("newer", {"model a": "1"})):
        (tmp_path / f"moee-{model}.json").write_text(json.dumps(made(model=model, rests_on=rests_on)))
    of_model = {line.split()[1].strip(","): line for line in claims.page().splitlines() if line.startswith("On ")}
    assert {model: claims.UNRECORDED in line for model, line in of_model.items()} == {"older": True, "newer": False}


def test_a_further_model_is_compared_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which verdicts differ, and how many differences point the same way: whether a second base shows the same trend."""
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    ids = [claim.id for claim in claims.planned("moee")][: len(made_findings())]
    first = [
        one.model_copy(update={"claim": one.claim.model_copy(update={"id": id_})})
        for one, id_ in zip(made_findings(), ids, strict=True)
    ]
    best = next(one for one in first if len(one.tests) > 1)
    turned = [test.model_copy(update={"difference": -test.difference}) for test in best.tests]
    second = [one.model_copy(update={"tests": tuple(turned), "verdict": "undecided"}) if one is best else one for one in first]
    second[0] = first[0].model_copy(update={"tests": (), "verdict": "not measured"})
    for model, found in (("smollm2", first), ("other", second)):
        content = made(model=model, claims=[one.model_dump(mode="json") for one in found])
        (tmp_path / f"moee-{model}.json").write_text(json.dumps(content))
    pairs = [test.difference for one in second for test in one.tests]
    same = sum(one != 0 for one in pairs) - sum(one != 0 for one in (test.difference for test in best.tests))
    page = claims.page()
    assert (
        f"This run and the first run have {len(pairs)} differences in common. {same} of them point the same way. (A claim"
        in page
    )
    changed = [line for line in page.splitlines() if "(first run: " in line]
    [words] = [claim.says for claim in claims.planned("moee") if claim.id == best.claim.id]
    assert changed == [f"- Undecided (first run: {best.verdict}): {words}"]


def test_the_page_says_that_seeds_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    of_plan = len(load_plan("pooling-and-attention", "small").seeds)
    for model, seeds in (("some", [0, 1]), ("all", list(range(of_plan)))):
        content = made(study="pooling-and-attention", model=model, plan={"seeds": seeds})
        (tmp_path / f"pooling-and-attention-{model}.json").write_text(json.dumps(content))
    of_model = {line.split()[1].strip(","): line for line in claims.page().splitlines() if line.startswith("On ")}
    assert f"It has 2 of {of_plan} planned seeds." in of_model["some"] and "planned seeds" not in of_model["all"]


@pytest.mark.parametrize(
    ("measured", "counted", "said"),
    [({"gemma3-270m": 2, "smollm2": 1}, "smollm2", "1 confirmed, "), ({"a": 1, "b": 2}, "b", "2 confirmed, ")],
)
def test_one_result_of_a_study_is_counted(
    measured: dict[str, int], counted: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the first model of the plan, whatever it is called and how much it measured; else the one that measured most."""
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    planned = claims.planned("pooling-and-attention")
    for model, number in measured.items():
        found = [Finding(claim=claim, tests=(), verdict="confirmed") for claim in planned[:number]]
        found += [Finding(claim=claim, tests=(), verdict="not measured") for claim in planned[number:]]
        content = made(study="pooling-and-attention", model=model, claims=[one.model_dump(mode="json") for one in found])
        (tmp_path / f"pooling-and-attention-{model}.json").write_text(json.dumps(content))
    headline, *_ = [line for line in claims.page().splitlines() if line.startswith("**")]
    assert said in headline
    assert f"\n| [Pooling and Attention](#pooling-and-attention) | {counted} | {len(planned)} |" in claims.page()


@pytest.mark.parametrize(("model", "said"), [("smollm2", "2 confirmed, "), ("another", "1 confirmed, ")])
def test_a_claim_that_only_another_run_of_the_model_measured_is_counted(
    model: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    for of_run, confirmed, name in (("smollm2", range(1), "first"), (model, range(1, 2), "second")):
        found = [
            Finding(claim=claim, tests=(), verdict="confirmed" if place in confirmed else "not measured")
            for place, claim in enumerate(claims.planned("moee"))
        ]
        content = made(study="moee", model=of_run, claims=[one.model_dump(mode="json") for one in found])
        (tmp_path / f"moee-{name}.json").write_text(json.dumps(content))
    headline, *_ = [line for line in claims.page().splitlines() if line.startswith("**")]
    assert said in headline


def test_what_only_a_further_run_refutes_is_said_at_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    both, other, *_ = claims.planned("moee")
    for model, refuted in (("smollm2", {both.id}), ("mixture", {both.id, other.id})):
        found = [Finding(claim=one, tests=(), verdict="refuted" if one.id in refuted else "undecided") for one in (both, other)]
        content = made(study="moee", model=model, claims=[one.model_dump(mode="json") for one in found])
        (tmp_path / f"moee-{model}.json").write_text(json.dumps(content))
    beginning = claims.page().partition("| paper |")[0]
    assert beginning.count(both.says) == 1 and f"- [MoEE](#moee), on mixture: {other.says}" in beginning


def test_results_are_taken_in_without_what_the_page_does_not_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RESULTS", tmp_path / "measured")
    monkeypatch.setattr(claims, "PAGE", tmp_path / "claims.md")
    found = [Finding(claim=claim, tests=(), verdict="not measured").model_dump(mode="json") for claim in claims.planned("moee")]
    of_run = made(model="some/where/mixture", command="unmask reproduce moee", claims=found, versions={"torch": "2"})
    content = {**of_run, "cells": {"a": 1}, "plan": {"a": 1}, "base_weights": "c2eb", "dtype": "bfloat16"}
    file = tmp_path / "results.json"
    file.write_text(json.dumps(content))
    (tmp_path / "report.md").write_text("# Tables\n")
    claims.main([str(file)])
    kept = json.loads((tmp_path / "measured" / "moee-mixture.json").read_text())
    assert kept["model"] == "mixture" and "cells" not in kept
    assert (kept["base_weights"], kept["dtype"], kept["scale"]) == ("c2eb", "bfloat16", "small")
    assert StudyResults.model_validate(kept) == StudyResults.model_validate({**of_run, "model": "mixture"}), (
        "`unmask report` reads it"
    )
    page = (tmp_path / "claims.md").read_text()
    assert (tmp_path / "measured" / "moee-mixture.md").read_text() == "# Tables\n"
    assert (
        "On mixture, cpu (x86_64, 2 cores), torch 2; [all tables](measured/moee-mixture.md)." in page
        and "unmask reproduce moee" in page
    )
    assert all(claim.says in page for claim in claims.planned("llm2vec")), "claims without a result are listed too"
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "results.jsonl").write_text('{"model": "/home/me/moee/pico"}\n')
    file.write_text(json.dumps({**content, "model": "pico"}))
    with pytest.raises(
        SystemExit, match=r"results\.jsonl' names a path of this machine: /home/me/moee/pico.* with a relative `-o`"
    ):
        claims.main([str(file)])
    assert not (tmp_path / "measured" / "moee-pico.json").exists()
    file.write_text(json.dumps({**content, "scale": "smoke"}))
    with pytest.raises(SystemExit, match="smoke scale"):
        claims.main([str(file)])
    file.write_text(json.dumps({**content, "finished": False}))
    with pytest.raises(SystemExit, match="not finished"):
        claims.main([str(file)])


def test_a_second_result_is_kept_beside_the_first_wherever_its_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PAGE", tmp_path / "claims.md")
    taken: list[tuple[Path, str]] = []
    monkeypatch.setattr(claims, "keep", lambda file, end, _: taken.append((file, end)))
    folder = tmp_path / "lr=3e-4"
    folder.mkdir()
    file = folder / "results.json"
    file.write_text("{}")
    claims.main([str(file), f"{file}=200"])
    assert taken == [(file, ""), (file, "200")]
    for missing in (tmp_path / "results.json", f"{tmp_path / 'results.json'}=200"):
        with pytest.raises(SystemExit, match=r"results\.json' is not a file\."):
            claims.main([str(missing)])


def test_a_kept_report_has_no_pictures_and_no_claims() -> None:
    """Tables stand beside the pictures, and the page has the claims in the words of today."""
    verdicts = "2 claims: 1 refuted, 1 undecided.\n- Refuted: One.\n- Undecided: Other.\n\n"
    report = (
        f"# A\n\n{verdicts}![routing](figures/routing.png)\n\n![growth](figures/growth.png)\n\n## Claims\n| One | 1 |\n\n"
        "## B\ntext ![inside](one.png)\n- 2 claims of papers stay undecided.\n"
    )
    kept = "# A\n\n[The claims](../claims.md) have verdicts.\n\n## B\ntext ![inside](one.png)\n- 2 claims of papers stay undecided.\n"
    assert kept_report(report) == kept
    assert kept_report("# A\n\n## Claims\n| One | 1 |\n") == "# A\n\n"


def test_a_claim_that_is_not_testable_needs_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on the page all the same, with its reason."""
    measured = [claim for claim in claims.planned("moee") if not claim.untestable]
    found = [Finding(claim=claim, tests=(), verdict="undecided").model_dump(mode="json") for claim in measured]
    result = {"study": "moee", "claims": found, "plan": load_plan("moee", "small").model_dump(mode="json")}
    new = Claim(id="new", where="table 9", says="It sings.", untestable="It has no voice.")
    monkeypatch.setattr(claims, "planned", lambda _: [*measured, new])
    assert claims.stale("moee", result) == []
    assert claims.findings(result)[-1] == Finding(claim=new, tests=(), verdict="not testable here")
    monkeypatch.setattr(claims, "planned", lambda _: [*measured, new.model_copy(update={"untestable": "", "better": "sum"})])
    assert claims.stale("moee", result) == ["new"], "it has become testable"


def test_the_page_tells_claims_of_papers_from_questions_of_others() -> None:
    rows = [line.split(" | ") for line in claims.page().splitlines() if line.startswith("| ") and line.count(" | ") >= 6]
    own = [row for row in rows if row[2].startswith(("our question", "question of reviewers"))]
    assert own and f"\n{len(own)} of the claims are questions of reviewers or our own (" in claims.page()
