"""Readings: attention and layer, which are all of a design that a word-level score depends on.

Designs that differ in pooling or standardisation alone share such a score; one that reads no single hidden layer of the plain text has
none, and nothing is wrong with it. So word-level tasks stand apart from those on texts: a mean over both would say nothing, and a task
that some designs cannot have would be dropped for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from unmask.designs.design import Design
from unmask.evaluation.results import Result
from unmask.tasks.task import Task

WORD_LEVEL = "word-level"


def why_not(design: Design, task: Task) -> str | None:
    """Why a task asks nothing of a design, or None if it does."""
    if task.kind != WORD_LEVEL:
        return None
    if design.prompt != "plain":
        return "words are read in the plain text, without a prompt"
    if design.uses_routing:
        return "words are read from hidden states, not from routing weights"
    if design.layer == "all":
        return "words are read at one layer"
    if design.needs_head:
        return "words are read without a trained pooling"
    return None


def apart(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Results on texts, and those on words with one row for all designs that share attention and layer.

    A row on words is called by what it depends on, `causal@12`: design and label are replaced by that, so that readings are ranked
    and tested among themselves as designs are.
    """
    texts = [result for result in results if result.kind != WORD_LEVEL]
    words: dict[tuple[str, str, str], Result] = {}
    for result in results:
        if result.kind == WORD_LEVEL:
            name = reading(result)
            words.setdefault((result.model, name, result.task), result.model_copy(update={"design": name, "label": name}))
    return texts, list(words.values())


def reading(result: Result) -> str:
    """What a score on words depends on: attention and layer."""
    return f"{Design.parse(result.conditions.design).attention}@{result.provenance['probe']['layer']}"


def sharing(results: Sequence[Result]) -> dict[str, list[str]]:
    """The labels of the designs that share each reading, by its name."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        if result.kind == WORD_LEVEL:
            found.setdefault(reading(result), {})[result.label] = None
    return {name: list(labels) for name, labels in found.items()}
