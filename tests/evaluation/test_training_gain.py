"""Training gain: the trained embedder next to its base and the reference, with the test of compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.messages import heard
from tests.tiny import write_task
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.evaluation import reference_models, training_gain
from unmask.evaluation import scoring as comparing
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, ResultStore
from unmask.evaluation.scoring import ScoringPlan, score_designs
from unmask.evaluation.training_gain import BLANK, GainTest, TrainingGain
from unmask.evaluation.verdict import comparisons
from unmask.models.loading import Source
from unmask.starter import reference_texts
from unmask.statistics.paired import wilcoxon
from unmask.tasks.find import find_task
from unmask.tasks.task import Task

KINDS = ["sts", "clustering", "retrieval"]

DESIGN = Design.parse("mean")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    folder = tmp_path_factory.mktemp("tasks")
    return [find_task(str(write_task(folder / kind, kind))) for kind in KINDS]


@pytest.fixture
def base(pico_folder: Callable[[str], Path]) -> Source:
    return Source(str(pico_folder("llama")), dtype="float32", device="cpu")


@pytest.fixture
def trained(pico_folder: Callable[[str], Path], tmp_path: Path) -> Source:
    """Another model, saved as an embedder: what stands for a trained one."""
    Embedder.from_pretrained(pico_folder("qwen3"), design=DESIGN, device="cpu").save_pretrained(tmp_path / "trained")
    return Source(str(tmp_path / "trained"), device="cpu")


@pytest.fixture(autouse=True)
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reference row, unless a test puts one back."""
    monkeypatch.setattr(training_gain, "REFERENCE", "./no-such-encoder")


def gain_of(trained: Source, base: Source, tasks: list[Task], folder: Path, max_length: int = 64) -> TrainingGain:
    return training_gain.training_gain(trained, DESIGN, base, tasks, max_length, folder)


def test_the_scores_and_the_test_are_those_of_compare(trained: Source, base: Source, tasks: list[Task], tmp_path: Path) -> None:
    gain = gain_of(trained, base, tasks, tmp_path / "gain")
    store = ResultStore(tmp_path / "compared")
    designs = {"trained": (trained, DESIGN), "subject-mean-z": (base, Design.parse("subject-mean-z"))}
    results = [
        result
        for label, (source, design) in designs.items()
        for result in score_designs(ScoringPlan(source, {label: design}, tasks, 64, reference_texts()), store)
    ]
    expected = {label: {r.task: r.main_score for r in results if r.label == label} for label in designs}
    assert gain.scores == expected and list(gain.scores) == ["trained", "subject-mean-z"]
    assert gain.kinds == dict(zip(KINDS, KINDS, strict=True)) and gain.untrained == "subject-mean-z"
    [test] = comparisons(results, store)
    assert gain.test is not None
    assert (gain.test.difference, gain.test.p, gain.test.interval) == (
        test.outcome.difference,
        test.outcome.p_holm,
        test.outcome.interval,
    )
    assert gain.test.is_significant == (test.winner is not None) and gain.test.test == test.outcome.test
    differences = [expected["trained"][kind] - expected["subject-mean-z"][kind] for kind in KINDS]
    assert gain.test.difference == pytest.approx(np.mean(differences), abs=1e-4)  # main scores are rounded by mteb
    assert TrainingGain.model_validate_json(gain.model_dump_json()) == gain


