"""Won pairs: which pairs of texts does one design rank right and another wrong?

A design ranks the pairs of a set by similarity; humans rank them by score. A design's error on a pair is the distance of the two ranks
divided by the number of pairs: 0 for the right rank, near 1 for the wrong end. Equal gold scores share their mean rank. MoEE (arXiv
2410.10814, section 3.5) shows such pairs: it says that hidden states win where texts differ on the surface only, and routing weights on
paraphrase and synonymy. Extreme pairs exist between any two designs, even equally good ones. So the probe also tests whether margins lean
to one side (Wilcoxon's signed-rank test), and correlates them with properties of the pairs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.designs.design import Design
from unmask.encoding.encoder import Encoder
from unmask.errors import UnmaskError
from unmask.probing.inputs import Pair, ProbeResult, fingerprint_of_pairs, pair_cosines
from unmask.statistics.bootstrap import interval
from unmask.statistics.correlations import RankTable, codes_of, correlations, ranks_of, resampled
from unmask.statistics.intervals import Estimate

_FEWEST = 10
_WORD = re.compile(r"\w+")
Column = NDArray[np.float64]


@dataclass(frozen=True)
class WonPair:
    """A pair, its ranks from 0 (least similar) to 1 by gold and by both designs, and the margin of the first design (below 0: it loses)."""

    first: str
    second: str
    score: float
    gold_rank: float
    ranks: tuple[float, float]
    margin: float


@dataclass(frozen=True)
class WonPairs(ProbeResult):
    """The pairs on which two designs differ. A margin is the second design's error minus the first's: above 0 the first design wins.

    spearman: of each design with gold; errors: of each design on every pair; margin: the mean margin; wins: the numbers of pairs that the
    first and the second design win; p: of the hypothesis that margins are symmetric around 0 (Wilcoxon signed-rank, two-sided, margins of
    0 dropped); goes_with: Spearman of the margin with the pair's gold score, its shared words and its length; first, second: the pairs
    with the largest margins for each design. Intervals are 95 % by bootstrap over pairs; each resample is ranked again.
    """

    designs: tuple[str, str]
    spearman: tuple[Estimate, Estimate]
    difference: Estimate
    margin: Estimate
    wins: tuple[int, int]
    p: float
    goes_with: dict[str, Estimate]
    first: tuple[WonPair, ...]
    second: tuple[WonPair, ...]
    errors: tuple[tuple[float, ...], tuple[float, ...]]
    pairs: int
    data: str
    provenance: dict[str, Any]


def rank_errors(ranks: RankTable, n: int) -> NDArray[np.float64]:
    """Distance of each row's ranks to the ranks of the last row, divided by n; shape (reading, item), without the last row."""
    return np.asarray(np.abs(ranks[:-1] - ranks[-1]) / n, np.float64)


def shared_words(first: str, second: str) -> float:
    """Words that both texts have over words that at least one has, ignoring case (Jaccard); 0 without words."""
    first_words, second_words = (set(_WORD.findall(text.lower())) for text in (first, second))
    return len(first_words & second_words) / len(first_words | second_words) if first_words | second_words else 0.0


def compare_ranks(
    first: Column, second: Column, gold: Column, properties: dict[str, Column], seed: int = 0
) -> dict[str, Estimate]:
    """Spearman of both with gold, their difference, the mean margin, and its correlation with each property; with intervals."""
    codes = codes_of(np.stack([first, second, gold], axis=1))

    def measure(counts: NDArray[np.int64]) -> dict[str, float]:
        ranks = ranks_of(codes, counts)
        table, errors = correlations(ranks, counts), rank_errors(ranks, int(counts.sum()))
        margins = errors[1] - errors[0]
        along = codes_of(np.column_stack([margins, *properties.values()]))
        with_properties = correlations(ranks_of(along, counts), counts)[0, 1:]
        values = {"first": table[0, 2], "second": table[1, 2], "difference": table[0, 2] - table[1, 2]}
        return (
            values
            | {"margin": float(np.average(margins, weights=counts))}
            | dict(zip(properties, with_properties, strict=True))
        )

    full_sample = measure(np.ones(len(gold), np.int64))
    samples = [measure(counts) for counts in resampled(len(gold), seed)]
    return {name: Estimate(float(value), interval([sample[name] for sample in samples])) for name, value in full_sample.items()}


def probe_winners(
    encoder: Encoder,
    designs: tuple[Design, Design],
    pairs: Sequence[Pair],
    *,
    limit: int = 10,
    seed: int = 0,
) -> WonPairs:
    """Rank scored pairs by two designs, and return the `limit` pairs that each wins by the largest margins. Raises UnmaskError."""
    from scipy.stats import wilcoxon

    scores = [pair.score for pair in pairs if pair.score is not None]
    if len(scores) < max(len(pairs), _FEWEST) or len(set(scores)) < 2:
        raise UnmaskError(
            f"Comparing ranks needs at least {_FEWEST} pairs. Every pair needs a score, and the scores must differ."
        )
    similarities = pair_cosines(encoder, designs, pairs)
    gold = np.array(scores)
    properties = {
        "gold score": gold,
        "shared words": np.array([shared_words(pair.first, pair.second) for pair in pairs]),
        "length": np.array([float(len(pair.first) + len(pair.second)) for pair in pairs]),
    }
    estimates = compare_ranks(similarities[:, 0], similarities[:, 1], gold, properties, seed)
    ranks = ranks_of(codes_of(np.column_stack([similarities, gold])), np.ones(len(gold), np.int64))
    errors = rank_errors(ranks, len(gold))
    margins = errors[1] - errors[0]
    order = np.argsort(-margins, kind="stable")
    relative_ranks = (ranks - 1) / (len(gold) - 1)
    won = [
        WonPair(pair.first, pair.second, float(score), float(rank[2]), (float(rank[0]), float(rank[1])), float(margin))
        for pair, score, rank, margin in zip(pairs, gold, relative_ranks.T, margins, strict=True)
    ]
    return WonPairs(
        designs=(designs[0].name, designs[1].name),
        spearman=(estimates["first"], estimates["second"]),
        difference=estimates["difference"],
        margin=estimates["margin"],
        wins=(int((margins > 0).sum()), int((margins < 0).sum())),
        p=float(wilcoxon(margins, zero_method="wilcox").pvalue) if margins.any() else 1.0,
        goes_with={name: estimates[name] for name in properties},
        first=tuple(won[index] for index in order[:limit] if margins[index] > 0),
        second=tuple(won[index] for index in order[::-1][:limit] if margins[index] < 0),
        errors=(tuple(errors[0].tolist()), tuple(errors[1].tolist())),
        pairs=len(pairs),
        data=fingerprint_of_pairs(pairs),
        provenance=encoder.provenance
        | {"designs": [design.name for design in designs], "max_length": encoder.max_length, "seed": seed},
    )
