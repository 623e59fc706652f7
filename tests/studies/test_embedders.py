"""Studies of embedders: plans, comparisons, agreement, removed models, and a whole run on pico."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import v_measure_score
from typer.testing import CliRunner

from tests.proofs import ALL
from tests.sketches import sketching
from tests.studies import smoke
from tools.keep import keep_values
from unmask.cli import app
from unmask.designs.design import Design
from unmask.designs.prompts import find_prompt
from unmask.errors import UnmaskError
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import PairedTest
from unmask.studies.claims.claim import Agreement
from unmask.studies.embedders.analysis import ScoredEmbedder, agreement_test, agreements, compare_embedders
from unmask.studies.plan import plan_tables
from unmask.studies.results import read_results
from unmask.studies.study import PACKAGES, load_plan
from unmask.training.data import DataSet
from unmask.training.recipe import load_recipe, read_sets

STUDIES = [study for study, package in PACKAGES.items() if package == "embedders"]


@pytest.mark.parametrize("study", STUDIES)
def test_what_a_plan_trains_is_read_as_it_was_trained(study: str) -> None:
    """A wrong key in the settings of a model would show only when its turn comes, hours after the start."""
    for scale in plan_tables(study)["scale"]:
        plan = load_plan(study, scale)
        for name, making in plan.made.items():
            if making.recipe is None:
                continue
            design = [] if making.design is None else [f"designs={json.dumps([making.design])}"]
            recipe = load_recipe(making.recipe, scale, [*making.settings, *design])
            if making.design is not None and Design.parse(making.design).needs_head:
                assert {reading.design for reading in plan.embedders.values() if reading.model == name} == {making.design}
            takes = [find_prompt(prompt).takes_instruction for one in recipe.designs for prompt in Design.parse(one).prompts]
            used = [recipe.data[data] for stage in recipe.stages for data in recipe.stage(stage).data]
            assert all(takes) or not any(data.instruction or data.document_instruction for data in used)


def test_a_base_model_may_have_a_part_of_the_plan() -> None:
    whole, part = (load_plan("pooling-and-attention", "small", model=model) for model in ("smollm2", "gemma3-270m"))
    assert set(whole.measured_embedders) == set(whole.embedders) and len(whole.seeds) == 5
    assert set(part.measured_embedders) < set(part.embedders) and len(part.seeds) == 3
    assert {"design 1", "design 5"} <= set(part.measured_embedders)
    chosen = load_plan("pooling-and-attention", "small", ["seeds=[7]", 'only=["design 2"]'], "gemma3-270m")
    assert (chosen.seeds, chosen.only) == ((7,), ("design 2",)), "what a user sets stands over it"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('embedders.new={design="causal/plain/nothing"}', "nothing"),
        ("numbr=3", "numbr"),
        ('only=["sun"]', "sun"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(setting: str, words: str) -> None:
    with pytest.raises(UnmaskError, match=words):
        load_plan("moee", "small", [setting])


def kept(store: ResultStore, name: str, kind: str, items: Items, task: str) -> Result:
    """A result in a store; its score is the mean of its items if they have values."""
    conditions = Conditions(
        model=name, model_revision="1", design="causal/plain/mean", task=task, task_revision="1", max_length=8, dtype="float32"
    )
    score = float(items.columns["value"].mean()) if "value" in items.columns else 0.5
    made = Result(
        model=name, design="causal/plain/mean", label=name, task=task, kind=kind, metric="m", main_score=score, interval=None,
        n=items.n, scores={}, dim=2, texts=1, tokens=1, truncated=0, conditions=conditions, provenance={},
    )  # fmt: skip
    store.add(made, items)
    return made


def result(store: ResultStore, model: str, task: str, values: np.ndarray, kind: str = "classification") -> Result:
    return kept(store, model, kind, Items("mean", {"value": values}), task)


def scored(store: ResultStore, name: str, shift: float, seeds: int, tasks: int, of_seeds: float = 0.0) -> ScoredEmbedder:
    random, items = np.random.default_rng(sum(map(ord, name))), np.random.default_rng(7)
    hard = items.uniform(0.2, 0.6, (tasks, 80))
    runs = []
    for seed in range(seeds):
        own = of_seeds * random.normal()
        values = hard + shift + own + 0.05 * random.normal(size=hard.shape)
        runs.append({f"task{place}": result(store, f"{name}{seed}", f"task{place}", row) for place, row in enumerate(values)})
    return ScoredEmbedder(tuple(runs))


def contrast(a: ScoredEmbedder, b: ScoredEmbedder, kinds: list[str], store: ResultStore, family: int) -> PairedTest | None:
    """The test in general."""
    return compare_embedders(a, b, kinds, store, family)[0]


def test_few_tasks_are_tested_over_items_and_seeds(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    steady = contrast(scored(store, "a", 0.1, 3, 2), scored(store, "b", 0.0, 3, 2), [], store, 1)
    assert steady is not None and steady.difference == pytest.approx(10, abs=1) and steady.p < 0.01
    assert steady.test == "t over items (bootstrap) and seeds" and steady.n == 160
    shaky = contrast(scored(store, "c", 0.1, 3, 2, 0.3), scored(store, "d", 0.0, 3, 2, 0.3), [], store, 1)
    assert shaky is not None and np.ptp(shaky.interval) > 3 * np.ptp(steady.interval)
    one = contrast(scored(store, "e", 0.1, 1, 2), scored(store, "f", 0.0, 1, 2), [], store, 1)
    assert one is not None and "bootstrap" in one.test and one.difference == pytest.approx(10, abs=1)


def two_kinds(store: ResultStore, name: str, seeds: int, on_sts: float, on_topics: float) -> ScoredEmbedder:
    """One task of STS and three of topics, with these differences from an embedder that has none."""
    random = np.random.default_rng(sum(map(ord, name)))
    hard = np.random.default_rng(7).uniform(0.2, 0.6, (4, 80))
    kinds = ["sts", *["classification"] * 3]
    shifts = [on_sts, *[on_topics] * 3]
    return ScoredEmbedder(
        tuple(
            {
                f"task{place}": result(
                    store, f"{name}{seed}", f"task{place}", row + 0.05 * random.normal(size=80) + shift, kind
                )
                for place, (row, kind, shift) in enumerate(zip(hard, kinds, shifts, strict=True))
            }
            for seed in range(seeds)
        )
    )


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_difference_that_depends_on_the_kind_of_task_is_an_interaction(tmp_path: Path, seeds: int) -> None:
    store = ResultStore(tmp_path)
    plain = two_kinds(store, "plain", seeds, 0.0, 0.0)

    def interaction(name: str, on_sts: float, on_topics: float) -> PairedTest:
        found, here = compare_embedders(
            two_kinds(store, name, seeds, on_sts, on_topics), plain, ["sts"], store, 1, ["classification"]
        )
        assert found is not None and found.unit == "items" and here is found
        assert found.changes is None, "in an interaction, no sign is a coin flip"
        return found

    larger, same, smaller = interaction("a", 0.1, 0.0), interaction("b", 0.1, 0.1), interaction("c", 0.0, 0.1)
    assert larger.difference == pytest.approx(10, abs=2) and larger.p < 0.01 and larger.n == 320
    assert abs(same.difference) < 2 and same.p > 0.01
    assert smaller.difference == pytest.approx(-10, abs=2) and smaller.p < 0.01
    for kinds, less_on in ((["sts"], ["retrieval"]), (["retrieval"], ["sts"])):
        assert compare_embedders(plain, plain, kinds, store, 1, less_on) == (None, None), (
            "there is no such task to compare with"
        )


def test_on_these_tasks_alone_the_items_are_tested(tmp_path: Path) -> None:
    """Tasks that disagree decide nothing in general, and much on themselves."""
    store = ResultStore(tmp_path)
    plain = scored(store, "b", 0.0, 1, 8)
    shifts = np.array([0.3, 0.3, 0.3, 0.05, -0.1, -0.1, 0.02, -0.05])
    items = np.random.default_rng(7).uniform(0.2, 0.6, (8, 80))
    uneven = ScoredEmbedder(
        ({f"task{place}": result(store, "uneven", f"task{place}", row + shifts[place]) for place, row in enumerate(items)},)
    )
    general, here = compare_embedders(uneven, plain, [], store, 1)
    assert general is not None and here is not None
    assert (general.unit, here.unit) == ("tasks", "items") and general.difference == pytest.approx(here.difference)
    assert here.p < 0.01 < 0.05 < general.p


ONE_OF_A_KIND = {
    "llm2vec": ("uni", "bi, EOS", "echo", "prompteol-z", "mntp", "full", "uni + SimCSE", "supervised"),
    "pooling-and-attention": (
        "untrained EOS", "design 1", "design 2", "design 5", "latent attention", "prompteol-z", "design 5, 1 query",
        "design 1, larger LoRA", "design 5, conditioned queries", "causal mean, labels",
    ),
}  # fmt: skip

"""What `make test` trains and measures: each head, each stage, a stage on a stage, and a change of head, LoRA, data and instruction.

