"""Prefixes: does the state of a token use what follows it?

Three texts share a prefix A: q = (A, B), s+ = (A, C), s- = (A, D). B and C give A the same meaning ("The bank" of a river), D another.
Only the states of A's tokens are pooled. If the model sees what follows, q is nearer to s+ than to s-. Under causal attention A's states
are the same in all three texts, and the gap is exactly 0 (LLM2Vec, arXiv 2404.05961, section 4.1).

The gap opens with training (figure 4): a base model that was only made bidirectional hardly uses what follows a prefix. So several stages,
such as base model, MNTP and SimCSE, are compared triple by triple, each with the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.designs.design import ATTENTIONS, Attention
from unmask.encoding.backbone import HiddenRead, TokenBatch
from unmask.encoding.encoder import Encoder
from unmask.encoding.pooling import mean
from unmask.encoding.tokenization import tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.rows import field, read_rows
from unmask.io.terminal import progress_bar
from unmask.models.provenance import fingerprint_of
from unmask.probing.inputs import ProbeResult
from unmask.statistics.intervals import Bounds, wilson
from unmask.statistics.ratios import Difference, Ratio, difference

TRIPLES = Path(__file__).parent / "prefixes.jsonl"
_FEWEST = 2


@dataclass(frozen=True)
class Triple:
    """A prefix and three continuations. where: file and line, for errors."""

    prefix: str
    query: str
    same: str
    different: str
    where: str = ""

    @property
    def texts(self) -> tuple[str, str, str]:
        """Q, s+ and s-: the prefix with each continuation, joined by a space."""
        return tuple(f"{self.prefix} {rest}" for rest in (self.query, self.same, self.different))  # type: ignore[return-value]


@dataclass(frozen=True)
class PrefixGap(ProbeResult):
    """How much the states of a prefix reveal about the text that follows.

    gap: mean of cos(q, s+) - cos(q, s-), exactly 0 if the model does not see the text that follows; accuracy: the share of triples with a
    positive gap (0.0 for a causal model); same, different: the two mean cosines. Intervals are 95 % over triples: by bootstrap, and of
    the accuracy by Wilson's formula.
    """

    gap: float
    interval: tuple[float, float]
    accuracy: float
    accuracy_interval: Bounds
    same: float
    same_interval: Bounds
    different: float
    different_interval: Bounds
    triples: int
    layer: int
    gaps: tuple[float, ...]
    data: str
    provenance: dict[str, Any]


def read_triples(file: Path = TRIPLES) -> list[Triple]:
    """Triples from rows {prefix, query, same, different}, by default those that come with unmask. Raises UnmaskError."""
    triples = []
    for line, row in read_rows(file):
        prefix, query, same, different = columns = [
            field(file, line, row, column).strip() for column in ("prefix", "query", "same", "different")
        ]
        if not all(columns):
            raise UnmaskError(f"{file}, line {line}: prefix, query, same and different must not be empty.")
        triples.append(Triple(prefix, query, same, different, f"{file}, line {line}"))
    return triples


def probe_prefixes(
    encoder: Encoder,
    triples: Sequence[Triple],
    *,
    layer: int | None = None,
) -> PrefixGap:
    """Measure the gap at a layer (1..L; the last by default, after the final norm).

    Raises UnmaskError for a layer that the model lacks, for fewer than two triples, and if a prefix does not have the same tokens in all
    three texts.
    """
    depth = encoder.backbone.depth
    layer = depth if layer is None else layer
    if not 1 <= layer <= depth:
        raise UnmaskError(f"Layer {layer} does not exist: this model has {depth} layers, 1 to {depth}.")
    if len(triples) < _FEWEST:
        raise UnmaskError(f"A gap with an interval needs at least {_FEWEST} triples, not {len(triples)}.")
    near, far = np.empty(len(triples)), np.empty(len(triples))
    with progress_bar("reading triples", len(triples)) as advance:
        for row, triple in enumerate(triples):
            query, same, different = prefix_vectors(encoder, triple, layer)
            near[row], far[row] = cosine(query, same), cosine(query, different)
            advance(1)
    gaps = near - far
    return PrefixGap(
        gap=float(gaps.mean()),
        interval=_of_mean(gaps),
        accuracy=float((gaps > 0).mean()),
        accuracy_interval=wilson(float((gaps > 0).sum()), len(gaps)),
        same=float(near.mean()),
        same_interval=_of_mean(near),
        different=float(far.mean()),
        different_interval=_of_mean(far),
        triples=len(triples),
        layer=layer,
        gaps=tuple(gaps.tolist()),
        data=fingerprint_of([text for triple in triples for text in (triple.prefix, *triple.texts)]),
        provenance=encoder.provenance | {"attention": encoder.backbone.attention},
    )


def _of_mean(values: NDArray[np.float64]) -> Bounds:
    return Ratio(values, np.ones(len(values))).interval() or (np.nan, np.nan)


def cosine(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Cosine of two vectors in fp64. Equal arguments give equal bits, so equal states give a gap of exactly 0."""
    return float(first @ second / np.sqrt((first @ first) * (second @ second)))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def prefix_vectors(encoder: Encoder, triple: Triple, layer: int) -> list[NDArray[np.float64]]:
    """Mean state of the prefix's tokens in each of the three texts. Raises UnmaskError if these are not the same tokens.

    The last bits of a matrix product depend on its shape and on the row; in a mixture of experts also on how many tokens of the batch
    chose the same expert. So all three texts, padded to one length, go through the model three times. Each text is the first row once,
    and is read there alone. Then shapes and places are the same for all three.
    """
    ids, (start, stop) = prefix_tokens(encoder, triple)
    length = max(len(text_ids) for text_ids in ids)
    padded = torch.tensor([[*text_ids, *[0] * (length - len(text_ids))] for text_ids in ids])
    positions = torch.arange(length).expand(len(ids), -1)
    attention_mask = positions < torch.tensor([[len(text_ids)] for text_ids in ids])
    pooling_mask = (positions >= start) & (positions < stop)
    hidden_read = HiddenRead(layer, mean)
    vectors = []
    for first in range(len(ids)):
        batch = TokenBatch(padded.roll(-first, 0), attention_mask.roll(-first, 0), pooling_mask)
        vectors.append(encoder.backbone.read(batch, [hidden_read])[hidden_read][0].cpu().numpy().astype(np.float64))
    return vectors


