"""Studies of embedders: plans, comparisons, agreement, removed models, and a whole run on pico."""

from __future__ import annotations

import json
import shutil
import zipfile
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
from unmask.encoding.heads import HeadOptions, build_head, count_parameters
from unmask.errors import UnmaskError
from unmask.evaluation.compare import reference_hash
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.models.loading import Source
from unmask.runs import runs
from unmask.runs.runs import RunRecord
from unmask.starter import reference_texts
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import PairedTest, with_holm
from unmask.studies.claims.claim import Agreement
from unmask.studies.embedders import comparison
from unmask.studies.embedders.comparison import Scored, TaskAgreement, agreement_test, agreements, compare_embedders
from unmask.studies.embedders.models import StudyModel
from unmask.studies.embedders.run import _require_held_out
from unmask.studies.engine import PACKAGES, load_plan
from unmask.studies.plan import plan_tables
from unmask.studies.results import read_results
from unmask.tasks.find import resolve_tasks
from unmask.tasks.task import LocalTask
from unmask.training.data import DataSet
from unmask.training.recipe import Recipe, load_recipe, read_sets
from unmask.training.run import hash_of_texts

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


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_controls_without_a_head_have_its_parameters_in_their_lora(scale: str) -> None:
    """By arithmetic on the sizes of SmolLM2-135M and Mistral-7B: rank x (inputs + outputs) of every linear map, and the parts of a head."""
    hidden, keys, mlp, layers = {"small": (576, 192, 1536, 30), "paper": (4096, 1024, 14336, 32)}[scale]
    of_rank = layers * (4 * hidden + 2 * (hidden + keys) + 3 * (hidden + mlp))
    made = load_plan("pooling-and-attention", scale).made

    def recipe_of(name: str) -> Recipe:
        making = made[name]
        return load_recipe(str(making.recipe), scale, [*making.settings, f"designs={json.dumps([making.design])}"])

    for name, control in (
        ("2", "1-matched"),
        ("2", "causal-mean-matched"),
        ("5", "1-matched"),
        ("5", "bidirectional-mean-matched"),
    ):
        plain, larger = recipe_of(name), recipe_of(control)
        with torch.device("meta"):
            kind = Design.parse(plain.designs[0]).one_pooling
            head = count_parameters(build_head(kind, hidden, layers, plain.head or HeadOptions()))["total"]
        assert (larger.lora.r - plain.lora.r) * of_rank == pytest.approx(head, rel=0.05)
        assert larger.lora.alpha / larger.lora.r == plain.lora.alpha / plain.lora.r
        assert larger.contrastive == plain.contrastive and larger.data == plain.data


