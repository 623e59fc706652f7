"""A race: the best design wins, a design is dropped only by a test, and the score of the winner is not too high."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.made_results import grid
from tests.evaluation.test_compare import plan_of, task_in
from tests.messages import heard
from tests.proofs import ALL
from tests.tasks.test_mteb_tasks import no_data_of_before, offline  # noqa: F401
from tests.tiny import labelled, pairs, tagged, write_rows, write_task
from unmask.designs.design import parse_designs
from unmask.errors import UnmaskError
from unmask.evaluation import recommend as module
from unmask.evaluation.compare import ComparisonPlan, compare
from unmask.evaluation.recommend import FIRST, Recommendation, recommend
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.models.loading import Source
from unmask.statistics.bootstrap import Items
from unmask.tasks.mteb import evaluator
from unmask.tasks.subsets import subset
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


def scripted(quality: dict[str, float], rounds: list[list[str]]) -> Callable[..., list[Result]]:
    """A comparison whose items are right as often as a design's quality says, the first ones of a task as in its subsets."""

    def scripted_compare(plan: ComparisonPlan, store: ResultStore, *_: Any, **__: Any) -> list[Result]:
        rounds.append(list(plan.designs))
        results = []
        for label, design in plan.designs.items():
            for number, task in enumerate(plan.tasks):
                assert isinstance(task, LocalTask)
                chance = np.random.default_rng([number, int(100 * quality[label])])  # of equal quality, equal items
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
                    tokens=task.size * sum(COST[prompt] for prompt in design.prompts),
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
    for one in (module, module):
        monkeypatch.setattr(one, "compare", scripted(dict(zip(labels, quality, strict=True)), rounds))
    plan = plan_of(folder / "model", LANES, tasks)
    return recommend(plan, ResultStore(folder / "store"), layers=False), rounds


