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
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoding.prefix_cache import common_prefix_length
from unmask.errors import UnmaskError
from unmask.io.terminal import progress_bar
from unmask.models.decoder import pad_id_of
from unmask.moe.experts.abilities.ability_tests import Item
from unmask.moe.experts.lesson_training import LessonCollator
from unmask.moe.experts.lessons.lessons import LessonTokens, tokenize_pairs
from unmask.moe.experts.likelihood import mean_losses
from unmask.moe.experts.shared_prefix import can_repeat, repeated_prefix
from unmask.training.targets import mean_by_text, target_logits

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
    nats = answer_nats(model, tokenizer, items, max_length=max_length, batch_tokens=batch_tokens)
    return np.array(
        [behind(item, of_item) if item.choices else float(of_item[0]) for item, of_item in zip(items, nats, strict=True)]
    )


def answer_nats(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[Item],
    *,
    max_length: int = 2048,
    batch_tokens: int = 2048,
) -> list[NDArray[np.float64]]:
    """n(x) of every choice of an item, shape (choice,), or of its reference answer, shape (1,), for each item.

    The prompt of an item is read once for all of its choices, if the model can go on from it (`can_repeat`).
    """
    answers = [item.choices or (item.reference,) for item in items]
    pairs = [(item.prompt, answer) for item, own in zip(items, answers, strict=True) for answer in own]
    rows = [_shortened(ids, start, max_length) for ids, start in tokenize_pairs(tokenizer, pairs)]
    ends = np.cumsum([0, *map(len, answers)])
    by_item = [rows[begin:end] for begin, end in pairwise(ends)]
    repeats = can_repeat(model)
    shared = [_shared(own) if repeats else 0 for own in by_item]
    whole = [row for own, length in zip(by_item, shared, strict=True) if not length for row in own]
    collate = LessonCollator(pad_id_of(tokenizer, model))
    read = iter(mean_losses(model, whole, [len(row.ids) for row in whole], collate, batch_tokens, "reading answers"))
    nats = []
    with progress_bar("reading choices", len(items)) as advance:
        for own, length in zip(by_item, shared, strict=True):
            nats.append(_continued(model, own, length, collate) if length else np.array([next(read) for _ in own]))
            advance(1)
    return nats


def behind(item: Item, nats: NDArray[np.float64]) -> float:
    """By how much the right choice is less likely than the likeliest wrong one: n(right) - min n(wrong)."""
    right = int(str(item.target))
    return float(nats[right] - np.delete(nats, right).min())


def require_answers(tests: Mapping[str, Sequence[Item]]) -> None:
    """Raise UnmaskError for a test with an item that has neither a wrong choice nor a reference answer."""
    for name, items in tests.items():
        if any(len(item.choices) < 2 and not item.reference for item in items):
            raise UnmaskError(
                f"'{name}' has an item without a reference answer, so nothing is measured. Use a file with answers."
            )


def _shared(rows: Sequence[LessonTokens]) -> int:
    """How many tokens of the prompt all choices share. The last one is not counted: the first token of an answer is predicted from it."""
    alike = min(common_prefix_length([row.ids for row in rows]), *(row.start - 1 for row in rows))
    return max(0, alike) if len(rows) > 1 else 0


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _continued(model: Any, rows: Sequence[LessonTokens], length: int, collate: LessonCollator) -> NDArray[np.float64]:
    """n(x) of choices whose first `length` tokens are the same."""
    inputs = collate([LessonTokens(row.ids[length:], row.start - length, "") for row in rows])
    ids, labels = (inputs[name].to(model.device) for name in ("input_ids", "labels"))
    # padding stands behind every real token, which does not see it: so no mask is needed
    given = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "past_key_values": repeated_prefix(model, rows[0].ids[:length], len(rows)),
    }
    return np.asarray(mean_by_text(*target_logits(model, given, labels)).double().cpu())


def _shortened(ids: Sequence[int], start: int, max_length: int) -> LessonTokens:
    """At most max_length tokens: the first ones of the prompt go, except the very first, which may begin every text."""
    gone = max(0, min(len(ids) - max_length, start - 2))
    return LessonTokens((*ids[:1], *ids[1 + gone :])[:max_length], start - gone, "")
