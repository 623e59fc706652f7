"""Words: word-level tasks of a comparison, scored by a linear probe on the states of words at the layers that designs read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.encoding.encode import Tally
from unmask.encoding.loaded_model import LoadedModel
from unmask.probing.word_probe import Scores, WordProbe, probe_layers, word_tokens
from unmask.statistics.bootstrap import Items
from unmask.tasks.mteb.evaluator import Outcome
from unmask.tasks.tagged import Sentence
from unmask.tasks.task import LocalTask


@dataclass(frozen=True)
class WordOutcome:
    """The outcome at one layer, the size of its vectors, the sentences that were read, and what is to be known of the probe."""

    outcome: Outcome
    dim: int
    tally: Tally
    about: dict[str, Any]


def score_words(
    model: LoadedModel, task: LocalTask, layers: Sequence[int], batch_tokens: int, progress: Callable[[int], None] | None = None
) -> dict[int, WordOutcome]:
    """Score a word-level task at some layers, read in the same passes; `unmask probe words` on its files says the same.

    Items are test sentences. Raises UnmaskError as `probe_layers` does.
    """
    train, test = ([_sentence(row) for row in task.data[part]] for part in ("train", "test"))
    found = probe_layers(model, train, test, layers, batch_tokens=batch_tokens, progress=progress)
    tokens = sum(len(one.ids) for one in word_tokens(model, [*train, *test]))
    tally = Tally(texts=len(train) + len(test), tokens=tokens)
    return {layer: _outcome(probe, tally) for layer, probe in found.items()}


def _sentence(row: dict[str, Any]) -> Sentence:
    return Sentence(tuple(row["tokens"]), tuple(row["tags"]))


def _outcome(probe: WordProbe, tally: Tally) -> WordOutcome:
    side = {"accuracy": probe.accuracy, "majority": probe.majority}
    side.pop(probe.metric, None)
    about = {
        name: getattr(probe, name)
        for name in ("layer", "c", "converged", "classes", "train_sentences", "train_words", "test_words", "unseen")
    }
    return WordOutcome(Outcome(probe.metric, probe.value, side, _items(probe.scores)), probe.dim, tally, about)


def _items(scores: Scores) -> Items:
    """What each sentence adds to numerator and denominator of the score, and what its task gives."""
    ratio, given = scores.entity_f1 or scores.accuracy, scores.given
    gold = scores.words if given is None else given
    return Items("ratio", {"above": ratio.above, "below": ratio.below, "gold": gold})
