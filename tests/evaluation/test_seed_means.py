"""Runs that differ in their seed alone are one design; runs that differ in anything else, or in nothing, are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from unmask.encoding.encode import Tally
from unmask.errors import UnmaskError
from unmask.evaluation.leader import kind_leaders
from unmask.evaluation.outcomes import made_result
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.evaluation.seed_means import (
    DEVIATION,
    SeedMean,
    mean_over_seeds,
    one_seed,
    runs_of,
    seed_scores,
    training,
    training_note,
)
from unmask.evaluation.verdict import _defined, comparisons, display_name, ranked
from unmask.statistics.bootstrap import Items, score
from unmask.statistics.paired import bootstrap_tasks, wilcoxon
from unmask.statistics.training_seeds import seed_test
from unmask.statistics.variance_sources import items_and_seeds_test

MEAN, LAST = "causal/plain/mean", "causal/plain/last"
TASKS = [f"t{number}" for number in range(8)]
RECIPE = {"name": "llm2vec", "model": "smollm2", "designs": [MEAN], "seeds": [0], "mntp": {"steps": 5}}


def a_run(folder: Path, seed: int, design: str = MEAN, leaks: Sequence[str] = ("dev",), **settings: Any) -> str:
    """A folder such as training leaves, alone in its own; the path of its model."""
    (folder / "model").mkdir(parents=True)
    # what a seed draws has another hash
    data = {"mntp": {"wiki": {"path": "wiki", "revision": f"hash{seed}", "leaks": {task: {"exact": seed} for task in leaks}}}}
    result = {"design": design, "seed": seed, "data": data, "base": {"weights": "a", "teacher": None}}
    content = {"settings": {"recipe": RECIPE | settings | {"seeds": [seed]}}, "result": result}
    (folder / "run.json").write_text(json.dumps(content))
    return str(folder / "model")


def some_runs(folder: Path, design: str, seeds: Sequence[int]) -> list[str]:
    """Runs of one recipe in one folder, as training with several seeds leaves them."""
    return [a_run(folder / f"{design.replace('/', '-')}.seed{seed}", seed, design) for seed in seeds]


def result(model: str, task: str = "t0", score: float = 0.5, design: str = MEAN, **fields: Any) -> Result:
    said: dict[str, Any] = {"model": model, "design": design, "task": task}
    more: dict[str, Any] = {"max_length": 9, "model_revision": "r", "task_revision": "r", "dtype": "float32"}
    given = {"label": "label", "kind": "sts", "metric": "accuracy", "main_score": score, "interval": (0.1, 0.9), "n": 40}
    made = {"scores": {"ami": score / 2}, "dim": 8, "texts": 10, "tokens": 100, "truncated": 0, "provenance": {"dtype": "x"}}
    return Result.model_validate(said | given | made | {"conditions": Conditions(**said, **more)} | fields)


def random_of(model: str) -> np.random.Generator:
    """Numbers of a model, wherever the folder of the test lies."""
    return np.random.default_rng(sum("/".join(Path(model).parts[-2:]).encode()))


def scores_of(model: str, shift: float = 0.0, n: int = len(TASKS)) -> np.ndarray:
    own = random_of(model)
    return np.linspace(0.3, 0.6, n) + own.normal(0, 0.01, n) + shift


def scored(model: str, shift: float = 0.0, design: str = MEAN) -> list[Result]:
    return [result(model, task, score, design) for task, score in zip(TASKS, scores_of(model, shift), strict=True)]


# --- which runs are alike --------------------------------------------------------------------------------------------


def test_runs_of_one_recipe_are_alike_in_one_folder_or_in_several(tmp_path: Path) -> None:
    together = some_runs(tmp_path / "runs", MEAN, [0, 1])
    apart = a_run(tmp_path / "third", 2)
    found = [training(model) for model in (*together, apart)]
    assert [one and one.seed for one in found] == [0, 1, 2]
    assert len({one.otherwise for one in found if one}) == 1


@pytest.mark.parametrize("other", [{"mntp": {"steps": 6}}, {"design": LAST}, {"leaks": ()}, {"model": "other"}])
def test_runs_that_differ_otherwise_are_not_alike(other: dict[str, Any], tmp_path: Path) -> None:
    one, another = training(a_run(tmp_path / "one", 0)), training(a_run(tmp_path / "other", 1, **other))
    assert one and another and one.otherwise != another.otherwise


def test_runs_from_other_weights_are_not_alike(tmp_path: Path) -> None:
    """A base model that was replaced under the same path makes another training; so does another teacher."""
    bases = [
        {"weights": "a", "teacher": None},
        {"weights": "b", "teacher": None},
        {"weights": "a", "teacher": {"weights": "c"}},
    ]
    for seed, base in enumerate(bases):
        model = Path(a_run(tmp_path / f"run{seed}", seed))
        record = json.loads((model.parent / "run.json").read_text())
        record["result"]["base"] = base
        (model.parent / "run.json").write_text(json.dumps(record))
    found = [training(str(tmp_path / f"run{seed}" / "model")) for seed in range(3)]
    assert len({one.otherwise for one in found if one}) == 3


def test_which_designs_a_recipe_trained_beside_it_does_not_matter(tmp_path: Path) -> None:
    one, another = training(a_run(tmp_path / "one", 0)), training(a_run(tmp_path / "other", 1, designs=[MEAN, LAST]))
    assert one and another and one.otherwise == another.otherwise


@pytest.mark.parametrize("model", ["smollm2", "org/model", ".", "no/such/model"])
def test_what_was_not_trained_here_is_no_training(model: str) -> None:
    assert training(model) is None
    assert mean_over_seeds([result(model)]) == [result(model)]
    assert one_seed([result(model)]) is None


NO_SEED, NO_DATA = (
    f'{{"settings": {{"recipe": {{}}}}, "result": {{"design": "x", "seed": {seed}, "data": {data}, "base": {{}}}}}}'
    for seed, data in (('"first"', "{}"), ("1", "[]"))
)


@pytest.mark.parametrize("broken", ["{", "[]", "{}", NO_SEED, NO_DATA])
def test_a_broken_record_is_refused(broken: str, tmp_path: Path) -> None:
    model = a_run(tmp_path / "one", 0)
    (tmp_path / "one" / "run.json").write_text(broken)
    with pytest.raises(UnmaskError, match=r"run\.json is not what `unmask train` wrote"):
        training(model)


def test_runs_that_training_left_are_told_by_their_seeds(tmp_path: Path) -> None:
    from tests.training.running import ROOT, recipe
    from unmask.models.bundled import write_pico
    from unmask.training.run import train

    write_pico(tmp_path / "pico")
    made = recipe(tmp_path / "pico" / "converted", "contrastive", contrastive={"steps": 1}, seeds=[0, 3])
    found = [training(str(run.result)) for run in train(made, tmp_path / "runs", ROOT)]
    assert [one and one.seed for one in found] == [0, 3]
    assert len({one.otherwise for one in found if one}) == 1


def test_runs_on_a_file_that_changed_are_not_alike(tmp_path: Path) -> None:
    """Their rows differ by the seed anyway. Only the files tell."""
    for seed, files in enumerate(("a", "a", "b")):
        record = Path(a_run(tmp_path / f"run{seed}", seed)).parent / "run.json"
        content = json.loads(record.read_text())
        content["result"]["data"]["mntp"]["wiki"]["files"] = files
        record.write_text(json.dumps(content))
    first, second, third = (training(str(tmp_path / f"run{seed}" / "model")) for seed in range(3))
    assert first and second and third and first.otherwise == second.otherwise != third.otherwise


# --- what a result notes of its training ------------------------------------------------------------------------------


def noting(model: str, **fields: Any) -> Result:
    return result(model, provenance=training_note(model), **fields)


def test_a_report_joins_the_same_seeds_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths are those that were typed. The runs may be elsewhere by now, or gone."""
    monkeypatch.chdir(tmp_path)
    models = some_runs(Path("runs"), MEAN, [0, 1])
    results = [noting(model) for model in models]
    [here] = mean_over_seeds(results, kept=True)
    monkeypatch.chdir("/")
    assert mean_over_seeds(results, kept=True) == [here] and one_seed([here]) is None
    assert one_seed(results[:1])
    shutil.rmtree(tmp_path / "runs")
    assert mean_over_seeds(results, kept=True) == [here]


