"""Shared prefixes: prompts that share a prefix, the text included, run it through the model once and reuse its KV cache.

Under causal attention the states of a text do not depend on the question after it. So for each batch of texts, the tokens that all prompts
start with are computed once, and each prompt continues from their keys and values. Poolings other than `last` also need the states of
the text, and lexical designs its tokens: they read full prompts. So do architectures that cannot reuse a cache correctly; two texts are
computed both ways first, as for a prefix cache.

A text that is short in comparison with its questions is read with each of them, since many small forward passes cost more than they save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unmask.designs.design import Design
from unmask.designs.prompts import Prompts
from unmask.encoding.backbone import Backbone, PrefixCache
from unmask.encoding.batching import may_share, padded_tokens, plan, share, shares, steps_of
from unmask.encoding.dedup import unique
from unmask.encoding.forward_pass import ForwardPass, PassKey, Vectors, after_prefixes, require_finite
from unmask.encoding.prefix_cache import agree, common_prefix_length, is_cheaper, shared_length
from unmask.encoding.replicas import in_parallel, threads_for
from unmask.encoding.tokenization import DesignTokenizer, TokenizedText

CACHED_TOKEN_COST = 4
"""Relative cost of a token computed with a cached prefix; a token in an ordinary forward pass costs 1.

Four questions on sentences of STSB took 1.23 times as long together as one by one, with 17 % of the tokens in texts and 32 % in questions,
which makes 3.3 (SmolLM2-135M in bf16 on one core).
"""
Progress = Callable[[int], None]
"""Takes the share of the work done since its last call, in texts: a batch counts by its tokens, so that the pace is even."""


@dataclass(frozen=True)
class PromptBatch:
    """Texts in one prompt (or in the several prompts of an average), and the designs that read them.

    All batches of a call hold the same texts, in the same order.
    """

    forward: ForwardPass
    texts: Sequence[TokenizedText]

    @property
    def tokens_alone(self) -> int:
        """Tokens to compute without the other batches: all but a prefix that its texts share."""
        parts = [[text.part(index) for text in self.texts] for index in range(self.forward.prompts)]
        return sum(sum(len(text.ids) for text in texts) - shared_length(texts) * len(texts) for texts in parts)

    def rests(self, rows: Sequence[int], lengths: Sequence[int]) -> list[TokenizedText]:
        """These texts without their first tokens. lengths: of every text of the batch."""
        return [after_prefixes(self.texts[row], [lengths[row]] * self.forward.prompts) for row in rows]


@dataclass(frozen=True)
class SharedResult:
    """Vectors of each batch. tokens: computed in total; tokens_alone: what each batch would compute without the others."""

    vectors: list[dict[Design, Vectors]]
    tokens_alone: list[int]
    tokens: int


def group_by_shared_prefix(
    groups: Mapping[PassKey, Sequence[Design]], tokenizer_of: Callable[[Prompts], DesignTokenizer]
) -> list[list[PassKey]]:
    """Forward passes whose prompts share a prefix, next to each other; every other forward pass by itself. Order is preserved."""
    grouped: dict[object, list[PassKey]] = {}
    for key, designs in groups.items():
        prefix = text_before_placeholder(designs, tokenizer_of(key[1]))
        grouped.setdefault(key if prefix is None else prefix, []).append(key)
    return list(grouped.values())


def text_before_placeholder(designs: Iterable[Design], tokenizer: DesignTokenizer) -> str | None:
    """The part of a prompt before the text; None if the designs also need the states of the text."""
    return tokenizer.opening if all(design.attention == "causal" and _reads_last(design) for design in designs) else None


def encode_with_shared_prefix(
    batches: Sequence[PromptBatch], batch_tokens: int, progress: Progress | None = None
) -> SharedResult | None:
    """Vectors of every design of every batch, from one reading of each text; None if that would not be faster, or is not possible.

    Up to rounding, they are the vectors of each batch alone. Raises UnmaskError for a vector that is not finite.
    """
    backbone = batches[0].forward.backbone
    prompts = [
        tuple(part.ids for text in texts for part in text.parts or (text,))
        for texts in zip(*(batch.texts for batch in batches), strict=True)
    ]
    first, inverse = unique(prompts)
    distinct = [replace(batch, texts=[batch.texts[index] for index in first]) for batch in batches]
    lengths = [_shared_length(prompts[index]) for index in first]
    tokens_alone = [batch.tokens_alone for batch in distinct]
    tokens = sum(len(text.ids) for batch in distinct for text in batch.texts)
    computed = tokens - (sum(batch.forward.prompts for batch in distinct) - 1) * sum(lengths)
    cost = sum(lengths) + CACHED_TOKEN_COST * (computed - sum(lengths))
    if not is_cheaper(sum(tokens_alone) - cost, sum(tokens_alone), len(lengths)):
        return None

    def compute(replica: Backbone, rows: list[int]) -> list[dict[Design, Vectors]]:
        # without a cache (another thread may have put hooks on the model since) the texts are read with each prompt
        prefix = _cache(replica, distinct, rows, lengths)
        skipped = lengths if prefix is not None else [0] * len(lengths)
        return [
            batch.forward.vectors(batch.rests(rows, skipped), [prefix] * batch.forward.prompts, replica) for batch in distinct
        ]

    with suppress(torch.OutOfMemoryError):  # one prompt at a time holds no keys and values of texts
        if not _can_share(backbone, distinct, lengths):
            return None
        in_all_prompts = list(zip(*(batch.texts for batch in distinct), strict=True))
        longest = [max(text.longest for text in texts) for texts in in_all_prompts]
        threads = threads_for(backbone, computed)
        steps = [steps_of(length for text in texts for length in text.lengths) for texts in in_all_prompts]
        row_batches = plan(longest, share(batch_tokens, computed, threads), steps=steps)
        progress_shares = shares(len(distinct) * len(prompts), padded_tokens(row_batches, longest))
        results: list[dict[Design, Vectors]] = [{} for _ in distinct]
        computed_batches = in_parallel(backbone, row_batches, threads, compute)
        for rows, by_batch, texts_done in zip(row_batches, computed_batches, progress_shares, strict=True):
            for result, vectors in zip(results, by_batch, strict=True):
                for design, values in vectors.items():
                    require_finite(values, first[rows].tolist(), backbone.dtype)
                    result.setdefault(design, np.empty((len(first), values.shape[1]), np.float32))[rows] = values
            if progress:
                progress(texts_done)
        expanded = [{design: values[inverse] for design, values in result.items()} for result in results]
        return SharedResult(expanded, tokens_alone, computed)
    return None


def _cache(
    backbone: Backbone, batches: Sequence[PromptBatch], rows: Sequence[int], lengths: Sequence[int]
) -> PrefixCache | None:
    prefixes = [batches[0].texts[row].part(0).ids[: lengths[row]] for row in rows]
    return backbone.cache_prefix(prefixes) if any(prefixes) else None


def _can_share(backbone: Backbone, batches: Sequence[PromptBatch], lengths: Sequence[int]) -> bool:
    """Whether this model reuses the cache of a text correctly, tried on the texts with the shortest and the longest prefix."""
    if not all(_reads_last(design) for batch in batches for design in batch.forward.fits):
        return False
    rows = [lengths.index(min(lengths)), lengths.index(max(lengths))]
    prefix = _cache(backbone, batches, rows, lengths)
    if prefix is None:
        return False

    def read(cache: PrefixCache | None, skipped: Sequence[int]) -> list[Tensor]:
        return [
            values
            for batch in batches
            for values in batch.forward.comparable(batch.rests(rows, skipped), [cache] * batch.forward.prompts)
        ]

    return agree(backbone.dtype, lambda: read(None, [0] * len(lengths)), lambda: read(prefix, lengths))


def _shared_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """Number of tokens that the prompts of a text start with. Each prompt keeps at least one token, which is embedded."""
    length = min(common_prefix_length(prompts), *(len(ids) - 1 for ids in prompts))
    # LongRoPE switches frequencies at a certain length, so a prefix on the near side of it cannot be reused beyond
    return length if all(may_share(length, len(ids)) for ids in prompts) else 0


def _reads_last(design: Design) -> bool:
    """Whether a design needs the last token only. A lexical one also needs to know which tokens belong to the text."""
    return design.pooling == "last" and not design.is_sparse
