"""Questions: prompts that begin alike, text included, read each text once. Only what follows is computed for each prompt.

Under causal attention the states of a text do not depend on the question after it. So for each batch of texts, the tokens that all prompts
begin with are computed once, their keys and values are kept, and each prompt goes on from there. Poolings other than `last` also need the
states of the text, and sparse designs its tokens: they read whole prompts. So do architectures that do not go on correctly. Two texts are
computed in both ways first, as for shared beginnings.

A text that is short beside its questions is read with each of them, since many small forward passes cost more than they save. The rule
counts tokens: one that goes on from kept keys and values counts four times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.designs.design import Attention, Design
from unmask.designs.prompts import Prompts
from unmask.encoding.backbone import Backbone, Beginning
from unmask.encoding.batching import may_share, padded_tokens, plan, share, shares, steps_of
from unmask.encoding.beginnings import agree, saves, shared_length, tokens_alike
from unmask.encoding.encode import (
    Progress,
    Tally,
    Vectors,
    after_each,
    encode_batch,
    encode_tokenized,
    features_of,
    require_finite,
)
from unmask.encoding.features import Fit
from unmask.encoding.replicas import in_parallel, threads_for
from unmask.encoding.several_prompts import DesignTokenizer
from unmask.encoding.tokenization import TokenizedText

_GOES_ON = 4
"""What a token costs that goes on from kept keys and values, in tokens of a whole text.