The others differ from these in the values of their settings, which are read above. `make test-all` measures every embedder.
"""

one_study = pytest.mark.parametrize("whole", STUDIES if ALL else ("llm2vec",), indirect=True)

"""What resumes and refuses is one code for all studies. `make test` tries it with the study of most trainings, `make test-all` with all."""


@pytest.fixture(scope="module", params=STUDIES)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A study and its folder after a run by the command line, at smoke scale."""
    folder = tmp_path_factory.mktemp(request.param)
    with sketching():
        done = CliRunner().invoke(app, whole_command(request.param, folder), catch_exceptions=False)
    assert done.exit_code == 0 and "verdict" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Next: unmask report {folder / 'pico'}"
    return request.param, folder


def command(study: str, folder: Path, *more: str) -> list[str]:
    return [*smoke.command(study, folder), *more]


def measured(study: str) -> list[str]:
    """The embedders of a run, in the order of the plan."""
    return list(load_plan(study, "smoke", [chosen(study)]).measured_embedders)


def chosen(study: str) -> str:
    every = load_plan(study, "smoke").embedders
    return f"only={json.dumps([name for name in every if ALL or name in ONE_OF_A_KIND.get(study, every)])}"


def whole_command(study: str, folder: Path) -> list[str]:
    return command(study, folder, "--set", chosen(study))