def prefix_tokens(encoder: Encoder, triple: Triple) -> tuple[list[list[int]], tuple[int, int]]:
    """Token ids of the three texts, and start and end of the prefix's tokens. Raises UnmaskError if no token ends with the prefix."""
    all_ids: list[list[int]] = []
    spans, border = set(), len(triple.prefix)
    for text in triple.texts:
        tokens = tokenize_bare(encoder.tokenizer, text)
        indexed_tokens = enumerate(zip(tokens.offsets, tokens.special, strict=True))
        prefix_indices = [
            index for index, ((begin, end), special) in indexed_tokens if begin < border and end > begin and not special
        ]
        if not prefix_indices or tokens.offsets[prefix_indices[-1]][1] > border:
            raise _border_error(triple, f"in '{text}' a token crosses its end")
        spans.add((prefix_indices[0], prefix_indices[-1] + 1))
        all_ids.append(list(tokens.ids))
    stop = next(iter(spans))[1]
    if len(spans) > 1 or len({tuple(ids[:stop]) for ids in all_ids}) > 1:
        raise _border_error(triple, "its tokens are not the same in all three texts")
    return all_ids, next(iter(spans))


def _border_error(triple: Triple, why: str) -> UnmaskError:
    return UnmaskError(
        f"{triple.where or 'A triple'}: the prefix '{triple.prefix}' has no exact border for this tokenizer: {why}."
    )


@dataclass(frozen=True)
class StageGap:
    """The gap of one stage. name: as the user gave it; step: the change from the previous stage, None for the first."""

    name: str
    result: PrefixGap
    step: Difference | None


@dataclass(frozen=True)
class StageGaps(ProbeResult):
    """The gaps of several models on the same triples, in the order in which the user gave them."""

    stages: tuple[StageGap, ...]


def compare_stages(names: Sequence[str], gaps: Sequence[PrefixGap]) -> StageGaps:
    """Compare each stage with the one before it. Raises UnmaskError for gaps that were measured on different triples."""
    if len({gap.data for gap in gaps}) > 1:
        raise UnmaskError("These gaps were measured on different triples. Measure all of them on the same triples.")
    ratios = [Ratio(np.array(gap.gaps), np.ones(len(gap.gaps))) for gap in gaps]
    steps = [None, *(difference("gap", later, earlier) for earlier, later in pairwise(ratios))]
    return StageGaps(tuple(StageGap(*stage) for stage in zip(names, gaps, steps, strict=True)))


def attention_in(name: str) -> tuple[str, Attention | None]:
    """Split `MODEL:causal` or `MODEL:bidirectional` into model and attention. Any other name is a model without attention."""
    model, mark, attention = name.rpartition(":")
    return (model, attention) if mark and attention in ATTENTIONS else (name, None)  # type: ignore[return-value]