Four questions on sentences of STSB took 1.23 times as long together as one by one, with 17 % of the tokens in texts and 32 % in questions:
this makes 3.3 (`python -m benchmarks.questions`, SmolLM2-135M in bf16 on one core).
"""


@dataclass(frozen=True)
class Question:
    """Texts in one prompt (or in the several prompts of an average), and the designs that read them, each with its fit.

    All questions of a call have the same texts, in the same order.
    """

    tokenizer: DesignTokenizer
    fits: Mapping[Design, Fit]
    texts: Sequence[TokenizedText]


@dataclass(frozen=True)
class Answers:
    """Vectors of each question. computed: tokens in all; alone: tokens that each question would compute without the others."""

    vectors: list[dict[Design, Vectors]]
    alone: list[int]
    computed: int


def alike(
    groups: Mapping[tuple[Attention, Prompts], Sequence[Design]], tokenizers: Mapping[Prompts, DesignTokenizer]
) -> list[list[tuple[Attention, Prompts]]]:
    """Forward passes whose prompts begin alike, side by side; each other forward pass by itself. Their order stays."""
    together: dict[object, list[tuple[Attention, Prompts]]] = {}
    for key, designs in groups.items():
        opening = opening_of(designs, tokenizers[key[1]])
        together.setdefault(key if opening is None else opening, []).append(key)
    return list(together.values())


def opening_of(designs: Iterable[Design], tokenizer: DesignTokenizer) -> str | None:
    """What stands before the text in a prompt; None if its designs also need the states of the text."""
    return tokenizer.opening if all(design.attention == "causal" and _reads_last(design) for design in designs) else None


def encode_questions(
    backbone: Backbone, questions: Sequence[Question], *, batch_tokens: int, progress: Progress | None = None
) -> Answers:
    """Vectors of every design of every question: float32 of shape (text, dim), in the order of the texts.

    Up to rounding, they are those of each question alone. progress: counts the texts of each question.
    Raises UnmaskError for a vector that is not finite.
    """
    places: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for place, texts in enumerate(zip(*(question.texts for question in questions), strict=True)):
        places.setdefault(tuple(part.ids for text in texts for part in text.parts or (text,)), []).append(place)
    copies = list(places.values())
    unique = [Question(one.tokenizer, one.fits, [one.texts[copy[0]] for copy in copies]) for one in questions]
    # LongRoPE rotates by other frequencies beyond a border, so what stands before it is not gone on from
    shared = [
        count if all(may_share(count, len(ids)) for ids in prompts) else 0
        for prompts, count in zip(places, map(_alike, places), strict=True)
    ]
    alone = [_alone(question) for question in unique]
    tokens = sum(len(text.ids) for question in unique for text in question.texts)
    computed = tokens - (sum(len(question.tokenizer.parts) for question in unique) - 1) * sum(shared)
    cost = sum(shared) + _GOES_ON * (computed - sum(shared))
    if saves(sum(alone) - cost, sum(alone), len(shared)):
        with suppress(torch.OutOfMemoryError):  # one prompt at a time keeps no keys and values of texts
            if _goes_on(backbone, unique, shared):
                return Answers(_together(backbone, unique, copies, shared, batch_tokens, computed, progress), alone, computed)
    return _one_by_one(backbone, questions, batch_tokens, progress)


def _together(
    backbone: Backbone,
    unique: Sequence[Question],
    copies: Sequence[list[int]],
    shared: Sequence[int],
    batch_tokens: int,
    computed: int,
    progress: Progress | None,
) -> list[dict[Design, Vectors]]:
    """Vectors of each question, from one reading of each text. copies: the places of each text; computed: tokens in all."""
    lengths = [max(text.longest for text in texts) for texts in zip(*(one.texts for one in unique), strict=True)]
    threads = threads_for(backbone, computed)
    whole = zip(*(one.texts for one in unique), strict=True)
    steps = [steps_of(length for text in texts for length in text.lengths) for texts in whole]
    batches = plan(lengths, share(batch_tokens, computed, threads), steps=steps)

    def compute(replica: Backbone, batch: list[int]) -> list[dict[Design, Vectors]]:
        return _encode_batch(replica, unique, batch, shared)

    results: list[dict[Design, Vectors]] = [{} for _ in unique]
    done = shares(len(unique) * sum(map(len, copies)), padded_tokens(batches, lengths))
    for batch, answers, part in zip(batches, in_parallel(backbone, batches, threads, compute), done, strict=True):
        for result, answer in zip(results, answers, strict=True):
            for design, values in answer.items():
                require_finite(values, [copies[index][0] for index in batch], backbone.dtype)
                rows = result.setdefault(design, np.empty((sum(map(len, copies)), values.shape[1]), np.float32))
                for index, value in zip(batch, values, strict=True):
                    rows[copies[index]] = value
        if progress:
            progress(part)
    return results


def _alone(question: Question) -> int:
    """Tokens that a question would compute alone: without the beginning of a prompt that its texts share."""
    parts = [[text.part(place) for text in question.texts] for place in range(len(question.tokenizer.parts))]
    return sum(sum(len(text.ids) for text in texts) - shared_length(texts) * len(texts) for texts in parts)


def _one_by_one(backbone: Backbone, questions: Sequence[Question], batch_tokens: int, progress: Progress | None) -> Answers:
    vectors, alone = [], []
    for one in questions:
        tally, fits = Tally(), dict(one.fits)
        vectors.append(
            encode_tokenized(
                backbone, one.tokenizer, fits, one.texts, batch_tokens=batch_tokens, tally=tally, progress=progress
            )
        )
        alone.append(tally.tokens)
    return Answers(vectors, alone, sum(alone))


def _encode_batch(
    backbone: Backbone, questions: Sequence[Question], batch: Sequence[int], shared: Sequence[int]
) -> list[dict[Design, Vectors]]:
    """Vectors of every design of every question, from one reading of the texts of a batch.

    If the texts of this batch cannot be gone on from (somebody has put hooks on the model since), they are read with each question.
    """
    begin = _beginning(backbone, questions, batch, shared)
    read = shared if begin is not None else [0] * len(shared)
    return [
        encode_batch(backbone, one.tokenizer, one.fits, _rests(one, batch, read), [begin] * len(one.tokenizer.parts))
        for one in questions
    ]


def _beginning(
    backbone: Backbone, questions: Sequence[Question], batch: Sequence[int], shared: Sequence[int]
) -> Beginning | None:
    alike = [questions[0].texts[index].part(0).ids[: shared[index]] for index in batch]
    return backbone.beginning(alike) if any(alike) else None


def _rests(question: Question, batch: Sequence[int], shared: Sequence[int]) -> list[TokenizedText]:
    return [after_each(question.texts[index], [shared[index]] * len(question.tokenizer.parts)) for index in batch]


def _goes_on(backbone: Backbone, questions: Sequence[Question], shared: Sequence[int]) -> bool:
    """Whether this model can go on from a text to each question. It is tried on the texts with the fewest and the most tokens alike."""
    if not all(_reads_last(design) for question in questions for design in question.fits):
        return False
    two = [shared.index(min(shared)), shared.index(max(shared))]
    beginning = _beginning(backbone, questions, two, shared)
    if beginning is None:
        return False

    def read(begin: Beginning | None, lengths: Sequence[int]) -> list[Tensor]:
        return [
            values
            for one in questions
            for values in features_of(backbone, list(one.fits), one.tokenizer, _rests(one, two, lengths), begin)
        ]

    return agree(backbone.dtype, lambda: read(None, [0] * len(shared)), lambda: read(beginning, shared))


def _alike(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens the prompts of a text begin with. Each has at least one token after them, which is embedded."""
    return min(tokens_alike(prompts), *(len(ids) - 1 for ids in prompts))


def _reads_last(design: Design) -> bool:
    """Whether a design needs the last token alone. A sparse one also needs to know which tokens are the text's own."""
    return design.pooling == "last" and not design.is_sparse
