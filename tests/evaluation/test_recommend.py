"""A race: the best design wins, what is worse is not paid for, and the bill is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.test_compare import plan_of, task_in
from tests.tiny import write_rows, write_task
from unmask.design import parse_designs
from unmask.errors import UnmaskError
from unmask.evaluation import recommend as module
from unmask.evaluation.compare import Plan, compare
from unmask.evaluation.recommend import SHARES, beside_the_best, lane, recommend
from unmask.evaluation.resampling import Items
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.evaluation.tasks import LocalTask, MtebTask

LANES = "mean,last,prompteol,causal/eol/last@2,echo,bidirectional-mean"
COST = {"plain": 10, "eol": 15, "echo": 20}


@pytest.fixture
def tasks(tmp_path: Path) -> list[LocalTask]:
    """Two tasks of 400 items."""
    found = []
    for name in ("one", "two"):
        rows = [{"sentence1": f"{name} {n}", "sentence2": f"{n} {name}", "score": n % 7} for n in range(400)]
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / "test.jsonl", rows)
        found.append(task_in(tmp_path / name))
    return found


def scripted(quality: dict[str, float], rounds: list[list[str]]) -> Callable[..., list[Result]]:
    """A comparison whose items are right as often as a design's quality says, the first ones of a task as in its subsets."""

    def scripted_compare(plan: Plan, store: ResultStore, *_: Any, **__: Any) -> list[Result]:
        rounds.append(list(plan.designs))
        results = []
        for label, design in plan.designs.items():
            for number, task in enumerate(plan.tasks):
                assert isinstance(task, LocalTask)
                chance = np.random.default_rng([number, int(100 * quality[label])])  # equals are equal
                value = (chance.random(400)[: task.size] < quality[label]).astype(float)
                conditions = Conditions(
                    model="m",
                    model_revision="r",
                    design=design.name,
                    task=task.name,
                    task_revision="t",
                    max_length=8,
                    dtype="f",
                )
                result = Result(
                    model="m",
                    design=design.name,
                    label=label,
                    task=task.name,
                    kind="sts",
                    metric="accuracy",
                    main_score=float(value.mean()),
                    interval=None,
                    n=task.size,
                    scores={},
                    dim=8,
                    texts=task.size,
                    tokens=task.size * COST[design.prompt],
                    truncated=0,
                    conditions=conditions,
                    provenance={},
                )
                store.add(result, Items("mean", {"value": value}))
                results.append(result)
        return results

    return scripted_compare