def test_a_base_model_may_have_a_part_of_the_plan() -> None:
    whole, part = (load_plan("pooling-and-attention", "small", model=model) for model in ("smollm2", "gemma3-270m"))
    assert set(whole.measured) == set(whole.embedders) and len(whole.seeds) == 5
    assert set(part.measured) < set(part.embedders) and len(part.seeds) == 3
    assert {"design 1", "design 5"} <= set(part.measured)
    chosen = load_plan("pooling-and-attention", "small", ["seeds=[7]", 'only=["design 2"]'], "gemma3-270m")
    assert (chosen.seeds, chosen.only) == ((7,), ("design 2",)), "what a user sets stands over it"
    with pytest.raises(UnmaskError, match="desing 1"):
        load_plan("pooling-and-attention", "small", ['on.gemma3-270m.only=["desing 1"]'])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('embedders.new.model="unknown"', "design"),
        ('embedders.new={model="mixtur", design="last"}', "mixture"),
        ('embedders.new={design="causal/plain/nothing"}', "nothing"),
        ('claims=[{id="a", where="1", says="b", better="sum-z", than=["su"]}]', "claim 'a'"),
        ("claims=[]", "claims"),
        ("numbr=3", "numbr"),
        ('only=["sun"]', "sun"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(setting: str, words: str) -> None:
    with pytest.raises(UnmaskError, match=words):
        load_plan("moee", "small", [setting])


def result(store: ResultStore, model: str, task: str, values: np.ndarray, kind: str = "classification") -> Result:
    """A result whose score is the mean of its items."""
    conditions = Conditions(
        model=model, model_revision="1", design="causal/plain/mean", task=task, task_revision="1", max_length=8, dtype="float32"
    )
    made = Result(
        model=model, design="causal/plain/mean", label="a", task=task, kind=kind, metric="accuracy", main_score=float(values.mean()),
        interval=None, n=len(values), scores={}, dim=2, texts=1, tokens=1, truncated=0, conditions=conditions, provenance={},
    )  # fmt: skip
    store.add(made, Items("mean", {"value": values}))
    return made


def scored(store: ResultStore, name: str, shift: float, seeds: int, tasks: int, of_seeds: float = 0.0) -> Scored:
    random, items = np.random.default_rng(sum(map(ord, name))), np.random.default_rng(7)
    hard = items.uniform(0.2, 0.6, (tasks, 80))
    runs = []
    for seed in range(seeds):
        own = of_seeds * random.normal()
        values = hard + shift + own + 0.05 * random.normal(size=hard.shape)
        runs.append({f"task{place}": result(store, f"{name}{seed}", f"task{place}", row) for place, row in enumerate(values)})
    return Scored(tuple(runs))


def contrast(a: Scored, b: Scored, kinds: list[str], store: ResultStore, family: int) -> PairedTest | None:
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


def test_few_items_that_differ_are_no_finding_with_seeds_either(tmp_path: Path) -> None:
    """Five of forty items differ, all in one direction: exactly p = 1/16, though a t over items and seeds says 0.025. As in `compare`."""
    store, items = ResultStore(tmp_path), np.arange(40)
    trained = Scored(tuple({"t": result(store, f"a{seed}", "t", (items < 25).astype(float))} for seed in range(3)))
    plain = Scored(({"t": result(store, "b", "t", (items < 20).astype(float))},))
    for first, second, way in ((trained, plain, 1), (plain, trained, -1)):
        found = contrast(first, second, [], store, 1)
        assert found is not None and found.difference == pytest.approx(12.5 * way) and found.p == pytest.approx(1 / 16)
        [corrected] = with_holm([found])
        low, high = corrected.interval
        assert low <= 0 <= high and corrected.winner is None, "the interval agrees with p"


def test_many_tasks_are_tested_over_tasks(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    found = contrast(scored(store, "a", 0.1, 3, 8), scored(store, "b", 0.0, 1, 8), [], store, 1)
    assert found is not None and found.unit == "tasks" and found.n == 8 and found.difference == pytest.approx(10, abs=1)


def two_kinds(store: ResultStore, name: str, seeds: int, on_sts: float, on_topics: float) -> Scored:
    """One task of STS and three of topics, with these differences from an embedder that has none."""
    random = np.random.default_rng(sum(map(ord, name)))
    hard = np.random.default_rng(7).uniform(0.2, 0.6, (4, 80))
    kinds = ["sts", *["classification"] * 3]
    shifts = [on_sts, *[on_topics] * 3]
    return Scored(
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
    uneven = Scored(
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
    return list(load_plan(study, "smoke", [chosen(study)]).measured)


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
        return [replace(one, revision="changed") for one in rows(*given)]

    monkeypatch.setattr("unmask.studies.embedders.models.read_sets", changed)
    with pytest.raises(AssertionError, match="trained again"):
        CliRunner().invoke(app, of_copy, catch_exceptions=False)


@pytest.mark.parametrize(("digest", "refused"), [("as now", False), ("another", True), (None, True)])
def test_a_task_whose_texts_have_changed_since_the_training_is_refused(
    digest: str | None, refused: bool, tmp_path: Path
) -> None:
    [task] = resolve_tasks(["starter:sts"])
    assert isinstance(task, LocalTask)
    hashes = {task.name: hash_of_texts(task.texts_and_pairs) if digest == "as now" else digest} if digest else {}
    folder = tmp_path / "models" / "full" / "seed0"
    folder.mkdir(parents=True)
    RunRecord(settings={"held_out_tasks": hashes}, inputs={}, key="").write(folder / runs.RECORD)
    with pytest.raises(UnmaskError, match="had the task 'starter-sts' with these texts") if refused else nullcontext():
        _require_held_out([task], tmp_path)


@one_study
def test_models_that_are_made_in_another_way_need_another_folder(whole: tuple[str, Path]) -> None:
    study, folder = whole
    [name, *_] = load_plan(study, "smoke").made
    done = CliRunner().invoke(app, command(study, folder, "--set", f'made.{name}.settings=["evaluation.compared=[1]"]'))
    assert isinstance(done.exception, UnmaskError) and "holds a run with other settings" in str(done.exception)


@pytest.mark.parametrize("tasks", [2, 9])
def test_two_readings_of_the_same_models_share_their_trainings(tmp_path: Path, tasks: int) -> None:
    """Trainings that differ much do not hide a difference that each of them shows."""
    store = ResultStore(tmp_path)
    one = scored(store, "a", 0.0, 3, tasks, of_seeds=0.1)
    other = Scored(tuple({task: _shifted(store, result) for task, result in run.items()} for run in one.runs))
    same = contrast(other, one, [], store, 1)
    apart = contrast(Scored(tuple(_renamed(run) for run in other.runs)), one, [], store, 1)
    assert same is not None and apart is not None and same.p < 0.05 < apart.p
    assert same.difference == pytest.approx(apart.difference)


def _shifted(store: ResultStore, of: Result) -> Result:
    """Another reading of the same model, which is a little better on each task."""
    items = store.items(of)
    assert items is not None
    values = items.columns["value"] + 0.03 + 0.01 * np.sin(np.arange(items.n))
    return result(store, f"{of.model}, last", of.task, values).model_copy(update={"model": of.model})


def _renamed(run: dict[str, Result]) -> dict[str, Result]:
    return {task: of.model_copy(update={"model": f"other {of.model}"}) for task, of in run.items()}


N = 120

GOLD = np.random.default_rng(0).normal(size=N)

GROUPS = np.random.default_rng(1).integers(3, size=(N, 4))


def kept(store: ResultStore, name: str, kind: str, items: Items, task: str) -> Result:
    conditions = Conditions(
        model=name, model_revision="1", design="causal/plain/mean", task=task, task_revision="1", max_length=8, dtype="float32"
    )
    made = Result(
        model=name, design="causal/plain/mean", label=name, task=task, kind=kind, metric="m", main_score=0.5, interval=None,
        n=items.n, scores={}, dim=2, texts=1, tokens=1, truncated=0, conditions=conditions, provenance={},
    )  # fmt: skip
    store.add(made, items)
    return made


def pairs(store: ResultStore, name: str, noise: float, prompts: int = 3, runs: int = 1, kind: str = "sts") -> list[Scored]:
    """An embedder under several prompts, on a task of pairs: each prompt adds this noise to the same similarities."""
    random = np.random.default_rng(sum(map(ord, name)))
    return [
        Scored(
            tuple(
                {"pairs": kept(store, f"{name}{prompt}{run}", kind, similarities(random, noise), "pairs")}
                for run in range(runs)
            )
        )
        for prompt in range(prompts)
    ]


def similarities(random: np.random.Generator, noise: float) -> Items:
    return Items("spearman", {"predicted": GOLD + noise * random.normal(size=N), "gold": GOLD})


def clusters(store: ResultStore, name: str, changed: float, groups: np.ndarray = GROUPS, prompts: int = 3) -> list[Scored]:
    """An embedder under several prompts, on a task of clusters: each prompt moves this share of the texts."""
    random = np.random.default_rng(sum(map(ord, name)))
    made = []
    for prompt in range(prompts):
        moved = np.where(random.uniform(size=groups.shape) < changed, random.integers(3, size=groups.shape), groups)
        items = Items("v-measure", {"assigned": moved, "label": GROUPS[:, : groups.shape[1]]})
        made.append(Scored(({"texts": kept(store, f"{name}{prompt}", "clustering", items, "texts")},)))
    return made


def columns(store: ResultStore, some: list[Scored], task: str, name: str) -> list[np.ndarray]:
    return [found[0].columns[name] for one in some if (found := one.items(task, store))]


def agreement_between(what: Agreement, a: list[Scored], b: list[Scored], store: ResultStore) -> PairedTest | None:
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


@pytest.mark.parametrize("what", ["prompts", "clusters", "clusters under one prompt"])
def test_a_prompt_that_is_left_out_is_left_out(what: Agreement, tmp_path: Path) -> None:
    """Without a prompt, everything is what the others alone give."""
    store = ResultStore(tmp_path)
    make = pairs if what == "prompts" else clusters
    a, b = make(store, "a", 0.3, prompts=4), make(store, "b", 0.6, prompts=4)
    [[complete]] = agreements(what, a, b, store).values()
    [[fewer]] = agreements(what, [a[0], *a[2:]], [b[0], *b[2:]], store).values()
    assert complete.without_prompt[1] == pytest.approx(fewer.total) and len(complete.without_prompt) == 4


@pytest.mark.sample(0)
@pytest.mark.parametrize("what", ["prompts", "clusters"])
def test_equal_embedders_are_seldom_told_apart(what: Agreement) -> None:
    """Prompts and items are drawn anew each time. A test over items alone takes each prompt for all prompts, and finds too much.

    It would find 0.45 of prompts and 0.15 of clusters. Of 100 draws, 0.09 lies 1.8 standard errors above the level and 1.7 below 0.15.
    """
    draw, draws = sides_of_prompts if what == "prompts" else sides_of_clusters, 200 if ALL else 100
    found = [agreement_test({"task": [draw(np.random.default_rng(seed))]}) for seed in range(draws)]
    assert sum(test is not None and test.p < 0.05 for test in found) / draws < 0.09


def sides_of_prompts(random: np.random.Generator) -> TaskAgreement:
    """Two embedders whose prompts add noise to the same similarities: how much is random, and no matter of the embedder."""
    gold = random.normal(size=40)
    sides = [gold[:, None] + random.exponential(size=5) * random.normal(size=(40, 5)) for _ in range(2)]
    own, other = ([Items("spearman", {"predicted": column, "gold": gold}) for column in side.T] for side in sides)
    return comparison._agreement_over_prompts(own, other)


def sides_of_clusters(random: np.random.Generator) -> TaskAgreement:
    """Groupings of one pool of texts, each moved from the same grouping by chance: two prompts agree as two embedders do."""
    groups, draws = random.integers(3, size=60), random.integers(60, size=(60, 10))
    label = {"label": np.arange(60)[draws] % 3}

    def grouping() -> Items:
        share = random.uniform(0.1, 0.5)
        moved = np.where(random.uniform(size=60) < share, random.integers(3, size=60), groups)
        return Items("v-measure", {"assigned": moved[draws], **label})

    return comparison._agreement_of_clusters([grouping() for _ in range(5)], [grouping() for _ in range(5)])


def test_other_items_under_a_prompt_are_refused(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    own, other = (clusters(store, name, 0.1) for name in ("own", "other"))
    moved = Items("v-measure", {"assigned": GROUPS, "label": GROUPS[::-1]})
    other[1] = Scored(({"texts": kept(store, "moved", "clustering", moved, "texts")},))
    with pytest.raises(UnmaskError, match="other items"):
        agreements("clusters", own, other, store)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('other_prompts.of=["ruting"]', "ruting"),
        ('other_prompts.of=["hidden"]', "has to name both"),
        ('other_prompts.prompts=["tone","stile","style","intent"]', "stile"),
        ('other_prompts.prompts=["style","style","tone","intent"]', "twice under the prompt 'style'"),
        ('other_prompts.prompts=["eol","tone","style","intent"]', "twice under the prompt 'eol'"),
        ('other_prompts.kinds=["clusterring"]', "clusterring"),
        ('embedders.routing.model="base"', "two embedders of one model"),
    ],
)
def test_a_mistake_among_the_other_prompts_is_refused(setting: str, words: str) -> None:
    with pytest.raises(UnmaskError, match=words):
        load_plan("moee", "small", [setting])


TASKS = resolve_tasks(["starter:sts"])

DESIGN = Design.parse("causal/plain/mean/zscore")


def trained(folder: Path, of: StudyModel, rows: str = "rows", weights: str = "weights") -> StudyModel:
    """A model whose training writes these weights."""

    def make() -> Source:
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_text(weights)
        return Source(str(folder))

    return StudyModel(make, folder, lambda: rows, of)


@pytest.fixture
def base(tmp_path: Path) -> StudyModel:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_text("base")
    return StudyModel(lambda: Source(str(tmp_path / "base")))


def scored_model(made: StudyModel, store: ResultStore, dtype: str = "float32", reference: str | None = None) -> Result:
    """A result of a model."""
    [task] = TASKS
    conditions = Conditions(
        model=made.source.model, model_revision=made.revision, design=DESIGN.name, task=task.name, task_revision=task.revision,
        max_length=64, dtype=dtype, reference=reference or reference_hash(reference_texts()),
    )  # fmt: skip
    result = Result(
        model=made.source.model, design=DESIGN.name, label="a", task=task.name, kind="sts", metric="cosine", main_score=0.5,
        interval=None, n=2, scores={}, dim=2, texts=1, tokens=1, truncated=0, conditions=conditions, provenance={},
    )  # fmt: skip
    store.add(result, Items("mean", {"value": np.ones(2)}))
    return result


def known(made: StudyModel, store: ResultStore, dtype: str = "auto") -> list[str] | None:
    """The labels of the results that are known of a removed model."""
    results = made.stored_results({"b": DESIGN}, TASKS, 64, dtype, store)
    return None if results is None else [result.label for result in results]


def test_the_scores_of_a_removed_model_are_known(base: StudyModel, tmp_path: Path) -> None:
    store, folder = ResultStore(tmp_path / "scores"), tmp_path / "models" / "seed0"
    made = trained(folder, base)
    made.note([scored_model(made, store)])
    assert known(trained(folder, base), store) is None, "it exists"
    shutil.rmtree(folder)
    assert known(trained(folder, base), store) == ["b"] and not folder.exists()
    assert known(trained(folder, base), store, "float32") == ["b"]
    assert known(trained(folder, base), store, "bfloat16") is None, "it was scored in float32"
    assert known(trained(folder, base, rows="others"), store) is None
    other = StudyModel(lambda: Source(str(tmp_path / "scores")))
    assert known(trained(folder, other), store) is None, "it was made of another model"


def test_a_parent_that_was_made_again_with_other_weights_has_no_further_child(base: StudyModel, tmp_path: Path) -> None:
    """Else the seeds of one model would come from two parents."""
    store = ResultStore(tmp_path / "scores")
    parent_place, first, second = (tmp_path / "models" / name for name in ("parent", "seed0", "seed1"))
    child = trained(first, trained(parent_place, base, weights="parent"))
    child.note([scored_model(child, store)])
    shutil.rmtree(first)
    shutil.rmtree(parent_place)
    again = trained(parent_place, base, weights="rounded otherwise")
    assert known(trained(first, again), store) == ["b"]
    with pytest.raises(UnmaskError, match="was made again, and its weights are others than before"):
        _ = trained(second, again).source
    same = trained(parent_place.with_name("parent"), base)
    shutil.rmtree(parent_place)
    (parent_place).mkdir()
    (parent_place / "model.safetensors").write_text("parent")
    assert trained(second, same).source.model == str(second)
