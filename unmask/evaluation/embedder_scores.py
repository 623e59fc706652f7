"""The main score of one embedder on some tasks, without a results folder. Training watches it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from unmask.encoding.forward_pass import Vectors
from unmask.errors import UnmaskError
from unmask.tasks.kinds import is_of_words
from unmask.tasks.task import Task

if TYPE_CHECKING:
    from unmask.embedder import Embedder


def require_scorable(tasks: Sequence[Task]) -> None:
    """Raise UnmaskError for a word-level task, which `score` cannot score, before anything is trained."""
    for task in tasks:
        if is_of_words(task.kind):
            raise UnmaskError(f"'{task.name}' is a word-level task: vectors of texts have no score on it. Leave it out.")


def score(embedder: Embedder, tasks: Sequence[Task]) -> dict[str, float]:
    """Main score of each task by name (0 to 1), and their mean under "score"."""
    from unmask.tasks.mteb.evaluator import evaluate

    takes_instruction = embedder.prompts.takes_instruction

    def encode(texts: Sequence[str], instruction: str | None) -> Vectors:
        vectors = embedder.encode(texts, instruction=instruction if takes_instruction else None, show_progress=False)
        return np.asarray(vectors, np.float32)

    scores = {task.name: evaluate(task, embedder.design.name, encode).main_score for task in tasks}
    return {"score": float(np.mean(list(scores.values()))), **scores}
