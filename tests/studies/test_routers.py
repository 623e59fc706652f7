"""The study of router configurations: its plan, its lessons, the anchor, its tests and its sentences. Small, on pico and on made cells."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner
from unmask.studies.routers.report import _MEASURES, conclusion, measures, routing_and_prediction

from tests.moe.mixture.models import language_model
from tests.moe.routing.recorded import ours
from tests.studies import smoke
from tools.kept_studies import RESULTS as MEASURED
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.io.arrays import load_arrays
from unmask.models.bundled import resolve
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.experts.lesson_training import Learning, schedule
from unmask.moe.experts.lessons.lessons import Lesson, LessonTokens, read_lessons
from unmask.moe.routing.record import read_record
from unmask.studies.claims.claim import Claim, findings
from unmask.studies.results import read_results
from unmask.studies.routers import anchor as anchoring
from unmask.studies.routers import builder as building
from unmask.studies.routers import run as running
from unmask.studies.routers.analysis import (
    Contest,
    Contrast,
    best_information,
    decide,
    distinct_and_good,
    information,
    most_distinct,
    noise_of,
    of_items,
    rows_of,
    seed_noise,
    verdicts,
)
from unmask.studies.routers.cells import Cell, CellRecord, Measuring, SameExperts, prototype_accuracy, responses
from unmask.studies.routers.configurations import CONFIGURATIONS, EMBEDDINGS, OWN, STANDARD, Yardstick, reference_of
from unmask.studies.routers.plan import LessonSet, LessonSource, draw, lessons_of, load_plan, scales
from unmask.studies.routers.run import RoutersRecord, _require_training, study

DOMAINS = ["knowledge", "reasoning", "math", "coding"]


def test_every_scale_has_a_plan_and_every_configuration_a_reference() -> None:
    for scale in scales():
        plan = load_plan(scale)
        assert STANDARD in plan.configurations
    assert set(load_plan("small").configurations) == set(CONFIGURATIONS), "the small scale measures all of them"
    assert all(reference_of(name) in CONFIGURATIONS for name in CONFIGURATIONS)
    for claim in load_plan("small").claims:
        assert {claim.better, *claim.than} <= set(CONFIGURATIONS) and set(claim.kinds) <= set(get_args(Yardstick))


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


@pytest.mark.sample(0)
def test_every_domain_has_lessons_enough_at_the_scale_of_the_paper(data: Path, tmp_path: Path) -> None:
    plan = load_plan("paper")
    sets = draw(plan, data, tmp_path, lambda lesson: (len(lesson.instruction) + len(lesson.output)) // 3)
    assert set(sets) == set(plan.domains)
    for one in sets.values():
        assert {len(lessons) for lessons in one.learned.values()} == {plan.number}
        assert {len(lessons) for lessons in one.held_out.values()} == {plan.held_out}


def test_words_about_a_plan_are_no_settings() -> None:
    plan = load_plan("paper")
    other = plan.model_copy(update={"differences": (), "claims": (), "models": ("pico",)})
    assert plan.differences and plan.claims and other.settled() == plan.settled()
    assert {"number", "batch", "lora", "expert", "router", "seeds"} <= plan.settled().keys()
    assert "seeds" not in plan.settled("seeds")
    for changed in ({"number": 7}, {"passes": 8}):  # experts record the passes of a step, too
        assert plan.model_copy(update=changed).settled() != plan.settled()


def test_a_base_that_is_a_mixture_already_is_refused_before_anything_is_trained(tokenizer: Any, tmp_path: Path) -> None:
    language_model("olmoe", vocab_size=512).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    given = ["reproduce", "routers", "--scale", "smoke", "-m", str(tmp_path / "base"), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, given)
    assert isinstance(done.exception, UnmaskError) and "is a mixture of experts already" in str(done.exception)
    assert not list(tmp_path.glob("out/*/mixtures"))


def test_a_device_that_training_refuses_is_told_before_the_base_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, source = load_plan("smoke"), Source("pico", dtype="float32", device="cuda:1")
    monkeypatch.setattr(
        running, "load_base_language_model", lambda source: load_base_language_model(replace(source, device="cpu"))
    )
    monkeypatch.setattr(running, "pick_device", lambda _: torch.device("cpu"))
    monkeypatch.setattr(running, "precision_of", lambda source: source.dtype)
    monkeypatch.setattr(Measuring, "base", lambda *_: pytest.fail("the base was measured"))
    with pytest.raises(UnmaskError, match="set CUDA_VISIBLE_DEVICES=1"):
        study(plan, source, Path(), [], tmp_path, lambda *_: [])


def test_such_a_device_does_not_stop_a_study_that_has_nothing_to_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, source = load_plan("smoke"), Source("pico", device="cuda:1")
    monkeypatch.setattr(Measuring, "known", lambda *_: "a cell")
    builder = building.Builder(plan, source, {}, tmp_path, anchor=0, layers=2)
    measuring = Measuring(source, tmp_path / "cells", [], 8, 8)
    _require_training(plan, builder, measuring)
    builder.folder_of(STANDARD, plan.seeds[0]).mkdir(parents=True)
    with pytest.raises(UnmaskError, match="set CUDA_VISIBLE_DEVICES=1"):  # a mixture that is there may be unfinished
        _require_training(plan, builder, measuring)


def test_neighbouring_domains_share_an_expert() -> None:
    lessons = {name: [Lesson("do", name)] for name in ["a", "b", "c", "d"]}
    own = LessonSet(lessons, lessons)
    assert list(own.grouped(2)) == ["a-b", "c-d"] and [lesson.output for lesson in own.grouped(2)["a-b"]] == ["a", "b"]
    assert own.grouped(None) is lessons and list(own.grouped(4)) == list(lessons)


def test_pairs_become_lessons_either_way_and_rows_are_chosen_by_their_columns(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"anchor": "title", "positive": "article"}\n')
    write = LessonSource(file="pairs.jsonl", instruction="Write a title.", response="anchor")
    asked = [(lesson.instruction, lesson.input, lesson.output) for lesson in lessons_of(write, tmp_path)]
    assert asked == [("Write a title.\narticle", "", "title")], "all lessons have one form"
    read = LessonSource(file="pairs.jsonl", instruction="Write an article.")
    assert [(lesson.instruction, lesson.output) for lesson in lessons_of(read, tmp_path)] == [
        ("Write an article.\ntitle", "article")
    ]
    rows = [{"task": task, "input": f"{task} {k}", "target": "yes"} for k in range(3) for task in ("logic", "sorting")]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sorting = lessons_of(LessonSource(file="tasks.jsonl", where={"task": ("sorting",)}), tmp_path)
    assert [lesson.instruction for lesson in sorting] == ["sorting 0", "sorting 1", "sorting 2"], "and none names its domain"
    given = [{"instruction": f"{topic} {k}", "output": "yes", "topic": topic} for k in range(2) for topic in ("law", "art")]
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    art = lessons_of(LessonSource(file="given.jsonl", where={"topic": ("art",)}), tmp_path)
    assert [lesson.instruction for lesson in art] == ["art 0", "art 1"]


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


def test_a_domain_with_too_few_lessons_leaves_none_of_the_others_behind(tmp_path: Path) -> None:
    """A smaller number, as the message says, can then be given for the same folder."""
    plan = load_plan("smoke").model_copy(update={"configurations": (STANDARD,)})
    last = DOMAINS[-1]
    with pytest.raises(UnmaskError, match=f"The domain '{last}' has 0 lessons of at most"):
        draw(plan, tmp_path, tmp_path / "lessons", lambda lesson: 10**9 * (last in lesson.where))
    assert not (tmp_path / "lessons").exists()


def test_prototypes_tell_apart_what_is_apart() -> None:
    random = np.random.default_rng(0)
    labels, known = np.repeat(np.arange(3), 40), np.arange(120) % 2 == 0
    noise = random.normal(size=(120, 8))
    assert prototype_accuracy(noise + 6 * np.eye(8)[labels] + 100, labels, known) == 1, "what all texts share does not matter"
    assert 0.1 < prototype_accuracy(noise, labels, known) < 0.6


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


def test_shuffled_experts_have_no_information_left() -> None:
    [row] = rows_of(*made({STANDARD: (0.0, 0.2, 0.4)}))
    assert abs(row.information or 9) < 0.03


def test_one_point_of_three_knows_the_domain() -> None:
    cell = made_cell(0.0, 0.2, 0.4, seed=0)
    assert cell.shares is not None and best_information(cell) < 0.1
    knows = np.concatenate([cell.shares[:, :2], np.eye(4)[cell.labels][:, None]], axis=1)
    cell = Cell(cell.likelihood, cell.routing, cell.scores, knows)
    assert best_information(cell) == pytest.approx(1) and 0.25 < information(cell) < 0.4


def test_a_seed_that_differs_widens_the_interval() -> None:
    """The same mean difference from seeds that agree, and from seeds that do not."""
    cells, bases = made({STANDARD: (0.3, 0.2, 0.4), "top-2": (0.5, 0.2, 0.4)})
    steady = {row.name: row for row in rows_of(cells, bases)}["top-2"].tests["information"]
    cells["top-2"] = {seed: made_cell(distinct, 0.2, 0.4, seed=200 + seed) for seed, distinct in enumerate((0.1, 0.5, 0.9))}
    unsteady = {row.name: row for row in rows_of(cells, bases)}["top-2"].tests["information"]
    assert np.ptp(unsteady.interval) > 2 * np.ptp(steady.interval) and unsteady.p > steady.p


@pytest.mark.sample(0)
def test_three_seeds_find_hardly_more_false_differences_than_they_should() -> None:
    """Equal configurations whose seeds differ far more than their items: a test that trusts three seeds finds 2 % at 0.0025."""
    random, pairs = np.random.default_rng(0), 20
    found = alone = 0
    for _ in range(200):
        tables = [random.normal(0, 1, (3, 1)) + random.normal(0, 1, 80) for _ in range(pairs)]
        contrasts = [of_items(table, "responses") for table in tables]
        pooled = seed_noise({"gain": contrast} for contrast in contrasts if contrast)["gain"]
        found += sum(contrast.test(pooled).p < 0.0025 for contrast in contrasts if contrast)
        alone += sum(contrast.test(contrast.seeds).p < 0.0025 for contrast in contrasts if contrast)
    assert found / (200 * pairs) < 0.005 < 0.01 < alone / (200 * pairs)


def test_a_difference_within_each_seed_is_found_though_seeds_differ() -> None:
    random = np.random.default_rng(0)
    seeds = random.normal(0, 1, (3, 1))  # what a seed does to both configurations
    a, b = (seeds + random.normal(0, 0.02, (3, 80)) + better for better in (0.1, 0.0))
    contrast = of_items(a - b, "responses")
    assert contrast is not None and contrast.test(contrast.seeds).p < 1e-3
    assert of_items(a[:, :5] - b[:, :5], "tasks") is None


def test_the_seed_noise_is_pooled_by_degrees_of_freedom() -> None:
    two, four = Contrast((0.0, 2.0), 0.1, 9, "x"), Contrast((0.0, 0.0, 0.0, 4.0), 0.1, 9, "x")
    assert seed_noise([{"gain": two}, {"gain": four}])["gain"] == pytest.approx(((2 * 1 + 4 * 3) / 4, 4))
    assert two.test((8.0, 4)).p > two.test(two.seeds).p == two.test((0.1, 4)).p


@pytest.mark.sample(0)
def test_distinct_routing_is_correlated_over_configurations() -> None:
    names = ["balance pass 1", "balance step 1", "from prototypes", "layer routers", "final router", "by text so far"]
    values = {name: (0.1 * place, 0.2, 0.3 + 0.02 * place) for place, name in enumerate([STANDARD, *names])}
    values |= {"soft": (0.9, 0.2, 0.1), "prototypes": (0.9, 0.2, 0.1)}  # another one's router, and one without training
    cells, bases = made(values, seeds=2)
    found = distinct_and_good(rows_of(cells, bases))["score of routing weights"]
    assert found.n == 7 and found.rho > 0.9 and found.p < 0.02
    words = conclusion({row.name: row for row in rows_of(cells, bases)}, {"score of routing weights": found})
    assert any("More distinct routing goes with routing weights that are better embeddings" in sentence for sentence in words)
    others = {"score of routing weights": found, "gain in nats": replace(found, rho=-0.9, interval=(-0.99, -0.5))}
    words = conclusion({row.name: row for row in rows_of(cells, bases)}, others)
    assert any("More distinct routing goes with less of this: gain in nats (rho -0.90" in sentence for sentence in words)


def test_the_conclusion_names_the_highest_what_contradicts_papers_and_what_is_open() -> None:
    names = {
        STANDARD: (0.3, 0.2, 0.4),
        "layer routers": (0.3, 0.2, 0.4),
        "renormalised": (0.3, 0.9, 0.4),
        "soft": (0.3, 1.2, 0.4),
    }
    cells, bases = made(names)
    rows = {row.name: row for row in rows_of(cells, bases)}
    claims = [claim.model_copy(update={"where": f"paper {place}"}) for place, claim in enumerate(load_plan("small").claims)]
    papers = verdicts(claims, cells, bases)
    said = conclusion(rows, {}, None, papers)
    refuted = [one.claim for one in papers if one.verdict == "refuted"]
    assert refuted and all(any(claim.where in one and claim.says in one for one in said) for claim in refuted)
    [still_open] = [one for one in said if one.startswith("Not measured: ")]
    assert "joint top-1" in still_open and "layer routers" not in still_open
    best = max((STANDARD, "layer routers", "soft"), key=lambda name: rows[name].scores["routing"])
    [told] = [one for one in said if one.startswith("**Routing weights as embeddings.** ")]
    assert f" The highest mean of all trained configurations is that of {best}, which is not shown to be better." in f" {told}"
    assert best != STANDARD, "which is not told of"


def test_all_measures_stand_in_one_table_and_a_choice_has_the_strength_of_its_definition() -> None:
    cells, bases = made({STANDARD: (0.3, 0.2, 0.4), "random": (0.3, 0.1, 0.4), "oracle": (0.3, 0.4, 0.4)})
    for seed, cell in cells[STANDARD].items():
        cells[STANDARD][seed] = replace(cell, strength=0.4 + 0.1 * seed)
    for name in ("random", "oracle"):  # they have no router of their own
        cells[name] = {seed: replace(cell, routing={}, shares=None) for seed, cell in cells[name].items()}
    rows = {row.name: row for row in rows_of(cells, bases)}
    assert [rows[name].strength for name in (STANDARD, "random", "oracle")] == pytest.approx([0.5, 0.5, 1.0])
    assert [line[0] for line in measures(rows).rows] == [STANDARD]
    assert set(measures(rows).rows[0][1:]) == {"0.30"}


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


def test_the_contest_is_with_the_most_distinct_rival_and_says_who_is_better() -> None:
    cells, bases = made({
        STANDARD: (0.3, 0.2, 0.4), "layer routers": (0.6, 0.2, 0.4), "soft": (0.4, 0.2, 0.4), OWN: (0.9, 0.2, 0.4),
    })  # fmt: skip
    assert most_distinct(rows_of(cells, bases)) == "layer routers"
    fresh = {name: cells[name] for name in (OWN, "layer routers")}
    contest = decide("layer routers", fresh, bases, noise_of(cells, bases))
    assert contest.seeds == 3 and contest.tests["information"].difference > 0.2
    words = " ".join(conclusion({row.name: row for row in rows_of(cells, bases)}, {}, contest))
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
    [said] = [
        point
        for point in conclusion({STANDARD: first, row.name: row}, {})
        if point.startswith("**Predicting held-out responses.**")
    ]
    assert set(_words(said)) == {word}
    [contest] = [
        point for point in conclusion({STANDARD: first}, {}, Contest(row.name, 3, {"gain": test})) if "Our own" in point
    ]
    assert set(_words(contest)) == {word}
    claim = Claim(id="a", where="b", says="c", better="layer routers", than=("standard",))
    [found] = findings([claim], {("a", "standard"): test}, lambda _: "nats")
    assert found.verdict == verdict
    [_, line] = routing_and_prediction({STANDARD: first, row.name: row}).rows
    assert line[-1].endswith("*") == (word != "not shown")


def test_our_own_questions_are_no_claims_of_papers() -> None:
    cells, bases = made({STANDARD: (0.3, 0.2, 0.4), "layer routers": (0.6, 0.2, 0.4)})
    [first, row] = rows_of(cells, bases)
    asked = [
        Claim(id=where, where=where, says="c", better="layer routers", than=("standard",)) for where in ("our question", "b")
    ]
    for effect, said in ((0.0, "1 claim of papers stays undecided."), (-2.0, "**Refuted here:** \u201cc\u201d (b).")):
        test = replace(
            row.tests["gain"], effect=effect, difference=effect, p=0.001, p_holm=None, interval=(effect, effect), bounds=None
        )
        found = findings(asked, {(one.id, "standard"): test for one in asked}, lambda _: "nats")
        told = [line for line in conclusion({STANDARD: first}, {}, None, found) if "claim" in line or "Refuted" in line]
        assert told == [said]


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


@pytest.mark.sample(0)
def test_a_finished_report_is_not_replaced_by_a_part_of_it(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a configuration is added, the results stay those of the finished study."""
    shutil.copytree(whole, tmp_path / "pico")
    results = (tmp_path / "pico" / "results.json").read_bytes()
    more = command(tmp_path, "--set", 'configurations=["standard", "renormalised", "soft"]')

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.studies.routers.run._contest", stop)
    CliRunner().invoke(app, more)
    assert list((tmp_path / "pico" / "cells" / "soft").rglob("cell.json")), "the new cells are measured"
    assert (tmp_path / "pico" / "results.json").read_bytes() == results