def test_nothing_is_scored_twice_and_the_base_counts_for_every_run(
    trained: Source, base: Source, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = comparing.load_checked

    def counted(plan: ScoringPlan) -> Any:
        loaded.append(plan.source.model)
        return load(plan)

    monkeypatch.setattr(comparing, "load_checked", counted)
    first = gain_of(trained, base, tasks, tmp_path / "gain")
    assert loaded == [trained.model, base.model]
    assert gain_of(trained, base, tasks, tmp_path / "gain") == first
    assert loaded == [trained.model, base.model]
    Embedder.from_pretrained(base.model, design=DESIGN, device="cpu").save_pretrained(tmp_path / "second")
    gain_of(Source(str(tmp_path / "second"), device="cpu"), base, tasks, tmp_path / "gain")
    assert loaded[2:] == [str(tmp_path / "second")]


def test_a_base_that_cannot_serve_a_design_is_read_by_the_next(
    trained: Source, base: Source, tasks: list[Task], tmp_path: Path
) -> None:
    with heard() as messages:
        gain = gain_of(trained, base, tasks, tmp_path / "gain", max_length=12)  # no room for the prompt of PromptEOL
    assert gain.untrained == "causal/plain/mean/zscore" and list(gain.scores) == ["trained", gain.untrained]
    assert "the untrained `causal/plain/mean/zscore` of its base" in gain.sentence
    assert any("cannot be read as subject-mean-z: " in message for message in messages)


def failing(monkeypatch: pytest.MonkeyPatch, failed: str, on: set[str]) -> None:
    """A design runs out of memory on some tasks."""
    attempt = comparing.PlannedResults.attempt

    def tried(self: Any, label: str, task: Task, work: Any) -> None:
        if label == failed and task.name in on:
            self.give_up([label], task, RuntimeError("out of memory"))
        else:
            attempt(self, label, task, work)

    monkeypatch.setattr(comparing.PlannedResults, "attempt", tried)


@pytest.mark.sample(1)
@pytest.mark.parametrize("failed", ["trained", "subject-mean-z"])
def test_a_task_that_failed_is_left_out_with_its_reason_and_tried_again(
    failed: str, trained: Source, base: Source, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        failing(broken, failed, {"sts"})
        gain = gain_of(trained, base, tasks, tmp_path / "gain")
    assert gain.left_out == {"sts": f"not scored for {failed}, RuntimeError: out of memory"} and not gain.complete
    assert (
        list(gain.kinds) == ["clustering", "retrieval"] == list(gain.scores["trained"]) == list(gain.scores["subject-mean-z"])
    )
    assert gain.untrained == "subject-mean-z" and gain.sentence.startswith("Over 2 tasks of 2 kinds ")
    said = f"The test leaves out sts: not scored for {failed}, RuntimeError: out of memory."
    assert gain.notes == [said, "The same command tries again what failed."]
    assert gain_of(trained, base, tasks, tmp_path / "gain") == gain_of(trained, base, tasks, tmp_path / "whole")


def test_what_the_reference_fails_on_is_blank_and_changes_no_test(
    trained: Source, base: Source, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gain_of(trained, base, tasks, tmp_path / "gain")
    reference = str(tmp_path / "reference")
    Embedder.from_pretrained(base.model, design="last", device="cpu").save_pretrained(reference)
    monkeypatch.setattr(training_gain, "REFERENCE", reference)
    score = reference_models._score

    def fail_on_sts(model: Any, conditions: Any, task: Task) -> Any:
        if task.name == "sts":
            raise RuntimeError("out of memory")
        return score(model, conditions, task)

    with monkeypatch.context() as broken:
        broken.setattr(reference_models, "_score", fail_on_sts)
        gain = gain_of(trained, base, tasks, tmp_path / "gain")
    assert (gain.test, gain.left_out, gain.kinds, gain.table[:3]) == (whole.test, {}, whole.kinds, whole.table)
    assert gain.blank == {"sts": f"not scored for {reference}, RuntimeError: out of memory"} and not gain.complete
    assert [index for index, cell in enumerate(gain.table[3][1:]) if cell == BLANK] == [0, 3]
    again = gain_of(trained, base, tasks, tmp_path / "gain")
    assert again.complete and not again.blank and not again.notes and BLANK not in again.table[3]
    assert SENTENCE_TRANSFORMERS in {result.design for result in ResultStore(tmp_path / "gain").results}


@pytest.mark.parametrize(
    ("difference", "is_significant", "verdict"),
    [(0.05, True, "better than"), (-0.05, True, "worse than"), (0.05, False, "not significantly different from")],
)
def test_the_sentence_follows_from_the_test(difference: float, is_significant: bool, verdict: str) -> None:
    test = wilcoxon(np.linspace(0.1, 0.9, 6) + difference, np.linspace(0.1, 0.9, 6))
    record = GainTest.of(test).model_copy(update={"is_significant": is_significant})
    scores = {"trained": {"a": 0.2, "b": 0.4, "c": 0.9}, "subject-mean-z": {"a": 0.2, "b": 0.3, "c": 0.1}}
    kinds = {"a": "sts", "b": "sts", "c": "retrieval"}
    gain = TrainingGain(kinds=kinds, untrained="subject-mean-z", scores=scores, test=record, left_out={})
    start = f"Over 3 tasks of 2 kinds this model is {verdict} the untrained `subject-mean-z` of its base ("
    assert gain.sentence.startswith(f"{start}difference {100 * difference:.1f}, 95 % interval [")
    assert gain.sentence.endswith("p = 0.031; Wilcoxon signed-rank (two-sided, exact), 6 tasks).")