def test_the_best_design_wins_and_what_is_far_worse_leaves_at_once(
    tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommendation, rounds = race([0.2, 0.25, 0.9, 0.9, 0.3, 0.1], tasks, tmp_path, monkeypatch)
    assert {recommendation.label, *recommendation.ties} == {"prompteol", "causal/eol/last@2"} == set(rounds[1])
    assert rounds[2:] == [[recommendation.label]], "the winner alone, on held-out items"
    assert recommendation.design == parse_designs(LANES)[recommendation.label]
    assert recommendation.interval[0] < recommendation.score < recommendation.interval[1]
    assert [one.items for one in recommendation.rounds] == [80, 400] and recommendation.all_items, (
        "to the end, since two are left"
    )
    assert recommendation.held_out and recommendation.items == recommendation.chosen_on == 400
    # all four lanes on the first items, then one of them on all
    assert recommendation.rounds[0].tokens == 80 * (10 + 15 + 20 + 10)
    assert recommendation.tokens == 80 * (10 + 20 + 10) + 400 * 15 + 400 * 15
    assert recommendation.tokens == sum(one.tokens for one in recommendation.rounds) + 400 * 15
    assert recommendation.grid_tokens == 800 * (10 + 15 + 20 + 10)


@pytest.mark.parametrize("seed", range(8))
def test_only_a_lost_test_drops_a_design_and_only_a_decision_ends_a_race(
    seed: int, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommendation, _ = race(list(np.random.default_rng(seed).uniform(0.4, 0.8, 6)), tasks, tmp_path, monkeypatch)
    for one in recommendation.rounds:
        for standing in one.standings[1:]:
            assert standing.interval is not None
            low, high = standing.interval
            assert low < high and standing.worse == (low > 0)
            assert (standing.label in one.kept) or standing.worse
    assert recommendation.all_items or not recommendation.ties
    assert min(one.items for one in recommendation.rounds) >= 2 * 30


@pytest.mark.sample(0)
def test_of_equal_designs_hardly_ever_one_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[LocalTask]
) -> None:
    """Six designs of one quality, each with its own luck: in at most one of twenty races the corrected test drops any."""
    dropped = 0
    for seed in range(30):
        rounds: list[list[str]] = []
        labels = LANES.split(",")
        made = scripted(dict.fromkeys(labels, 0.6), rounds)

        def lucky(
            plan: ComparisonPlan, store: ResultStore, *given: Any, made: Any = made, seed: int = seed, **named: Any
        ) -> list[Result]:
            results: list[Result] = made(plan, store, *given, **named)
            found = []
            for place, result in enumerate(results):
                value = (np.random.default_rng([seed, place]).random(result.n) < 0.6).astype(float)
                found.append(result.model_copy(update={"main_score": float(value.mean())}))
                store.add(found[-1], Items("mean", {"value": value}))
            return found

        monkeypatch.setattr(module, "compare", lucky)
        monkeypatch.setattr(module, "compare", lucky)
        small = [subset(task, 200) for task in tasks]
        recommendation = recommend(plan_of(tmp_path / "m", LANES, small), ResultStore(tmp_path / f"s{seed}"), layers=False)
        dropped += any(set(one.kept) != {standing.label for standing in one.standings} for one in recommendation.rounds)
    assert dropped <= 4


def test_the_score_of_the_winner_is_not_too_high(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[LocalTask]
) -> None:
    """Six equal designs with luck of their own: the luckiest wins, and held-out items do not share its luck."""
    chosen_on, held_out = [], []
    for seed in range(20):

        def lucky(plan: ComparisonPlan, store: ResultStore, *_: Any, seed: int = seed, **__: Any) -> list[Result]:
            found = []
            for place, result in enumerate(scripted(dict.fromkeys(LANES.split(","), 0.6), [])(plan, store)):
                half = "held-out" in result.task
                value = (np.random.default_rng([seed, place, half]).random(result.n) < 0.6).astype(float)
                found.append(result.model_copy(update={"main_score": float(value.mean())}))
                store.add(found[-1], Items("mean", {"value": value}))
            return found

        for one in (module, module):
            monkeypatch.setattr(one, "compare", lucky)
        small = [subset(task, 80) for task in tasks]
        found = recommend(plan_of(tmp_path / "m", LANES, small), ResultStore(tmp_path / f"luck{seed}"), layers=False)
        chosen_on.append(found.rounds[-1].standings[0].score)
        held_out.append(found.score)
    assert np.mean(chosen_on) > 0.63
    assert np.mean(held_out) == pytest.approx(0.6, abs=0.03)


def as_compared(recommendation: Recommendation, plan: ComparisonPlan, folder: Path) -> None:
    """The winner has the best of the scores that a comparison of the same designs gives, if all items were used."""
    designs = {standing.label: standing for standing in recommendation.rounds[-1].standings}
    assert recommendation.all_items
    results = compare(plan, ResultStore(folder))
    means = {label: np.mean([one.main_score for one in results if one.label == label]) for label in plan.designs}
    for label, mean in means.items():
        assert designs[label].score == pytest.approx(mean)
    assert recommendation.score >= max(means.values()) - 1e-12


KINDS = ["sts", "classification", "retrieval"]

"""The three shapes of tasks: pairs, labels, and queries over documents. The other kinds are of these shapes."""

if ALL:
    KINDS += ["pair-classification", "clustering", "reranking", "summarization"]


def three_classes(folder: Path, test: Sequence[int]) -> LocalTask:
    """Texts of three classes, so many of each in the test part."""
    town = [{"text": f"street house n{number}", "label": "town"} for number in range(400)]
    rows = labelled(0, 800)
    of = {
        "music": [row for row in rows if row["label"] == "music"],
        "sport": [row for row in rows if row["label"] == "sport"],
        "town": town,
    }
    folder.mkdir()
    write_rows(folder / "train.jsonl", [row for found in of.values() for row in found[:10]])
    write_rows(
        folder / "test.jsonl", [row for found, count in zip(of.values(), test, strict=True) for row in found[10 : 10 + count]]
    )
    return task_in(folder)


# the fewest texts, and a class of one text, which the first round lacks
@pytest.mark.parametrize("test", [(2, 1, 1), (95, 4, 1), *([(20, 20, 0), (0, 30, 12), (130, 3, 2)] if ALL else [])])
def test_few_texts_and_rare_classes_end_with_an_answer(
    test: tuple[int, ...], pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    task = three_classes(tmp_path / "task", test)
    plan = plan_of(pico_folder("llama"), "mean,last,max", [task])
    store = ResultStore(tmp_path / "race")
    recommendation = recommend(plan, store)
    assert not store.failures and not recommendation.failed
    assert recommendation.all_items or not recommendation.ties
    for result in store.results:
        assert result.n >= min(FIRST, task.size)


def test_a_round_that_says_nothing_is_skipped(pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Gold scores that are all alike but for a few: the first round holds none of these, and asks nothing."""
    (tmp_path / "sts").mkdir()
    rows = pairs("score", lambda n: (n % 5, 1), 250)
    write_rows(tmp_path / "sts" / "test.jsonl", rows)
    task = task_in(write_different(tmp_path / "sts", rows))
    plan = plan_of(pico_folder("llama"), "mean,last", [task])
    with heard() as said:
        recommendation = recommend(plan, ResultStore(tmp_path / "race"))
    assert any("this round decides nothing" in line for line in said)
    assert recommendation.rounds[0].items > FIRST and recommendation.all_items


def write_different(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """The same rows, with other gold for two that the first round leaves out."""
    task = task_in_raw(folder, rows)
    first = {row["sentence1"] for row in subset(task, FIRST).data["test"]}
    late = [row for row in rows if row["sentence1"] not in first][:2]
    write_rows(folder / "test.jsonl", [{**row, "score": 3} if row in late else row for row in rows])
    return folder


def task_in_raw(folder: Path, rows: list[dict[str, Any]]) -> LocalTask:
    return LocalTask(folder.name, "sts", {"test": rows})


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


def failing_on(monkeypatch: pytest.MonkeyPatch, lacking: set[tuple[str, str]]) -> None:
    """Let designs fail on kinds of tasks."""
    whole = evaluator.evaluate

    def evaluate(task: Any, name: str, *more: Any) -> Any:
        if (name, task.kind) in lacking:
            raise UnmaskError("no score for it")
        return whole(task, name, *more)

    monkeypatch.setattr(evaluator, "evaluate", evaluate)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["STSBenchmark", "Banking77Classification", "SciFact"])
def test_tasks_of_mteb_are_raced_too(
    name: str,
    offline: Any,  # noqa: F811
    pico_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST", 4)
    monkeypatch.setattr(module, "FACTOR", 8)
    task = offline(name)
    plan = plan_of(pico_folder("llama"), "mean,last,bidirectional-mean", [task])
    recommendation = recommend(plan, ResultStore(tmp_path / "race"))
    as_compared(recommendation, plan, tmp_path / "grid")
    assert len(recommendation.rounds) > 1
    items = [one.items for one in recommendation.rounds]
    assert items == sorted(items) and items[0] < items[-1]


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


def test_no_design_is_dropped_before_every_task_had_a_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an early round a task may have no score for anybody. Then the others do not decide alone, and the race goes on."""
    monkeypatch.setattr(module, "_tokens", lambda _: {})
    tasks = [LocalTask(name, "sts", {"test": [{}] * 200}) for name in ("t0", "t1")]
    designs = {f"{name}-label": design for name, design in parse_designs("echo,last").items()}
    for scored, dropped in ((["t0"], False), (["t0", "t1"], True)):
        results, store = grid(tmp_path / "-".join(scored), ["echo", "last"], scored)
        race = module.Race(ComparisonPlan(Source("m"), designs, tasks, 128, []), store, layers=False)
        race._close(list(tasks), results, last=False)
        assert (len(race.rounds[0].kept) == 1) is dropped and race.over is dropped