@pytest.mark.sample(0)
def test_a_lost_cell_is_measured_again_to_the_same_numbers(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "pico")
    results = (tmp_path / "pico" / "results.json").read_bytes()
    shutil.rmtree(tmp_path / "pico" / "cells" / "layer-routers" / "1")
    (tmp_path / "pico" / "cells" / "anchored" / "0" / "counts.npz").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="measured again"):
        assert CliRunner().invoke(app, command(tmp_path), catch_exceptions=False).exit_code == 0
    assert (tmp_path / "pico" / "results.json").read_bytes() == results


def test_another_plan_in_the_same_folder_is_refused(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "pico")
    done = CliRunner().invoke(app, command(tmp_path, "--set", "router.steps=3"))
    assert isinstance(done.exception, UnmaskError) and "other lessons or settings" in str(done.exception)


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


def test_a_cell_of_a_configuration_that_changed_is_not_used(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "cells", tmp_path / "cells")
    measuring = Measuring(Source("pico"), tmp_path / "cells", (), 64, 32)
    file = tmp_path / "cells" / "standard" / "1" / "cell.json"
    record = CellRecord.read(file)
    assert record is not None and record.configuration and measuring.known(STANDARD, 1) is not None
    for digest, used in (("another", False), ("", True)):
        record.model_copy(update={"configuration": digest}).write(file)
        assert (measuring.known(STANDARD, 1) is not None) is used
    base = CellRecord.read(next((tmp_path / "cells").glob("base-*/0/cell.json")))
    assert base is not None and base.configuration == "", "the base has no configuration"


