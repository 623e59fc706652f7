"""Studies of embedders: their plans, their tests, and whole runs on pico."""

from __future__ import annotations

import json
import shutil
import zipfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.proofs import ALL
from tests.sketches import sketching
from tests.studies import smoke
from tools.kept_studies import keep_values
from unmask.cli import app
from unmask.designs.design import Design
from unmask.designs.prompts import find_prompt
from unmask.encoding.heads import HeadOptions, build_head, count_parameters
from unmask.errors import UnmaskError
from unmask.evaluation.compare import compare
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.runs import runs
from unmask.runs.runs import RunRecord
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import PairedTest, better_side, with_holm
from unmask.studies.embedders.builder import _start
from unmask.studies.embedders.contrast import Scored, contrasts
from unmask.studies.embedders.plan import STUDIES, Making, load_plan, scales
from unmask.studies.embedders.run import EmbeddersRecord, _require_held_out
from unmask.studies.results import read_results
from unmask.tasks.find import resolve_tasks
from unmask.tasks.task import LocalTask
from unmask.training.data import DataSet
from unmask.training.recipe import Recipe, load_recipe, read_sets
from unmask.training.run import hash_of_texts


@pytest.mark.parametrize("study", STUDIES)
def test_every_scale_has_a_plan(study: str) -> None:
    for scale in scales(study):
        plan = load_plan(study, scale)
        assert {reading.model for reading in plan.embedders.values()} <= {"base", *plan.made}


def test_heads_whose_layer_matrix_starts_in_another_way_are_other_models() -> None:
    """Before there was a setting for it, each layer matrix was centred: what is kept of such models must not count for these."""
    start = {
        name: _start(load_recipe("pooling-and-attention", "small", [f'designs=["{design}"]', *settings]))
        for name, design, settings in (
            ("random", "causal/eos/layer-attention", []),
            ("centred", "causal/eos/layer-attention", ["head.centred=true"]),
            ("no matrix", "causal/eos/layer-attention", ["head.layer_matrix=false"]),
            ("tokens", "causal/eos/cross-attention", []),
        )
    }
    assert start.pop("random") == ["random layer matrix"] and not any(start.values())


@pytest.mark.parametrize("study", STUDIES)
def test_what_a_plan_trains_is_read_as_it_was_trained(study: str) -> None:
    """A wrong key in the settings of a model would show only when its turn comes, hours after the start."""
    for scale in scales(study):
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


@pytest.mark.parametrize(
    ("scale", "model", "hidden", "layers"),
    [("small", "smollm2", 576, 30), ("paper", "Mistral-7B-v0.1", 4096, 32), ("paper", "Qwen2-0.5B", 896, 24)],
)
def test_every_head_of_the_plan_can_be_made(scale: str, model: str, hidden: int, layers: int) -> None:
    """A width that the attention heads do not share equally would show only when its turn comes."""
    plan = load_plan("pooling-and-attention", scale, model=model)
    heads = {}
    for reading in plan.measured.values():
        if reading.parsed.needs_head:
            recipe = plan.made[reading.model].recipe_at(scale)
            assert recipe is not None
            with torch.device("meta"):
                heads[reading.model] = build_head(reading.parsed.one_pooling, hidden, layers, recipe.head or HeadOptions())
    assert {"2", "3", "4", "5"} <= heads.keys()
    if "5-narrow" in heads:
        assert heads["5-narrow"].options.dim == hidden // 4, "a quarter of the hidden state, as its claim says"


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_labels_are_added_to_as_many_pairs_as_their_control_sees(scale: str) -> None:
    """Batches are drawn in proportion to the sizes of the data, so this is what both are expected to see."""
    made = load_plan("pooling-and-attention", scale).made
    recipes = [made[name].recipe_at(scale) for name in ("causal-mean", "labels")]
    [plain, mixed] = [recipe.contrastive for recipe in recipes if recipe is not None]
    assert plain is not None and mixed is not None
    sizes = {"small": (2940, 2940), "paper": (557_850, 120_000)}
    pairs, labels = sizes.get(scale) or _sizes(recipes[1])
    assert mixed.steps * pairs / (pairs + labels) == pytest.approx(plain.steps, rel=0.01)
    assert plain.data == ("triples",) and mixed.data == ("triples", "labels")
    only = {"data", "steps", "warmup"}
    assert mixed.model_dump(exclude=only) == plain.model_dump(exclude=only)
    assert mixed.warmup * plain.steps == plain.warmup * mixed.steps, "the same share of the steps"