def test_a_run_that_was_trained_again_leaves_old_scores_their_seed(tmp_path: Path) -> None:
    results = [noting(model) for model in some_runs(tmp_path / "runs", MEAN, [0, 1])]
    model = Path(results[1].model).parent
    content = json.loads((model / "run.json").read_text())
    content["result"] |= {"design": LAST, "seed": 0}
    (model / "run.json").write_text(json.dumps(content))
    assert [[run.model for run in runs_of(one)] for one in mean_over_seeds(results)] == [[one.model for one in results]]


def test_older_results_are_joined_with_newer_ones_by_their_folder(tmp_path: Path) -> None:
    old, new = some_runs(tmp_path / "runs", MEAN, [0, 1])
    assert len(mean_over_seeds([result(old), noting(new)])) == 1


def test_a_broken_record_stops_no_scoring(tmp_path: Path) -> None:
    model = a_run(tmp_path / "one", 0)
    (tmp_path / "one" / "run.json").write_text("{")
    assert training_note(model) == {} == training_note("smollm2")


def test_a_new_result_notes_the_training_of_its_model(tmp_path: Path) -> None:
    conditions, task = result(a_run(tmp_path / "run", 3)).conditions, SimpleNamespace(name="t0", kind="sts")
    outcome = SimpleNamespace(main_score=0.5, items=None, metric="accuracy", scores={})
    made, _ = made_result(conditions, "label", cast(Any, task), cast(Any, outcome), 8, Tally(), {"dtype": "x"})
    trained = training(conditions.model)
    assert trained and made.provenance == {"dtype": "x", "training": {"seed": 3, "otherwise": trained.otherwise}}
    assert made.conditions.key == conditions.key


