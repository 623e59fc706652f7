"""Answer likelihood: how well a model foresees the right answers of ability tests, in nats per token. Lower is better.

Small models answer most tests at chance, so their accuracies do not differ. A continuous measure of the same items differs long before
(Schaeffer et al., 2023, arXiv 2304.15004). With n(x) the negative log-likelihood of a continuation x of the prompt, the mean over its
tokens (Brown et al., 2020, arXiv 2005.14165, section 2.4, compare choices by it):

- An item with choices has n(right choice) - min n(wrong choice). This is minus the margin of the right choice. It is below 0 exactly if
  the right choice is the likeliest. What makes all choices less likely, such as another style, cancels: style is not an ability. The mean
  over tokens keeps long choices from deciding, and gives all tests one unit. A probability normalised over choices would be close to
  0 or 1 for long choices, and its logarithm would then depend on a few items.
- Any other item has n(reference answer). There is nothing to compare with, so style counts here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError
from unmask.experts.abilities.ability_tests import Item
from unmask.experts.lesson_training import LessonCollator
from unmask.experts.lessons.lessons import LessonTokens, tokenize_pairs
from unmask.experts.likelihood import mean_losses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def answer_likelihood(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[Item],
    *,
    max_length: int = 2048,
    batch_tokens: int = 2048,
) -> NDArray[np.float64]:
    """The measure of this module for each item, in nats per token, shape (item,). Lower is better.

    A prompt that is too long loses its first tokens, as in the harness. An answer that is longer than max_length is cut.
    """
    answers = [item.choices or (item.reference,) for item in items]
    pairs = [(item.prompt, answer) for item, own in zip(items, answers, strict=True) for answer in own]
    rows = [_shortened(ids, start, max_length) for ids, start in tokenize_pairs(tokenizer, pairs)]
    collate = LessonCollator(int(tokenizer.pad_token_id or 0))
    nats = mean_losses(model, rows, [len(row.ids) for row in rows], collate, batch_tokens, "reading answers")
    ends = np.cumsum([len(own) for own in answers])
    return np.array([_value(item, of_item) for item, of_item in zip(items, np.split(nats, ends[:-1]), strict=True)])


def require_answers(tests: Mapping[str, Sequence[Item]]) -> None:
    """Raise UnmaskError for a test with an item that has neither a wrong choice nor a reference answer."""
    for name, items in tests.items():
        if any(len(item.choices) < 2 and not item.reference for item in items):
            raise UnmaskError(
                f"'{name}' has an item without a reference answer, so nothing is measured. Use a file with answers."
            )


def _value(item: Item, nats: NDArray[np.float64]) -> float:
    """The value of an item, from the nats of its choices or of its reference answer."""
    if not item.choices:
        return float(nats[0])
    right = int(str(item.target))
    return float(nats[right] - np.delete(nats, right).min())


def _shortened(ids: Sequence[int], start: int, max_length: int) -> LessonTokens:
    """At most max_length tokens: the first ones of the prompt go, except the very first, which may begin every text."""
    gone = max(0, min(len(ids) - max_length, start - 2))
    return LessonTokens((*ids[:1], *ids[1 + gone :])[:max_length], start - gone, "")
