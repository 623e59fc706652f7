"""Runs that differ only in their seed are one design, and are compared with the variance of their trainings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.errors import UnmaskError
from unmask.evaluation.leader import kind_leaders
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.evaluation.seed_means import (
    DEVIATION,
    SeedMean,
    mean_over_seeds,
    one_seed,
    runs_of,
    seed_scores,
    training_note,
)
from unmask.evaluation.verdict import comparisons, display_name, rank_systems
from unmask.statistics.paired import seed_test

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
    made = {
        "scores": {"ami": score / 2},
        "dim": 8,
        "texts": 10,
        "tokens": 100,
        "truncated": 0,
        "provenance": {"dtype": "x"} | training_note(model),
    }
    return Result.model_validate(said | given | made | {"conditions": Conditions(**said, **more)} | fields)


def random_of(model: str) -> np.random.Generator:
    """Numbers of a model, wherever the folder of the test lies."""
    return np.random.default_rng(sum("/".join(Path(model).parts[-2:]).encode()))


def scores_of(model: str, shift: float = 0.0, n: int = len(TASKS)) -> np.ndarray:
    own = random_of(model)
    return np.linspace(0.3, 0.6, n) + own.normal(0, 0.01, n) + shift


def scored(model: str, shift: float = 0.0, design: str = MEAN) -> list[Result]:
    return [result(model, task, score, design) for task, score in zip(TASKS, scores_of(model, shift), strict=True)]


@pytest.mark.parametrize(
    ("other", "is_joined"),
    [({}, True), ({"mntp": {"steps": 6}}, False), ({"design": LAST}, False), ({"leaks": ()}, False), ({"model": "x"}, False)],
)
def test_runs_that_differ_only_in_their_seed_are_joined(other: dict[str, Any], is_joined: bool, tmp_path: Path) -> None:
    models = a_run(tmp_path / "first", 0), a_run(tmp_path / "second", 1, **other)
    results = [result(model) for model in models]
    for run in ("first", "second"):  # results note how their model was trained
        shutil.rmtree(tmp_path / run)
    assert (len(mean_over_seeds(results)) == 1) is is_joined
    assert (one_seed(results) is None) is is_joined


@pytest.mark.parametrize("record", [None, "{", "[]", '{"settings": {}, "result": {}}'])
def test_what_was_not_trained_here_is_compared_alone(record: str | None, tmp_path: Path) -> None:
    model = a_run(tmp_path / "run", 0)
    (tmp_path / "run" / "run.json").unlink() if record is None else (tmp_path / "run" / "run.json").write_text(record)
    assert training_note(model) == training_note("org/model") == {}
    assert mean_over_seeds([result(model)]) == [result(model)] and one_seed([result(model)]) is None


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


def test_a_task_that_one_seed_lacks_is_left_out_and_named(tmp_path: Path) -> None:
    models = some_runs(tmp_path / "runs", MEAN, [0, 1])
    plain = [result("smollm2", task, 0.4) for task in TASKS]
    found = mean_over_seeds([*scored(models[0]), *scored(models[1])[:-1], *plain])
    assert [one.task for one in found if isinstance(one, SeedMean)] == TASKS[:-1]
    [test] = comparisons(found, ResultStore(tmp_path / "store"))
    assert test.tasks == tuple(TASKS[:-1])
    assert test.left_out == {"t7": "not scored for causal-plain-mean (2 seeds) label"}


def test_one_training_given_twice_is_refused(tmp_path: Path) -> None:
    models = [a_run(tmp_path / name, 0) for name in ("run", "copy")]
    with pytest.raises(UnmaskError, match="the same training with seed 0"):
        mean_over_seeds([result(model) for model in models])


def test_of_a_folder_only_runs_that_were_scored_on_the_same_tasks_are_joined(tmp_path: Path) -> None:
    """Several commands may have filled it, with one run in two spellings or each run on tasks of its own."""
    models = some_runs(tmp_path / "runs", MEAN, [0, 1])
    whole, part = scored(models[0]), scored(models[1])[:-1]
    assert mean_over_seeds([*whole, *part], saved=True) == [*whole, *part]
    assert len(mean_over_seeds([*whole[:-1], *part], saved=True)) == len(part)
    twice = [*whole, *scored(models[1]), *scored(f"{models[1]}/")]
    assert mean_over_seeds(twice, saved=True) == twice
    assert (one_seed(whole) or "").startswith(f"One seed of {Path(models[0]).parent}: tests are about these embedders")


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
    assert rank_systems(joined)[0][1] == pytest.approx(tables[0].mean())
    assert "causal-plain-mean (3 seeds) label" in display_name(rank_systems(joined)[0][0], joined)
    [leader] = kind_leaders(joined, ResultStore(tmp_path / "store"))
    assert any("ahead of causal-plain-last (2 seeds) label" in reason for reason in leader.reasons)


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