# --- mean over seeds -------------------------------------------------------------------------------------------------


def test_results_of_seeds_become_one_with_their_mean_and_deviation(tmp_path: Path) -> None:
    models = some_runs(tmp_path / "runs", MEAN, [2, 0, 1])
    results = [
        result(model, score=score, truncated=cut) for model, score, cut in zip(models, (0.3, 0.1, 0.2), (0, 4, 1), strict=True)
    ]
    [found] = mean_over_seeds(results)
    assert (found.main_score, found.scores["ami"]) == pytest.approx((0.2, 0.1))
    assert found.scores[DEVIATION] == pytest.approx(0.1)
    assert (found.interval, found.texts, found.tokens, found.truncated) == (None, 30, 300, 5)
    assert [run.main_score for run in runs_of(found)] == [0.1, 0.2, 0.3]  # in the order of the seeds
    assert found.provenance == {"dtype": "x", "runs": sorted(models)}
    assert display_name(found.system, [found, result("smollm2")]) == "causal-plain-mean (3 seeds) label"
    assert "runs" not in json.loads(found.model_dump_json())


def test_everything_else_stays_as_and_where_it_is(tmp_path: Path) -> None:
    models = some_runs(tmp_path / "runs", MEAN, [0, 1])
    alone, plain = result(a_run(tmp_path / "alone", 0, LAST)), result("smollm2")
    found = mean_over_seeds([plain, *(result(model) for model in models), alone])
    assert [type(one) for one in found] == [Result, SeedMean, Result]
    assert (found[0], found[2]) == (plain, alone)
    assert runs_of(plain) == (plain,)


def test_designs_that_are_read_from_the_same_runs_are_joined_each(tmp_path: Path) -> None:
    models = some_runs(tmp_path / "runs", MEAN, [0, 1])
    results = [result(model, task, design=design) for model in models for design in (MEAN, LAST) for task in ("t0", "t1")]
    found = mean_over_seeds(results)
    assert [(one.design, one.task) for one in found] == [(MEAN, "t0"), (MEAN, "t1"), (LAST, "t0"), (LAST, "t1")]
    assert len({one.model for one in found}) == 1


