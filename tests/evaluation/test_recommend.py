"""A race: the best design wins, a design is dropped only by a test, and the score of the winner is not too high."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.made_results import add, grid
from tests.evaluation.test_compare import plan_of, task_in
from tests.messages import heard
from tests.tiny import labelled, pairs, tagged, write_rows, write_task
from unmask.designs.design import parse_designs
from unmask.errors import UnmaskError
from unmask.evaluation import recommend as module
from unmask.evaluation.recommend import FIRST, Recommendation, recommend
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.evaluation.scoring import ScoringPlan, score_designs
from unmask.models.loading import Source
from unmask.statistics.bootstrap import Items
from unmask.tasks.mteb import evaluator
from unmask.tasks.task import LocalTask

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


Luck = Callable[[str, str], int]
"""The seed of a design's items on a task."""


def scripted(quality: dict[str, float], seed_of: Luck, rounds: list[list[str]]) -> Callable[..., list[Result]]:
    """A comparison whose items are right as often as a design's quality says, the first ones of a task as in its subsets."""

    def scripted_compare(plan: ScoringPlan, store: ResultStore, **_: Any) -> list[Result]:
        rounds.append(list(plan.designs))
        results = []
        for label, design in plan.designs.items():
            for task in plan.tasks:
                assert isinstance(task, LocalTask)
                chance = np.random.default_rng(seed_of(label, re.sub(r"@\d+$", "", task.name)))
                value = (chance.random(400)[: task.size] < quality[label]).astype(float)
                settings = {"model_revision": "r", "task_revision": "t", "max_length": 8, "dtype": "f"}
                conditions = Conditions(model="m", design=design.name, task=task.name, **settings)  # type: ignore[arg-type]
                result = add(store, design.name, "t0").model_copy(
                    update={
                        "label": label,
                        "task": task.name,
                        "main_score": float(value.mean()),
                        "n": task.size,
                        "texts": task.size,
                        "tokens": task.size * sum(COST[prompt] for prompt in design.prompts),
                        "conditions": conditions,
                    }
                )
                store.add(result, Items("mean", {"value": value}))
                results.append(result)
        return results

    return scripted_compare


def race(
    quality: Sequence[float], tasks: list[LocalTask], folder: Path, monkeypatch: pytest.MonkeyPatch, seed_of: Luck | None = None
) -> tuple[Recommendation, list[list[str]]]:
    rounds: list[list[str]] = []
    qualities = dict(zip(LANES.split(","), quality, strict=True))
    same_luck = lambda label, task: int(1000 * qualities[label]) + len(task)  # noqa: E731 (of equal quality, equal items)
    monkeypatch.setattr(module, "score_designs", scripted(qualities, seed_of or same_luck, rounds))
    return recommend(plan_of(folder / "model", LANES, tasks), ResultStore(folder / "store"), layers=False), rounds


