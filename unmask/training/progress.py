"""The progress of a stage, on a terminal and in a log."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback

from unmask.io.terminal import draws_bars, empty_bar, is_line_due, say

_LINES = 12  # at least, of a stage, where no bar can be drawn


class LiveProgress(TrainerCallback):  # type: ignore[misc]
    """Draws a bar on a terminal; elsewhere logs at least a dozen lines a stage."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._line = ""
        self._started_at, self._first_step = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock, and a bar on a terminal."""
        self._started_at, self._first_step = time.monotonic(), state.global_step
        if state.is_world_process_zero and draws_bars():
            self._bar = empty_bar()
            self._bar.start()
            self._task = self._bar.add_task("training", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Advance the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Show loss and learning rate, or scores."""
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if "loss" in logs:
            self._line = f"loss {float(logs['loss']):.3f}  lr {float(logs['learning_rate']):.1e}"
        scores = "  ".join(f"{name[5:]} {100 * value:.1f}" for name, value in logs.items() if name.startswith("eval_"))
        step, seconds = state.global_step, time.monotonic() - self._started_at
        if self._bar is not None:
            self._bar.update(self._task, description=self._line)
            if scores:
                self._bar.console.print(f"  step {step}: {scores}")
        elif scores or step == 1 or step % max(1, state.max_steps // _LINES) == 0 or is_line_due(seconds):
            steps_done = step - self._first_step
            time_left = f"  {seconds / steps_done * (state.max_steps - step) / 60:.1f} min left" if steps_done > 1 else ""
            say(f"step {step}/{state.max_steps}  {scores or self._line}{time_left}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove the bar."""
        self.close()

    def close(self) -> None:
        """Remove the bar, if there is one: it hides the cursor, and draws until it is stopped."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