@pytest.mark.sample(0)
def test_a_cell_of_another_mixture_is_recorded_again_in_its_own_place(tokenizer: Any, tmp_path: Path) -> None:
    """Only the record is removed: files that are no part of it stay, and are told."""
    held_out = {name: [Lesson(f"Say {name} {number}.", f"It is {number}.") for number in range(6)] for name in DOMAINS[:2]}
    measuring, folder = Measuring(Source("pico"), tmp_path, (), 64, 32), tmp_path / "routing"
    models = {seed: ours(tmp_path / str(seed), tokenizer) for seed in (0, 1)}
    mixture: Any = models[1].backbone.model.mixture
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.5)
    weights, files = [], []
    for seed in (0, 0, 1):
        measuring._routing(models[seed], held_out, folder)
        weights.append(read_record(folder).settings.weights)
        files.append((folder / "parts" / "00000" / "tokens.parquet").stat().st_mtime_ns)
    assert weights[0] == weights[1] != weights[2] and files[0] == files[1] != files[2]
    (folder / "notes.txt").write_text("kept")
    with pytest.raises(UnmaskError, match=r"holds other files \(notes\.txt\)"):
        measuring._routing(models[0], held_out, folder)
    assert (folder / "notes.txt").read_text() == "kept"


def test_experts_of_other_domains_or_names_may_differ() -> None:
    same = SameExperts()
    same.require("a", {"far/math": "1", "far/together": "2"})
    same.require("b", {"near/math": "3"})
    same.require("c", {})
    same.require("d", {"far/math": "1"})
    with pytest.raises(UnmaskError, match=r"cells a and e .* 'far/together' were 2 and 9"):
        same.require("e", {"far/math": "1", "far/together": "9"})


