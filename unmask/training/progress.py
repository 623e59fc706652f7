"""Callbacks that report the progress of a stage, and that its task has become too easy."""

from __future__ import annotations

import time
from typing import Any, Final

from transformers import TrainerCallback

from unmask.io.terminal import draws_bars, empty_bar, is_line_due, say

_LINES = 12  # at least, of a stage, where no bar can be drawn


class LiveProgress(TrainerCallback):  # type: ignore[misc]
    """Draws a bar on a terminal; elsewhere logs at least a dozen lines a stage."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._said = ""
        self._begun = self._first = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock, and a bar on a terminal."""
        self._begun, self._first = time.monotonic(), state.global_step
        if not state.is_world_process_zero or not draws_bars():
            return
        self._bar = empty_bar()
        self._bar.start()
        self._task = self._bar.add_task("training", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Say loss and learning rate, or scores."""
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if "loss" in logs:
            self._said = f"loss {float(logs['loss']):.3f}  lr {float(logs['learning_rate']):.1e}"
        scores = "  ".join(f"{name[5:]} {100 * value:.1f}" for name, value in logs.items() if name.startswith("eval_"))
        if self._bar is not None:
            self._bar.update(self._task, description=self._said)
            if scores:
                self._bar.console.print(f"  step {state.global_step}: {scores}")
        elif scores or self._is_line_due(state):
            say(f"step {state.global_step}/{state.max_steps}  {scores or self._said}{self._left(state)}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the bar away."""
        self.close()

    def close(self) -> None:
        """Take the bar away, if there is one: it hides the cursor, and draws until it is stopped."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _is_line_due(self, state: Any) -> bool:
        seldom = state.global_step % max(1, state.max_steps // _LINES) == 0 or state.global_step == 1
        return seldom or is_line_due(time.monotonic() - self._begun)

    def _left(self, state: Any) -> str:
        steps = state.global_step - self._first
        seconds = (time.monotonic() - self._begun) / max(1, steps) * (state.max_steps - state.global_step)
        return f"  {seconds / 60:.1f} min left" if steps > 1 and seconds else ""


EASY: Final = 0.02
"""A loss below this: the positive is chosen with a probability of 0.98 and more."""

STEPS: Final = 20
"""Steps in a row with such a loss before a message."""


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
