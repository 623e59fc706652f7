"""Prefixes: does the state of a token use what follows it?

Three texts share a prefix A: q = (A, B), s+ = (A, C), s- = (A, D). B and C give A one meaning ("The bank" of a river), D another.
Only the states of A's tokens are pooled. Where the model sees what follows, q is nearer to s+ than to s-; under causal
attention A's states are the same in all three, and the gap is exactly 0 (LLM2Vec, arXiv 2404.05961, section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoding.backbone import HiddenRead, TokenBatch
from unmask.encoding.loaded_model import LoadedModel
from unmask.encoding.pooling import mean
from unmask.encoding.tokenization import tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.rows import field, read_rows
from unmask.models.provenance import fingerprint_of
from unmask.statistics.ratios import Ratio

TRIPLES = Path(__file__).parent / "prefixes.jsonl"
_FEWEST = 2


@dataclass(frozen=True)
class Triple:
    """A prefix and three ways in which a text goes on; where: file and line, for errors."""

    prefix: str
    query: str
    same: str
    different: str
    where: str = ""

    @property
    def texts(self) -> tuple[str, str, str]:
        """Q, s+ and s-: the prefix and what follows, with a space between."""
        return tuple(f"{self.prefix} {rest}" for rest in (self.query, self.same, self.different))  # type: ignore[return-value]


@dataclass(frozen=True)
class PrefixGap:
    """What the states of a prefix know of what follows.

    gap: mean of cos(q, s+) - cos(q, s-), exactly 0 where nothing is seen; interval: 95 % by bootstrap over triples; accuracy:
    share of triples with a positive gap (0.0 for a causal model, whose gaps are all zero); same, different: the two mean cosines.
    """

    gap: float
    interval: tuple[float, float]
    accuracy: float
    same: float
    different: float
    triples: int
    layer: int
    gaps: tuple[float, ...]
    data: str
    provenance: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def read_triples(file: Path = TRIPLES) -> list[Triple]:
    """Triples from rows {prefix, query, same, different}; those of this package by default. Raises UnmaskError."""
    triples = []
    for line, row in read_rows(file):
        prefix, query, same, different = parts = [
            field(file, line, row, column).strip() for column in ("prefix", "query", "same", "different")
        ]
        if not all(parts):
            raise UnmaskError(f"{file}, line {line}: prefix, query, same and different may not be empty.")
        triples.append(Triple(prefix, query, same, different, f"{file}, line {line}"))
    if len(triples) < _FEWEST:
        raise UnmaskError(f"'{file}' holds {len(triples)} triple(s); a gap with an interval needs {_FEWEST} or more.")
    return triples


def probe_prefixes(
    model: LoadedModel,
    triples: Sequence[Triple],
    *,
    layer: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> PrefixGap:
    """Measure the gap at a layer (1..L; the last by default, after the final norm).

    Raises UnmaskError for a layer that the model lacks, fewer than two triples, and a triple whose prefix is not the same tokens in
    all three texts.
    """
    depth = model.backbone.depth
    layer = depth if layer is None else layer
    if not 1 <= layer <= depth:
        raise UnmaskError(f"There is no layer {layer}: this model has {depth} layers, 1 to {depth}.")
    if len(triples) < _FEWEST:
        raise UnmaskError(f"A gap with an interval needs {_FEWEST} triples or more, not {len(triples)}.")
    near, far = np.empty(len(triples)), np.empty(len(triples))
    for row, triple in enumerate(triples):
        query, same, different = prefix_vectors(model, triple, layer)
        near[row], far[row] = cosine(query, same), cosine(query, different)
        if progress:
            progress(1)
    gaps = near - far
    interval = Ratio(gaps, np.ones(len(gaps))).interval()
    assert interval is not None
    return PrefixGap(
        gap=float(gaps.mean()),
        interval=interval,
        accuracy=float((gaps > 0).mean()),
        same=float(near.mean()),
        different=float(far.mean()),
        triples=len(triples),
        layer=layer,
        gaps=tuple(gaps.tolist()),
        data=fingerprint_of([text for triple in triples for text in (triple.prefix, *triple.texts)]),
        provenance=model.provenance,
    )


def cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Cosine of two vectors in fp64: equal arguments give equal bits, so equal states give a gap of exactly 0."""
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def prefix_vectors(model: LoadedModel, triple: Triple, layer: int) -> list[NDArray[np.float64]]:
    """Mean state of the prefix's own tokens in each of the three texts. Raises UnmaskError where these are not the same tokens.

    Bits of a product depend on its shape and on where in it a row stands; in a mixture of experts, on how many tokens of the whole
    batch chose the same expert as well. So all three texts, padded to one length, go through the model three times, each of them
    once as the first row, from which alone it is read: the shapes, and the place of the prefix in them, are then the same for all.
    """
    ids, (start, stop) = prefix_tokens(model, triple)
    length = max(len(one) for one in ids)
    padded = torch.tensor([[*one, *[0] * (length - len(one))] for one in ids])
    positions = torch.arange(length).expand(len(ids), -1)
    real = positions < torch.tensor([[len(one)] for one in ids])
    embed = (positions >= start) & (positions < stop)
    read = HiddenRead(layer, mean)
    vectors = []
    for first in range(len(ids)):
        batch = TokenBatch(padded.roll(-first, 0), real.roll(-first, 0), embed)
        vectors.append(model.backbone.read(batch, [read])[read][0].cpu().numpy().astype(np.float64))
    return vectors


def prefix_tokens(model: LoadedModel, triple: Triple) -> tuple[list[list[int]], tuple[int, int]]:
    """Token ids of the three texts, and where the prefix's own tokens begin and end. Raises UnmaskError unless its border is exact."""
    found: list[list[int]] = []
    spans, border = set(), len(triple.prefix)
    for text in triple.texts:
        tokens = tokenize_bare(model.tokenizer, text)
        places = enumerate(zip(tokens.offsets, tokens.special, strict=True))
        own = [at for at, ((begin, end), special) in places if begin < border and end > begin and not special]
        if not own or tokens.offsets[own[-1]][1] > border:
            raise _inexact(triple, f"a token of '{text}' crosses its end")
        spans.add((own[0], own[-1] + 1))
        found.append(list(tokens.ids))
    stop = next(iter(spans))[1]
    if len(spans) > 1 or len({tuple(ids[:stop]) for ids in found}) > 1:
        raise _inexact(triple, "it is other tokens in one text than in another")
    return found, next(iter(spans))


def _inexact(triple: Triple, why: str) -> UnmaskError:
    return UnmaskError(
        f"{triple.where or 'A triple'}: the prefix '{triple.prefix}' has no exact border for this tokenizer: {why}."
    )