def test_only_tokens_of_responses_are_counted(whole: Path) -> None:
    cell = whole / "cells" / "standard" / "0"
    counts = load_arrays(cell / "counts.npz")["counts"]
    lessons = [one for name in DOMAINS for one in read_lessons(whole / "lessons" / "far" / f"{name}.held-out.jsonl")]
    tokenizer = AutoTokenizer.from_pretrained(resolve("pico"))
    record = read_record(cell / "routing")
    for text, lesson in enumerate(lessons):
        ends = [last for _, last in tokenizer(lesson.prompt + lesson.output, return_offsets_mapping=True)["offset_mapping"]]
        wanted = sum(last > len(lesson.prompt) for last in ends[: record.settings.max_length])
        assert (counts[text].sum(axis=1) == wanted).all() and wanted < len(ends)
    by_response, strength = responses(record, [0] * len(lessons))
    assert (by_response.sum(axis=(1, 2)) > counts.sum(axis=(1, 2))).all(), "from the beginning, there are more"
    sums = [gates.astype(np.float64).sum(axis=1) for batch in record.batches() for gates in batch.gates]
    assert strength == pytest.approx(np.mean(sums), rel=1e-6)


def test_a_balance_within_a_pass_sees_one_domain(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Learning] = {}
    monkeypatch.setattr(building, "mix", lambda *_, learning, **__: seen.setdefault("now", learning))
    monkeypatch.setattr(building, "train_expert", lambda *_, **__: None)
    lessons = {name: read_lessons(whole / "lessons" / "far" / f"{name}.learned.jsonl") for name in DOMAINS}
    builder = building.Builder(load_plan("smoke"), Source("pico"), {"far": LessonSet(lessons, lessons)}, tmp_path, 1, 2)
    for name, passes in ((STANDARD, 1), ("balance pass 1", 4), ("balance step 1", 4)):
        seen.clear()
        builder.mixture(name, 0)
        assert seen["now"].accumulate == passes
    rows = schedule({name: [LessonTokens((1,), 0, name)] for name in DOMAINS}, 2, 4, 0)
    assert [row.where for row in rows] == [*DOMAINS, *DOMAINS], "a batch holds one domain after the other"