def _sizes(recipe: Recipe | None) -> list[int]:
    assert recipe is not None
    return [len(data.examples) for data in read_sets(recipe, "contrastive", Path(), 0)]


def test_a_base_model_may_have_a_part_of_the_plan() -> None:
    whole, part = (load_plan("pooling-and-attention", "small", model=model) for model in ("smollm2", "gemma3-270m"))
    assert set(whole.measured) == set(whole.embedders) and len(whole.seeds) == 5
    assert set(part.measured) < set(part.embedders) and len(part.seeds) == 3
    assert {"design 1", "design 5"} <= set(part.measured)
    chosen = load_plan("pooling-and-attention", "small", ["seeds=[7]", 'only=["design 2"]'], "gemma3-270m")
    assert (chosen.seeds, chosen.only) == ((7,), ("design 2",)), "what a user sets stands over it"
    with pytest.raises(UnmaskError, match="desing 1"):
        load_plan("pooling-and-attention", "small", ['on.gemma3-270m.only=["desing 1"]'])


def test_what_a_plan_says_of_all_its_claims_stands_in_each_row() -> None:
    small, paper = (load_plan("moee", scale) for scale in ("small", "paper"))
    for claim in small.claims:
        assert claim.how.count("upcycled to 4 experts, in one training. A mixture is taken as it is.") == (
            0 if claim.untestable else 1
        ), claim.id
    assert not any("upcycled" in claim.how for claim in paper.claims), "OLMoE is taken as it is"
    assert small.made["mixture"].experts == 4 and len(small.seeds) == 1 and small.made["mixture"].seeds is None
    both = load_plan("pooling-and-attention", "small", ['how="On a laptop."']).claims
    assert both[0].how.startswith("Every comparison") and all(
        claim.how.endswith("On a laptop.") for claim in both if not claim.untestable
    )


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
    return contrasts(a, b, kinds, store, family)[0]


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
        assert low <= 0 <= high and better_side(corrected) == 0, "the interval agrees with p"


