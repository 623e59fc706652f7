"""That a task is too easy is said once, after enough steps in a row, with what to change."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.messages import heard
from tests.training.running import recipe, run
from unmask.training.progress import EASY, STEPS, EaseWatch
from unmask.training.stages import STAGES


def told(
    losses: Sequence[float], every: int = 1, start: int = 0, advice: str | None = "Do this.", first: bool = True
) -> list[str]:
    """What a watch says of losses that are logged once in so many steps."""
    watch, state = EaseWatch(advice), SimpleNamespace(global_step=start, is_world_process_zero=first)
    with heard() as messages:
        watch.on_train_begin(None, state, None)
        for loss in losses:
            state.global_step += every
            watch.on_log(None, state, None, logs={"loss": loss, "learning_rate": 1e-3})
            watch.on_log(None, state, None, logs={"eval_score": 0.5})
        watch.on_log(None, state, None, logs={"train_runtime": 3.0})
    return messages


LOW, HIGH = EASY / 2, EASY * 2


def test_it_is_said_once_with_what_to_change() -> None:
    [message] = told([HIGH] * 5 + [LOW] * 100)
    assert message == (
        f"step {5 + STEPS}: the loss has been below 0.02 for 20 steps. The task has become too easy, and the model learns little more "
        "from it. Do this."
    )


@pytest.mark.parametrize("losses", [[LOW] * (STEPS - 1), ([LOW] * (STEPS - 1) + [HIGH]) * 5, [EASY] * 100, [HIGH] * 100])
def test_fewer_steps_in_a_row_are_not_enough(losses: list[float]) -> None:
    assert told(losses) == []


@pytest.mark.parametrize("every", [1, 5, 8])
def test_steps_count_and_not_lines_of_the_log(every: int) -> None:
    enough = -(-STEPS // every)
    assert told([LOW] * (enough - 1), every) == []
    assert len(told([LOW] * enough, every)) == 1


def test_a_run_that_goes_on_counts_from_where_it_starts() -> None:
    assert told([LOW] * (STEPS - 1), start=500) == []
    [message] = told([LOW] * STEPS, start=500)
    assert message.startswith(f"step {500 + STEPS}: ")


def test_a_stage_without_advice_and_other_processes_say_nothing() -> None:
    assert told([LOW] * 100, advice=None) == [] and told([LOW] * 100, first=False) == []


@pytest.mark.parametrize("stage", ["simcse", "contrastive"])
def test_a_run_says_it(stage: str, model: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = STAGES[stage].prepare

    def easier(*arguments: Any) -> Any:
        ready = made(*arguments)
        inner = ready.objective
        object.__setattr__(ready, "objective", lambda *batch: inner(*batch) * 1e-3)
        return ready

    monkeypatch.setattr(STAGES[stage], "prepare", easier)
    with heard() as messages:
        run(recipe(model, stage, **{stage: {"steps": STEPS + 3, "save_every": 100}}), tmp_path / "run")
    [message] = [message for message in messages if "too easy" in message]
    assert f"step {STEPS}: " in message and f"{stage}.similar = 8" in message