def test_a_study_may_grow_by_domains_but_not_change_them(whole: Path) -> None:
    record = RoutersRecord.read(whole / "study.json")
    assert record is not None
    far = record.lessons["far"]
    grown = record.model_copy(update={"lessons": {"far": far, "near": far}})
    assert grown.is_same(record, whole) and record.is_same(grown, whole)
    assert record.with_sets_of(grown).lessons == grown.lessons
    [first, *rest] = far
    other = {first: far[first].model_copy(update={"content": "0"}), **{name: far[name] for name in rest}}
    assert not record.model_copy(update={"lessons": {"far": other}}).is_same(record, whole)
    assert not record.model_copy(update={"dtype": "bfloat16"}).is_same(record, whole)


def test_the_kept_study_goes_on(tmp_path: Path) -> None:
    """Its record is of the version that measured it, and compares with the settings of now. No record says more than it holds."""
    with zipfile.ZipFile(MEASURED / "routers-smollm2-values.zip") as values:
        values.extract("study.json", tmp_path)
    kept = RoutersRecord.read(tmp_path / "study.json")
    assert kept is not None and "passes" not in kept.plan
    plan = load_plan("small").settled("configurations", "seeds", "fresh_seeds", "domains", "tasks") | {
        "tasks": kept.plan["tasks"]
    }
    now = kept.model_copy(update={"plan": plan})
    assert now.is_same(kept, tmp_path)
    for other in ({"passes": 2}, {"batch": 16}):
        changed = now.model_copy(update={"plan": plan | other})
        assert not changed.is_same(now, tmp_path), "both say it"
        assert changed.is_same(kept, tmp_path) == ("passes" in other)