def test_runs_in_folders_of_their_own_are_called_by_all_of_them(tmp_path: Path) -> None:
    found = mean_over_seeds([result(a_run(tmp_path / name, seed)) for seed, name in enumerate(("first", "second"))])
    assert found[0].model == f"{tmp_path / 'first'}+second (2 seeds)"


def test_a_task_that_one_seed_lacks_is_left_out_and_named(tmp_path: Path) -> None:
    models = some_runs(tmp_path / "runs", MEAN, [0, 1])
    plain = [result("smollm2", task, 0.4) for task in TASKS]
    found = mean_over_seeds([*scored(models[0]), *scored(models[1])[:-1], *plain])
    assert [one.task for one in found if isinstance(one, SeedMean)] == TASKS[:-1]
    [test] = comparisons(found, ResultStore(tmp_path / "store"))
    assert test.tasks == tuple(TASKS[:-1])
    assert test.left_out == {"t7": "not scored for causal-plain-mean (2 seeds) label"}


def test_one_training_given_twice_is_refused(tmp_path: Path) -> None:
    models = [a_run(tmp_path / name, 0) for name in ("one", "copy")]
    with pytest.raises(UnmaskError, match="the same training with seed 0"):
        mean_over_seeds([result(model) for model in models])


def test_of_a_folder_only_runs_that_were_scored_alike_are_joined(tmp_path: Path) -> None:
    """Several commands may have filled it, with one run in two spellings or each run on tasks of its own."""
    models = some_runs(tmp_path / "runs", MEAN, [0, 1])
    whole, part = scored(models[0]), scored(models[1])[:-1]
    assert mean_over_seeds([*whole, *part], kept=True) == [*whole, *part]
    assert len(mean_over_seeds([*whole[:-1], *part], kept=True)) == len(part)
    twice = [*whole, *scored(models[1]), *scored(f"{models[1]}/")]
    assert mean_over_seeds(twice, kept=True) == twice
    assert one_seed(twice) is None


def test_a_single_seed_is_told(tmp_path: Path) -> None:
    models = some_runs(tmp_path / "runs", MEAN, [0, 1])
    assert one_seed([result(model) for model in models]) is None
    said = one_seed([*(result(model) for model in models), result(a_run(tmp_path / "alone", 0, LAST))])
    assert said is not None and said.startswith(f"One seed of {tmp_path / 'alone'}: tests are about these embedders")


# --- in a verdict ----------------------------------------------------------------------------------------------------


def two_designs(folder: Path) -> tuple[list[Result], list[str], list[str]]:
    means, lasts = some_runs(folder / "mean", MEAN, [0, 1, 2]), some_runs(folder / "last", LAST, [0, 1])
    results = [one for model in means for one in scored(model, 0.05)]
    return [*results, *(one for model in lasts for one in scored(model, design=LAST))], means, lasts


def test_a_comparison_of_seeds_is_the_seed_test(tmp_path: Path) -> None:
    results, means, lasts = two_designs(tmp_path)
    joined = mean_over_seeds(results)
    [found] = comparisons(joined, ResultStore(tmp_path / "store"))
    tables = [np.array([scores_of(model, shift) for model in models]) for models, shift in ((means, 0.05), (lasts, 0))]
    expected = seed_test(*tables).test
    assert (found.outcome.test, found.outcome.n) == (expected.test, 8)
    assert (found.outcome.p, *found.outcome.interval) == pytest.approx((expected.p, *expected.interval))
    np.testing.assert_allclose(seed_scores([one for one in joined if one.system == found.a]), tables[0])
    assert ranked(joined)[0][1] == pytest.approx(tables[0].mean())
    assert "causal-plain-mean (3 seeds) label" in display_name(ranked(joined)[0][0], joined)
    [leader] = kind_leaders(joined, ResultStore(tmp_path / "store"))
    assert any("ahead of causal-plain-last (2 seeds) label" in reason for reason in leader.reasons)


