"""Word-level tasks: how their results are shown.

A score on words depends on attention and layer alone, so designs that share both share the score. A design that a word-level task cannot
score has no such result, and nothing is wrong with it. Hence these results stand apart from those on texts: a mean over both would say
nothing, and a task that some designs cannot have would be left out for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from unmask.designs.design import Design
from unmask.evaluation.results import Result
from unmask.tasks.kinds import is_of_words


def split_word_level(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Results on texts, and results on words with one row for all designs that share attention and layer.

    A row on words is named after these two, such as `causal@12`: the name replaces design and label, so that rows on words are ranked
    and tested among themselves as designs are.
    """
    texts = [result for result in results if not is_of_words(result.kind)]
    words: dict[tuple[str, str, str], Result] = {}
    for result in results:
        if is_of_words(result.kind):
            name = attention_and_layer(result)
            words.setdefault((result.model, name, result.task), result.model_copy(update={"design": name, "label": name}))
    return texts, list(words.values())


def attention_and_layer(result: Result) -> str:
    """What a score on words depends on, such as `causal@12`."""
    return f"{Design.parse(result.conditions.design).attention}@{result.provenance['probe']['layer']}"


def labels_by_layer(results: Sequence[Result]) -> dict[str, list[str]]:
    """The labels of the designs that share attention and layer, by the name of these two."""
    labels: dict[str, dict[str, None]] = {}
    for result in results:
        if is_of_words(result.kind):
            labels.setdefault(attention_and_layer(result), {})[result.label] = None
    return {name: list(shared) for name, shared in labels.items()}