def test_one_seed_shows_nothing_of_other_seeds() -> None:
    cells, bases = made({STANDARD: (0.3, 0.2, 0.4), "layer routers": (0.9, 0.1, 0.45)}, seeds=1)
    rows = {row.name: row for row in rows_of(cells, bases)}
    assert all(row.tests == {} for row in rows.values())
    assert {one.verdict for one in verdicts(load_plan("small").claims, cells, bases)} == {"not measured"}


def test_fewer_experts_than_domains_can_reach_one() -> None:
    """Two experts for four domains, each pair of domains with its own."""
    labels = np.repeat(np.arange(4), 6)
    shares = np.eye(2)[labels // 2][:, None]
    cell = Cell({f"domain{k}": (1.0,) * 6 for k in range(4)}, {"recorded": True}, {"hidden": {}}, shares)
    assert information(cell) == pytest.approx(1, abs=0.02)


def test_a_huge_dimension_does_not_decide_alone() -> None:
    random = np.random.default_rng(0)
    labels, known = np.repeat(np.arange(3), 40), np.arange(120) % 2 == 0
    vectors = 6 * np.eye(8)[labels] + random.normal(size=(120, 8))
    vectors[:, 7] = 1000 * random.normal(size=120)
    assert prototype_accuracy(vectors, labels, known) > 0.95


@pytest.mark.parametrize(
    ("accuracies", "chosen"), [((0.5, 0.86, 0.9, 0.9, 0.7), 2), ((0.5, 0.6, 0.7, 0.9, 0.7), 4), ((1.0, 1.0, 0.9), 1)]
)
def test_the_anchor_is_the_first_layer_that_is_about_as_good_as_the_best(
    monkeypatch: pytest.MonkeyPatch, accuracies: tuple[float, ...], chosen: int
) -> None:
    """Of 50 texts, 0.9 has a standard error of 0.042."""
    found = iter(accuracies)
    monkeypatch.setattr(anchoring, "prototype_accuracy", lambda *_: next(found))
    monkeypatch.setattr(anchoring, "encode_designs", lambda *_, **__: defaultdict(lambda: None))
    monkeypatch.setattr(anchoring, "find_layers", lambda _: range(len(accuracies) + 1))
    for name in ("Backbone", "PromptTokenizer", "default_batch_tokens", "body_of"):
        monkeypatch.setattr(anchoring, name, MagicMock())
    assert anchoring.find_anchor(None, None, {"a": [Lesson("do", "it")] * 100}, 64).layer == chosen