def test_the_best_design_wins_and_what_is_far_worse_leaves_at_once(
    tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommendation, rounds = race([0.2, 0.25, 0.9, 0.9, 0.3, 0.1], tasks, tmp_path, monkeypatch)
    assert {recommendation.label, *recommendation.ties} == {"prompteol", "causal/eol/last@2"} == set(rounds[1])
    assert rounds[2:] == [[recommendation.label]], "the winner alone, on held-out items"
    assert recommendation.design == parse_designs(LANES)[recommendation.label]
    assert recommendation.interval and recommendation.interval[0] < recommendation.score < recommendation.interval[1]
    assert [one_round.items for one_round in recommendation.rounds] == [80, 400], "to the end, since two are left"
    assert recommendation.held_out and recommendation.items == recommendation.chosen_on == 400
    # all four passes on the first items, then one of them on all
    assert recommendation.rounds[0].tokens == 80 * (10 + 15 + 20 + 10)
    assert recommendation.tokens == 80 * (10 + 20 + 10) + 400 * 15 + 400 * 15


@pytest.mark.parametrize("seed", range(3))
def test_only_a_lost_test_drops_a_design_and_only_a_decision_ends_a_race(
    seed: int, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommendation, _ = race(list(np.random.default_rng(seed).uniform(0.4, 0.8, 6)), tasks, tmp_path, monkeypatch)
    for one_round in recommendation.rounds:
        for design in one_round.ranking[1:]:
            low, high = design.interval or (0, 0)
            assert low < high and design.worse == (low > 0)
            assert design.label in one_round.survivors or design.worse
    assert recommendation.all_items or not recommendation.ties


def test_of_equal_designs_few_are_dropped_and_the_score_of_the_luckiest_is_not_too_high(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[LocalTask]
) -> None:
    """Six designs of one quality, each with its own luck on each half: in at most one of twenty races the test should drop any."""
    small, dropped, chosen_on, held_out = [task.subset(80) for task in tasks], 0, [], []
    for seed in range(20):
        luck = partial(lambda seed, label, task: zlib.crc32(f"{seed} {label} {task}".encode()), seed)
        recommendation, _ = race([0.6] * 6, small, tmp_path / str(seed), monkeypatch, luck)
        dropped += any(len(one_round.survivors) < len(one_round.ranking) for one_round in recommendation.rounds)
        chosen_on.append(recommendation.rounds[-1].ranking[0].score)
        held_out.append(recommendation.score)
    assert dropped <= 3
    assert np.mean(chosen_on) > 0.63
    assert np.mean(held_out) == pytest.approx(0.6, abs=0.03)


def test_few_texts_and_a_rare_class_end_with_the_scores_of_a_comparison(
    pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """One class has one text. Layers of the leading designs join the race."""
    (tmp_path / "task").mkdir()
    rows = [*labelled(0, 90), *({"text": f"street house n{number}", "label": "town"} for number in range(11))]
    write_rows(tmp_path / "task" / "train.jsonl", [*rows[:20], *rows[-10:]])
    write_rows(tmp_path / "task" / "test.jsonl", rows[20:91])
    plan = plan_of(pico_folder("llama"), "mean,last,max", [task_in(tmp_path / "task")])
    store = ResultStore(tmp_path / "race")
    recommendation = recommend(plan, store)
    assert not store.failures and not recommendation.failed and not recommendation.held_out
    assert recommendation.candidates > 3 and recommendation.rounds[0].items >= FIRST
    designs = {design.label: design.score for design in recommendation.rounds[-1].ranking}
    compared = {result.label: result.main_score for result in score_designs(plan, ResultStore(tmp_path / "compared"))}
    assert {label: designs[label] for label in compared if label in designs} == {
        label: value for label, value in compared.items() if label in designs
    }
    assert recommendation.score == max(designs.values())


def test_a_round_that_says_nothing_is_skipped(pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Gold scores that are all alike but for two: the first round holds none of these, and decides nothing."""
    rows = pairs("score", lambda n: (n % 5, 1), 250)
    first = {row["sentence1"] for row in LocalTask("sts", "sts", {"test": rows}).subset(FIRST).data["test"]}
    late = [row for row in rows if row["sentence1"] not in first][:2]
    (tmp_path / "sts").mkdir()
    write_rows(tmp_path / "sts" / "test.jsonl", [{**row, "score": 3} if row in late else row for row in rows])
    plan = plan_of(pico_folder("llama"), "mean,last", [task_in(tmp_path / "sts")])
    with heard() as messages:
        recommendation = recommend(plan, ResultStore(tmp_path / "race"))
    assert any("this round decides nothing" in message for message in messages)
    assert recommendation.rounds[0].items > FIRST and recommendation.all_items


def test_no_design_is_dropped_before_every_task_had_a_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an early round a task may have no score for any design. Then the others do not decide alone, and the race goes on."""
    monkeypatch.setattr(module, "_tokens_by_pass", lambda _: {})
    tasks = [LocalTask(name, "sts", {"test": [{}] * 200}) for name in ("t0", "t1")]
    designs = {f"{name}-label": design for name, design in parse_designs("echo,last").items()}
    for scored, is_over in ((["t0"], False), (["t0", "t1"], True)):
        results, store = grid(tmp_path / "-".join(scored), ["echo", "last"], scored)
        race = module.Race(ScoringPlan(Source("m"), designs, tasks, 128, []), store, layers=False)
        assert race._close_round(len(tasks), results) is is_over
        assert (len(race.rounds[0].survivors) == 1) is is_over


def test_a_design_without_a_score_leaves_and_the_others_go_on(
    pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluator.evaluate

    def failing(task: Any, name: str, *more: Any) -> Any:
        if "/max" in name:
            raise UnmaskError("no score for it")
        return whole(task, name, *more)

    monkeypatch.setattr(evaluator, "evaluate", failing)
    plan = plan_of(pico_folder("llama"), "max,mean,last", [task_in(write_task(tmp_path / "sts", "sts"))])
    recommendation = recommend(plan, ResultStore(tmp_path / "race"))
    assert recommendation.label != "max" and list(recommendation.failed) == ["max"]
    assert "no score for it" in recommendation.failed["max"]
    monkeypatch.setattr(evaluator, "evaluate", lambda *_: failing(None, "/max", None))
    with pytest.raises(UnmaskError, match="has no score on sts: no score for it"):
        recommend(plan, ResultStore(tmp_path / "none"))


def test_what_cannot_be_raced_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    write_rows(tmp_path / "words" / "train.jsonl", tagged(0, 24))
    write_rows(tmp_path / "words" / "test.jsonl", tagged(24, 10))
    words = task_in(tmp_path / "words")
    with pytest.raises(UnmaskError, match=r"'words' is a word-level task: .* `unmask probe words`"):
        recommend(plan_of(tmp_path / "no model", "mean,last", [words]), ResultStore(tmp_path / "a"))
    with pytest.raises(UnmaskError, match="two or more"):
        recommend(
            plan_of(tmp_path / "no model", "mean", [task_in(write_task(tmp_path / "sts", "sts"))]), ResultStore(tmp_path / "b")
        )