def test_many_tasks_are_tested_over_tasks(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    found = contrast(scored(store, "a", 0.1, 3, 8), scored(store, "b", 0.0, 1, 8), [], store, 1)
    assert found is not None and found.unit == "tasks" and found.n == 8 and found.difference == pytest.approx(10, abs=1)


@pytest.mark.parametrize("tasks", [2, 8])
def test_sides_may_have_other_numbers_of_seeds(tmp_path: Path, tasks: int) -> None:
    """Parts of a head have three seeds, the design that they are compared with has five."""
    store = ResultStore(tmp_path)
    five, three = scored(store, "a", 0.1, 5, tasks), scored(store, "b", 0.0, 3, tasks)
    found, other_way = contrast(five, three, [], store, 1), contrast(three, five, [], store, 1)
    assert found is not None and other_way is not None and "seeds" in found.test
    assert found.difference == pytest.approx(10, abs=1) and found.p < 0.01
    assert other_way.difference == pytest.approx(-found.difference) and other_way.p == pytest.approx(found.p)


def test_a_family_that_no_number_of_such_tasks_could_satisfy_is_tested_over_items(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    a, b = scored(store, "a", 0.1, 1, 8), scored(store, "b", 0.0, 1, 8)
    found = contrast(a, b, [], store, 30)
    assert found is not None and found.unit == "items", "the smallest p of 8 tasks, times 30, is 0.23"


def test_a_task_without_items_is_left_out(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    a, b = scored(store, "a", 0.1, 1, 2), scored(store, "b", 0.0, 1, 2)
    store.add(a.runs[0]["task1"], None)
    found = contrast(a, b, [], store, 1)
    assert found is not None and found.n == 80


def test_only_tasks_of_the_kinds_of_a_claim_count(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    values = np.linspace(0, 1, 40)
    a, b = (
        Scored(
            (
                {
                    "sts": result(store, name, "sts", values * scale, "sts"),
                    "words": result(store, name, "words", values, "word-level"),
                },
            )
        )
        for name, scale in (("a", 1.0), ("b", 0.5))
    )
    of_sts, of_all, of_words = (contrast(a, b, kinds, store, 1) for kinds in (["sts"], [], ["word-level"]))
    assert of_sts is not None and of_all is not None and of_words is not None
    assert of_sts.difference == pytest.approx(25) == of_all.difference, "without kinds, tasks on words are left out"
    assert of_words.difference == 0
    assert contrast(a, b, ["retrieval"], store, 1) is None


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
        found, here = contrasts(two_kinds(store, name, seeds, on_sts, on_topics), plain, ["sts"], store, 1, ["classification"])
        assert found is not None and found.unit == "items" and here is found
        assert found.changes is None, "in an interaction, no sign is a coin flip"
        return found

    larger, same, smaller = interaction("a", 0.1, 0.0), interaction("b", 0.1, 0.1), interaction("c", 0.0, 0.1)
    assert larger.difference == pytest.approx(10, abs=2) and larger.p < 0.01 and larger.n == 320
    assert abs(same.difference) < 2 and same.p > 0.01
    assert smaller.difference == pytest.approx(-10, abs=2) and smaller.p < 0.01
    for kinds, less_on in ((["sts"], ["retrieval"]), (["retrieval"], ["sts"])):
        assert contrasts(plain, plain, kinds, store, 1, less_on) == (None, None), "there is no such task to compare with"


def test_on_these_tasks_alone_the_items_are_tested(tmp_path: Path) -> None:
    """Tasks that disagree decide nothing in general, and much on themselves."""
    store = ResultStore(tmp_path)
    plain = scored(store, "b", 0.0, 1, 8)
    shifts = np.array([0.3, 0.3, 0.3, 0.05, -0.1, -0.1, 0.02, -0.05])
    items = np.random.default_rng(7).uniform(0.2, 0.6, (8, 80))
    uneven = Scored(
        ({f"task{place}": result(store, "uneven", f"task{place}", row + shifts[place]) for place, row in enumerate(items)},)
    )
    general, here = contrasts(uneven, plain, [], store, 1)
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


@one_study
def test_a_score_that_is_missing_is_an_error(whole: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    study, folder = whole
    monkeypatch.setattr("unmask.studies.embedders.run.compare", lambda *given: list(compare(*given))[:-1])
    done = CliRunner().invoke(app, whole_command(study, folder))
    assert isinstance(done.exception, UnmaskError) and "has no score on starter-" in str(done.exception)


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

    monkeypatch.setattr("unmask.studies.embedders.builder.run_recipe", refuse)
    before = (folder / "pico" / "results.json").read_bytes()
    with sketching():
        assert CliRunner().invoke(app, of_copy, catch_exceptions=False).exit_code == 0
        assert (tmp_path / "copy" / "pico" / "results.json").read_bytes() == before
    with pytest.raises(AssertionError, match="trained again"):  # a longer text is another measurement
        CliRunner().invoke(app, [*of_copy, "--set", "max_length=63"], catch_exceptions=False)
    rows = read_sets

    def changed(*given: Any) -> list[DataSet]:
        return [replace(one, revision="changed") for one in rows(*given)]

    monkeypatch.setattr("unmask.studies.embedders.builder.read_sets", changed)
    with pytest.raises(AssertionError, match="trained again"):
        CliRunner().invoke(app, of_copy, catch_exceptions=False)


@one_study
@pytest.mark.usefixtures("sketched")
def test_embedders_can_be_left_out_and_added_later(whole: tuple[str, Path], tmp_path: Path) -> None:
    study, _ = whole
    first, second, *_ = load_plan(study, "smoke").embedders
    for only in ([first], [first, second]):
        setting = f"only={json.dumps(only)}"
        done = CliRunner().invoke(app, command(study, tmp_path, "--set", setting), catch_exceptions=False)
        assert done.exit_code == 0
        content = json.loads((tmp_path / "pico" / "results.json").read_text())
        assert list(content["scores"]) == list(load_plan(study, "smoke", [setting]).measured)
    verdicts = {finding["verdict"] for finding in content["claims"]}
    assert "not measured" in verdicts and not (tmp_path / "pico" / "models" / "full").exists()


@one_study
def test_a_task_that_a_trained_model_may_have_seen_is_refused(
    whole: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is scored: the texts of a new task were not left out of its training."""
    study, folder = whole
    shutil.copytree(folder / "pico", tmp_path / "pico")
    task = tmp_path / "data" / "new"
    task.mkdir(parents=True)
    (task / "test.jsonl").write_text(
        "".join(json.dumps({"sentence1": f"a {n}", "sentence2": f"b {n}", "score": n}) + "\n" for n in range(40))
    )
    tasks = f"tasks={json.dumps([*load_plan(study, 'smoke').tasks, str(task)])}"
    monkeypatch.setattr("unmask.studies.embedders.run.compare", lambda *_: pytest.fail("it is scored"))
    done = CliRunner().invoke(app, command(study, tmp_path, "--set", chosen(study), "--set", tasks))
    trained = list((tmp_path / "pico" / "models").glob("*/seed*/run.json"))
    if trained:
        assert isinstance(done.exception, UnmaskError) and "was trained before the study had the task 'new'" in str(
            done.exception
        )


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
def test_another_study_needs_another_folder(whole: tuple[str, Path]) -> None:
    study, folder = whole
    other = next(name for name in STUDIES if name != study)
    done = CliRunner().invoke(app, command(other, folder))
    assert isinstance(done.exception, UnmaskError) and "other lessons or settings" in str(done.exception)


@one_study
def test_another_precision_needs_another_folder(whole: tuple[str, Path]) -> None:
    """Scores of the base in one and of trained models in another are not compared. Older records do not say it."""
    _, folder = whole
    record = EmbeddersRecord.read(folder / "pico" / "study.json")
    assert record is not None and record.dtype == "float32"
    other = record.model_copy(update={"dtype": "bfloat16"})
    assert not other.is_same(record, folder) and other.is_same(record.model_copy(update={"dtype": None}), folder)


@one_study
def test_models_that_are_made_in_another_way_need_another_folder(whole: tuple[str, Path]) -> None:
    study, folder = whole
    [name, *_] = load_plan(study, "smoke").made
    done = CliRunner().invoke(app, command(study, folder, "--set", f'made.{name}.settings=["evaluation.compared=[1]"]'))
    assert isinstance(done.exception, UnmaskError) and "other lessons or settings" in str(done.exception)


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


@pytest.mark.parametrize("study", STUDIES)
def test_seeds_of_a_model_can_be_added_and_its_recipe_stays(study: str, tmp_path: Path) -> None:
    """A seed has a model of its own, so another number of seeds is the same study."""
    made = load_plan(study, "smoke").made

    def record(made: dict[str, Making], scale: str = "smoke") -> EmbeddersRecord:
        return EmbeddersRecord(model="pico", study=study, scale=scale, made=made)

    [name, making] = next(iter(made.items()))
    changes = ({"seeds": (0, 1, 2)}, {"settings": ("head.queries=1",)}, {"design": "causal/plain/mean"}, {"of": "other"})
    more, *others = ({**made, name: making.model_copy(update=change)} for change in changes)
    before = record(made)
    assert record(more).is_same(before, tmp_path) and before.is_same(record(more), tmp_path)
    assert not any(record(other).is_same(before, tmp_path) for other in others)
    assert not record(made, "small").is_same(before, tmp_path)
