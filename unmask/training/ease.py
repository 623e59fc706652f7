"""Ease: says when the task of a stage has become too easy to teach the model anything."""

from __future__ import annotations

from typing import Any, Final

from transformers import TrainerCallback

from unmask.io.terminal import say

EASY: Final = 0.02
"""A loss below this: the positive is chosen with a probability of 0.98 and more."""

STEPS: Final = 20
"""Steps in a row that have to be so easy before it is said."""


class EaseWatch(TrainerCallback):  # type: ignore[misc]
    """Says once that the loss has been below `EASY` for `STEPS` steps.

    advice: sentences that say what to change; None: it is never said.
    """

    def __init__(self, advice: str | None) -> None:
        self.advice = advice
        self._last: int | None = None  # step of the last loss; a loss is the mean over the steps since the one before
        self._easy, self._said = 0, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count from the step that training starts at."""
        self._last = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Count the steps that were easy."""
        if not state.is_world_process_zero or "loss" not in (logs or {}):
            return
        assert logs is not None and self._last is not None
        self._easy = self._easy + state.global_step - self._last if float(logs["loss"]) < EASY else 0
        self._last = state.global_step
        if self._easy >= STEPS and not self._said and self.advice is not None:
            self._said = True
            say(
                f"step {state.global_step}: the loss has been below {EASY} for {self._easy} steps. The task has become too easy, "
                f"and the model learns little more from it. {self.advice}"
            )
