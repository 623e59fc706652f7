"""Word-level tasks: a linear probe on the states of words, at the layers that the compared designs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.encoding.encoder import Encoder, Tally
from unmask.probing.word_probe import probe_words_at_layers, word_tokens
from unmask.statistics.bootstrap import Items
from unmask.tasks.mteb.evaluator import Outcome
from unmask.tasks.tagged import Sentence
from unmask.tasks.task import LocalTask


@dataclass(frozen=True)
class WordOutcome:
    """The outcome at one layer."""

    outcome: Outcome
    dim: int
    tally: Tally
    """The sentences that were read."""
    about: dict[str, Any]
    """Facts about the probe."""


def score_words(encoder: Encoder, task: LocalTask, layers: Sequence[int]) -> dict[int, WordOutcome]:
    """Score a word-level task at some layers, all from the same forward passes. `unmask probe words` gives the same scores.

    The items are test sentences. Raises UnmaskError as `probe_words_at_layers` does.
    """
    train, test = (
        [Sentence(tuple(row["tokens"]), tuple(row["tags"])) for row in task.data[split]] for split in ("train", "test")
    )
    probes = probe_words_at_layers(encoder, train, test, layers)
    tokens = sum(len(sentence.ids) for sentence in word_tokens(encoder, [*train, *test]))
    tally = Tally(texts=len(train) + len(test), tokens=tokens)
    outcomes = {}
    for layer, probe in probes.items():
        scores = probe.scores
        # what each sentence adds to numerator and denominator of the score, and to the number of words or entities in the gold tags
        ratio, gold = scores.entity_f1 or scores.accuracy, scores.words if scores.gold is None else scores.gold
        items = Items("ratio", {"above": ratio.above, "below": ratio.below, "gold": gold})
        other_scores = {"accuracy": probe.accuracy, "majority": probe.majority}
        other_scores.pop(probe.metric, None)
        about = ("layer", "c", "converged", "classes", "train_sentences", "train_words", "test_words", "unseen")
        details = {name: getattr(probe, name) for name in about}
        outcomes[layer] = WordOutcome(Outcome(probe.metric, probe.value, other_scores, items), probe.dim, tally, details)
    return outcomes