def test_a_trained_design_is_compared_with_one_that_is_not(tmp_path: Path) -> None:
    models = some_runs(tmp_path / "mean", MEAN, [0, 1])
    plain = scored("smollm2")
    joined = mean_over_seeds([*plain, *(one for model in models for one in scored(model, 0.05))])
    [found] = comparisons(joined, ResultStore(tmp_path / "store"))
    expected = seed_test(scores_of("smollm2"), np.array([scores_of(model, 0.05) for model in models])).test
    assert found.outcome.p == pytest.approx(expected.p)
    assert found.outcome.test == expected.test


def test_two_readings_of_the_same_trainings_are_paired_by_their_seeds(tmp_path: Path) -> None:
    """A training that went badly is worse under both, and says nothing of their difference."""
    models = some_runs(tmp_path / "mean", MEAN, [0, 1, 2])
    off = dict(zip(models, (0.0, 0.2, -0.2), strict=True))
    results = [one for model in models for one in scored(model, off[model])]
    results += [
        result(model, task, score + off[model] + 0.02 + 0.001 * place, LAST)
        for model in models
        for place, (task, score) in enumerate(zip(TASKS, scores_of(model), strict=True))
    ]
    [found] = comparisons(mean_over_seeds(results), ResultStore(tmp_path / "store"))
    assert found.outcome.p < 0.05 and abs(found.outcome.difference) == pytest.approx(0.0235)
    table = np.array([scores_of(model, off[model]) for model in models])
    gained = 0.02 + 0.001 * np.arange(len(TASKS))
    assert seed_test(table + gained, table).test.p > 0.5, "as two designs that were trained apart"


def test_readings_of_other_trainings_are_not_paired(tmp_path: Path) -> None:
    """Two readings may have been scored on other seeds of one training: their runs have one name."""
    models = some_runs(tmp_path / "mean", MEAN, [0, 1, 2])
    results = [one for model in models[:2] for one in scored(model)]
    results += [one for model in models[1:] for one in scored(model, 0.05, LAST)]
    joined = mean_over_seeds(results)
    assert len({one.model for one in joined}) == 1
    [found] = comparisons(joined, ResultStore(tmp_path / "store"))
    tables = [np.array([scores_of(model, shift) for model in some]) for some, shift in ((models[:2], 0), (models[1:], 0.05))]
    assert found.outcome.p == pytest.approx(seed_test(*tables).test.p)


def items(model: str, metric: str = "mean") -> Items:
    made = random_of(model).normal(0.5, 0.1, 40)
    return Items("mean", {"value": made}) if metric == "mean" else Items("spearman", {"predicted": made, "gold": np.arange(40)})