def race(quality: Sequence[float], tasks: list[LocalTask], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    rounds: list[list[str]] = []
    labels = LANES.split(",")
    monkeypatch.setattr(module, "compare", scripted(dict(zip(labels, quality, strict=True)), rounds))
    return recommend(plan_of(folder / "model", LANES, tasks), ResultStore(folder / "store")), rounds


def test_the_best_design_wins_and_what_is_far_worse_leaves_at_once(
    tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice, rounds = race([0.2, 0.25, 0.9, 0.9, 0.3, 0.1], tasks, tmp_path, monkeypatch)
    assert {advice.label, *advice.ties} == {"prompteol", "causal/eol/last@2"}
    assert advice.design == parse_designs(LANES)[advice.label]
    assert set(rounds[1]) == {"prompteol", "causal/eol/last@2"}
    assert advice.interval[0] < advice.score < advice.interval[1]
    # all four passes on a sixteenth, then one of them to the half
    first = 50 * (10 + 15 + 20 + 10)
    assert advice.rounds[0].tokens == first
    assert advice.tokens == first + 350 * 15
    assert advice.grid_tokens == 800 * (10 + 15 + 20 + 10)
    assert sum(one.tokens for one in advice.rounds) == advice.tokens


def test_of_passes_that_cannot_be_told_apart_the_better_half_goes_on(
    tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice, rounds = race([0.5] * 6, tasks, tmp_path, monkeypatch)
    lanes = [{lane(parse_designs(LANES)[label]) for label in labels} for labels in rounds]
    assert [len(one) for one in lanes] == [4, 2, 1, 1]
    assert lanes[1] == {("causal", "plain"), ("causal", "eol")}, "of equals, those that were named first"
    assert lanes[-1] == {lane(advice.design)}
    assert [one.items for one in advice.rounds][: len(rounds)] == [round(800 * share) for share in SHARES][: len(rounds)]


def test_a_race_ends_when_one_design_is_left(tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice, rounds = race([0.1, 0.2, 0.1, 0.2, 0.9, 0.1], tasks, tmp_path, monkeypatch)
    assert (advice.label, len(rounds), advice.ties) == ("echo", 1, ())
    assert advice.grid_tokens == 800 * (10 + 15 + 20 + 10), "as if all had run to the end"


def test_designs_that_score_alike_are_named(tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice, _ = race([0.8, 0.8, 0.1, 0.1, 0.1, 0.1], tasks, tmp_path, monkeypatch)
    assert {advice.label, *advice.ties} == {"mean", "last"}


def test_the_lead_of_the_best_of_many_is_no_surprise() -> None:
    random = np.random.default_rng(0)
    for designs in (2, 5, 12):
        scores = np.sort(random.normal(size=(4000, designs)), axis=1)
        spread = (scores[:, -1] - scores[:, 0]) / np.sqrt(2)  # of a difference of two
        level = np.mean([beside_the_best(value, designs) < 0.05 for value in spread])
        assert level == pytest.approx(0.05, abs=0.015), "the worst of equals is dropped in one of twenty races"
    assert beside_the_best(1.959964, 2) == pytest.approx(0.05, abs=1e-4), "two designs: the usual two-sided p"
    assert beside_the_best(float("inf"), 5) == 0


@pytest.mark.parametrize("kind", ["sts", "classification", "clustering", "retrieval"])
def test_the_bill_of_the_grid_is_what_the_grid_computes(
    kind: str, pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEVEL", 0)
    task = task_in(write_task(tmp_path / kind, kind))
    plan = plan_of(pico_folder("llama"), "mean,last,bidirectional-mean", [task])
    advice = recommend(plan, ResultStore(tmp_path / "race"))
    results = compare(plan, ResultStore(tmp_path / "grid"))
    whole = sum({result.design.split("/")[0]: result.tokens for result in results}.values())
    assert advice.grid_tokens == pytest.approx(whole, rel=0.1)


def test_a_real_race_computes_nothing_twice(
    pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEWEST", 2)
    monkeypatch.setattr(module, "LEVEL", 0)  # nothing is dropped by a test, so that there are four rounds
    tasks = [task_in(write_task(tmp_path / kind, kind)) for kind in ("sts", "clustering")]
    plan = plan_of(pico_folder("llama"), "mean,last,bidirectional-mean,bidirectional/plain/last", tasks)
    advice = recommend(plan, ResultStore(tmp_path / "store"))
    assert advice.label in plan.designs and advice.tokens < advice.grid_tokens
    assert len(advice.rounds) == 4
    spent = sum(cost.tokens for cost in ResultStore(tmp_path / "store").costs)
    assert spent == advice.tokens, "texts of a round are not computed again in the next one"
    again = recommend(plan, ResultStore(tmp_path / "store"))
    assert again == advice
    assert sum(cost.tokens for cost in ResultStore(tmp_path / "store").costs) == spent
    assert not (tmp_path / "store" / ".unmask-vectors").exists()


def test_what_cannot_be_raced_is_refused(pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    tasks = [task_in(write_task(tmp_path / "sts", "sts"))]
    with pytest.raises(UnmaskError, match="local folders"):
        recommend(plan_of(tmp_path, "mean,last", [MtebTask("STSBenchmark", "sts", "r")]), ResultStore(tmp_path / "a"))  # type: ignore[list-item]
    with pytest.raises(UnmaskError, match="two or more"):
        recommend(plan_of(tmp_path, "mean", tasks), ResultStore(tmp_path / "b"))