@pytest.mark.sample(1)
def test_a_run_says_everything_and_a_second_one_computes_nothing(whole: tuple[str, Path], tmp_path: Path) -> None:
    study, folder = whole
    plan = load_plan(study, "smoke")
    content = json.loads((folder / "pico" / "results.json").read_text())
    assert [finding["claim"]["id"] for finding in content["claims"]] == [claim.id for claim in plan.claims]
    assert list(content["scores"]) == measured(study)
    assert all(len(of_tasks) == len(plan.tasks) for of_tasks in content["scores"].values())
    report = (folder / "pico" / "report.md").read_text()
    assert all(claim.says in report for claim in plan.claims)
    said = read_results(folder / "pico")
    assert (
        said.finished and said.smoke and (said.study, said.paper) == (study, plan.paper) and len(said.data) == len(plan.tasks)
    )
    scores, *agreement = said.tables
    assert [row[0] for row in scores.rows] == measured(study) and all(sheet.markdown() in report for sheet in said.tables)
    assert [sheet.title for sheet in agreement if sheet.rows] == (["Agreement: prompts"] if study == "moee" else [])
    of_agreement = {"points of Spearman"} if study == "moee" else set()  # this scale has no clusters
    assert {test.measured_in for one in said.claims for test in one.tests} == {"points"} | of_agreement
    before = {file: file.stat().st_mtime_ns for file in (folder / "pico").rglob("*.npz")}
    assert before
    results = (folder / "pico" / "results.json").read_bytes()
    assert CliRunner().invoke(app, whole_command(study, folder), catch_exceptions=False).exit_code == 0
    assert (folder / "pico" / "results.json").read_bytes() == results
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.sample(0)
@one_study
def test_a_model_may_be_removed_once_it_is_scored(
    whole: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of a study, a zip without the models, is enough to go on."""
    study, folder = whole
    keep_values(folder / "pico", tmp_path / "values.zip")
    zipfile.ZipFile(tmp_path / "values.zip").extractall(tmp_path / "copy" / "pico")
    of_copy = whole_command(study, tmp_path / "copy")

    def refuse(*given: object, **options: object) -> None:
        raise AssertionError("a model is trained again")

    monkeypatch.setattr("unmask.studies.embedders.models.run_recipe", refuse)
    before = (folder / "pico" / "results.json").read_bytes()
    with sketching():
        assert CliRunner().invoke(app, of_copy, catch_exceptions=False).exit_code == 0
        assert (tmp_path / "copy" / "pico" / "results.json").read_bytes() == before
    with pytest.raises(AssertionError, match="trained again"):  # a longer text is another measurement
        CliRunner().invoke(app, [*of_copy, "--set", "max_length=63"], catch_exceptions=False)
    rows = read_sets

    def changed(*given: Any) -> list[DataSet]:
        return [replace(rows_of_set, examples=rows_of_set.examples[1:]) for rows_of_set in rows(*given)]

    monkeypatch.setattr("unmask.studies.embedders.models.read_sets", changed)
    with pytest.raises(AssertionError, match="trained again"):
        CliRunner().invoke(app, of_copy, catch_exceptions=False)


N = 120

GOLD = np.random.default_rng(0).normal(size=N)

GROUPS = np.random.default_rng(1).integers(3, size=(N, 4))


def pairs(
    store: ResultStore, name: str, noise: float, prompts: int = 3, runs: int = 1, kind: str = "sts"
) -> list[ScoredEmbedder]:
    """An embedder under several prompts, on a task of pairs: each prompt adds this noise to the same similarities."""
    random = np.random.default_rng(sum(map(ord, name)))
    return [
        ScoredEmbedder(
            tuple(
                {"pairs": kept(store, f"{name}{prompt}{run}", kind, similarities(random, noise), "pairs")}
                for run in range(runs)
            )
        )
        for prompt in range(prompts)
    ]


def similarities(random: np.random.Generator, noise: float) -> Items:
    return Items("spearman", {"predicted": GOLD + noise * random.normal(size=N), "gold": GOLD})


def clusters(
    store: ResultStore, name: str, changed: float, groups: np.ndarray = GROUPS, prompts: int = 3
) -> list[ScoredEmbedder]:
    """An embedder under several prompts, on a task of clusters: each prompt moves this share of the texts."""
    random = np.random.default_rng(sum(map(ord, name)))
    made = []
    for prompt in range(prompts):
        moved = np.where(random.uniform(size=groups.shape) < changed, random.integers(3, size=groups.shape), groups)
        items = Items("v-measure", {"assigned": moved, "label": GROUPS[:, : groups.shape[1]]})
        made.append(ScoredEmbedder(({"texts": kept(store, f"{name}{prompt}", "clustering", items, "texts")},)))
    return made


def columns(store: ResultStore, some: list[ScoredEmbedder], task: str, name: str) -> list[np.ndarray]:
    return [found[0].columns[name] for one in some if (found := one.items(task, store))]


def agreement_between(
    what: Agreement, a: list[ScoredEmbedder], b: list[ScoredEmbedder], store: ResultStore
) -> PairedTest | None:
    return agreement_test(agreements(what, a, b, store))


def test_the_embedder_that_changes_less_with_the_prompt_is_steadier(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    steady, shaky = pairs(store, "steady", 0.3), pairs(store, "shaky", 1.0)
    test = agreement_between("prompts", steady, shaky, store)
    assert test is not None and test.n == N and test.unit == "items" and test.p < 0.01
    means = [
        np.mean([spearmanr(one, other).statistic for one, other in combinations(columns(store, some, "pairs", "predicted"), 2)])
        for some in (steady, shaky)
    ]
    assert test.difference == pytest.approx(100 * (means[0] - means[1]))
    back = agreement_between("prompts", shaky, steady, store)
    assert back is not None and back.difference == pytest.approx(-test.difference)
    assert back.interval == pytest.approx((-test.interval[1], -test.interval[0]))
    same = agreement_between("prompts", shaky, shaky, store)
    assert same is not None and same.difference == 0 and same.p == 1


def test_clusters_of_two_embedders_are_compared_with_those_of_two_prompts(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    own, other = (
        clusters(store, "own", 0.1, prompts=5),
        clusters(store, "other", 0.0, np.random.default_rng(2).integers(3, size=GROUPS.shape), prompts=5),
    )
    test = agreement_between("clusters", own, other, store)
    assert test is not None and test.n == N and test.p < 0.01
    first, second = (columns(store, some, "texts", "assigned") for some in (own, other))

    def alike(one: np.ndarray, two: np.ndarray) -> float:
        return float(np.mean([v_measure_score(two[:, draw], one[:, draw]) for draw in range(GROUPS.shape[1])]))

    themselves = np.mean([alike(*both) for both in combinations(first, 2)])
    each_other = np.mean([alike(first[one], second[two]) for one, two in permutations(range(5), 2)])
    assert test.difference == pytest.approx(100 * (themselves - each_other))
    one_prompt = agreement_between("clusters under one prompt", own, other, store)
    each_other = np.mean([alike(*both) for both in zip(first, second, strict=True)])
    assert one_prompt is not None and one_prompt.difference == pytest.approx(100 * (themselves - each_other))
    likewise = agreement_between("clusters", own, clusters(store, "like", 0.1, prompts=5), store)
    assert likewise is not None and likewise.p > 0.05, "they agree as two prompts do"