@pytest.mark.parametrize("change", [lambda _: None, lambda one: one])
def test_with_few_tasks_the_test_is_over_items_and_seeds(change: Callable[[Any], Any], tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store")
    means, lasts = some_runs(tmp_path / "mean", MEAN, [0, 1, 2]), some_runs(tmp_path / "last", LAST, [0])
    results = []
    for model in (*means, *lasts):
        results.append(
            result(model, score=float(items(model).columns["value"].mean()), design=MEAN if model in means else LAST)
        )
        store.add(results[-1], items(model) if model != means[1] else change(items(model)))
    found = comparisons(mean_over_seeds(results), store)
    if change(1) is None:  # without the items of one seed there is no mean of seeds
        assert found == []
        return
    sides = [[[items(model)] for model in models] for models in (means, lasts)]
    drawn, points = (
        [np.array([one(run) for run in side]) for side in sides]
        for one in (lambda run: bootstrap_tasks(run, 2000), lambda run: [score(run[0])])
    )
    expected = items_and_seeds_test((drawn[0], drawn[1]), (points[0], points[1]), [40])
    assert found[0].outcome.test == expected.test == "t over items (bootstrap) and seeds"
    assert (found[0].outcome.difference, found[0].outcome.p, found[0].outcome.n) == pytest.approx(
        (expected.difference, expected.p, 40)
    )
    assert found[0].outcome.interval == pytest.approx(expected.interval)


def test_seeds_that_disagree_decide_nothing_over_items(tmp_path: Path) -> None:
    """The items alone would: the mean of two seeds is better on nearly all of them."""
    store, results = ResultStore(tmp_path / "store"), []
    seeds, plain = some_runs(tmp_path / "mean", MEAN, [0, 1]), "smollm2"
    noise = np.random.default_rng(0).normal(0, 0.01, 40)
    for model, level in ((seeds[0], 0.9), (seeds[1], 0.5), (plain, 0.6)):
        results.append(result(model, score=float(level + noise.mean())))
        store.add(results[-1], Items("mean", {"value": level + noise * (1 + level)}))
    [found] = comparisons(mean_over_seeds(results), store)
    assert found.outcome.difference > 0.09 and found.better is None


def test_readings_of_the_same_trainings_are_paired_over_items(tmp_path: Path) -> None:
    """One training is bad for both readings. Their difference is the same in every seed."""
    store, results, seeds = ResultStore(tmp_path / "store"), [], some_runs(tmp_path / "mean", MEAN, [0, 1, 2])
    noise = np.random.default_rng(1).normal(0, 0.01, 40)
    for design, gain in ((MEAN, 0.0), (LAST, 0.05)):
        for model, level in zip(seeds, (0.8, 0.4, 0.7), strict=True):
            value = level + gain + noise * (1 + gain) + 0.001 * level * gain
            results.append(result(model, score=float(value.mean()), design=design))
            store.add(results[-1], Items("mean", {"value": value}))
    [found] = comparisons(mean_over_seeds(results), store)
    assert found.better is not None and found.better[1] == LAST


# --- what a test over seeds cannot have ------------------------------------------------------------------------------


def test_seeds_that_score_the_same_are_tested_over_tasks_alone(tmp_path: Path) -> None:
    models = some_runs(tmp_path / "runs", MEAN, [0, 1])
    values = scores_of("a")
    same = [result(model, task, value) for model in models for task, value in zip(TASKS, values, strict=True)]
    plain = [result("smollm2", task, value - 0.1) for task, value in zip(TASKS, values, strict=True)]
    [test] = comparisons(mean_over_seeds([*same, *plain]), ResultStore(tmp_path / "store"))
    assert test.outcome.test.endswith("of means over seeds that score the same")
    expected = wilcoxon(values, values - 0.1)
    assert test.outcome.p == expected.p
    assert test.outcome.difference == pytest.approx(expected.difference)


def test_a_design_whose_seeds_differ_is_tested_beside_one_whose_seeds_do_not(tmp_path: Path) -> None:
    differing = some_runs(tmp_path / "runs", MEAN, [0, 1])
    equal = some_runs(tmp_path / "equal", LAST, [0, 1])
    values = scores_of("a")
    results = [one for model in differing for one in scored(model)]
    results += [result(model, task, value, LAST) for model in equal for task, value in zip(TASKS, values, strict=True)]
    [test] = comparisons(mean_over_seeds(results), ResultStore(tmp_path / "store"))
    expected = seed_test(np.array([scores_of(model) for model in differing]), values)
    assert test.outcome.p == pytest.approx(expected.test.p)


def test_a_task_whose_score_is_undefined_on_resamples_is_left_out(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    rare = Items("average-precision", {"predicted": np.arange(2000.0), "label": np.eye(1, 2000, 7)[0]})
    usual = Items("mean", {"value": np.linspace(0, 1, 40)})
    results = []
    for model in ("one", "other"):
        for task, items in (("t0", usual), ("t1", rare)):
            results.append(result(model, task))
            store.add(results[-1], items)
    [test] = comparisons(results, store)
    assert test.tasks in (("t0", "t1"), ("t0",))
    assert _defined([np.array([[1.0, 2.0, 3.0], [np.nan] * 3]), np.ones((2, 3))]) == [0]
    assert _defined([np.full((2, 3), np.nan), np.ones((2, 3))]) == []
    assert _defined([np.array([[1.0, np.nan, 1], [np.nan, 1, np.nan]]), np.ones((2, 3))]) == [0]
