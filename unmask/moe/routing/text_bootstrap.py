"""Text bootstrap: intervals of measures of tokens, by drawing whole texts.

Tokens of one text resemble each other, so an interval over tokens is far too narrow. Here texts are drawn with replacement. A resample is
a weight for each text: how often it was drawn. So a measure is a function of weights, and the measure itself has weight 1 for every text.

A measure that is above 0 by chance alone (information, for example) is also computed with permuted labels of texts. Its mean c is
subtracted, and the rest is rescaled: (value - c) / (1 - c), as for kappa and adjusted mutual information. It is 0 by chance, and 1 if
the routing determines the label. Subtraction alone would be wrong there: perfect routing of 24 texts of 4 domains would get 0.82.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray
from unmask.statistics.bootstrap import interval

RESAMPLES, SHUFFLES = 500, 100
_WEIGHTS_AT_ONCE = 2**22

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Weights of shape (resample, text) in, values of shape (resample, ...) out."""
Series = tuple[float, NDArray[np.float64], float]
"""A measure: its value, its resamples, and what chance gives."""


@dataclass(frozen=True)
class Draws:
    """How much is drawn: resamples of texts, fewer for measures that go through all tokens each time, and shuffles of labels."""

    resamples: int = RESAMPLES
    token_resamples: int = 100
    shuffles: int = SHUFFLES
    seed: int = 0


@dataclass(frozen=True)
class Measure:
    """A measure. value: as measured. chance: its mean if routing knew nothing of the labels. most: the largest possible value.

    interval: 95 %, of `corrected`; None if there is one text only.
    """

    value: float
    chance: float
    interval: tuple[float, float] | None
    most: float = 1.0

    @property
    def corrected(self) -> float:
        """The value without chance: 0 by chance, `most` at the most."""
        return without_chance(self.value, self.chance, self.most)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"corrected": self.corrected, **asdict(self)}


def without_chance(value: float, chance: float, maximum: float = 1.0) -> float:
    """(value - chance) / (maximum - chance) x maximum."""
    return (value - chance) * maximum / (maximum - chance) if maximum > chance else 0.0


def with_interval(
    value: float, samples: Float[NDArray[Any], " resample"], chance: float = 0.0, maximum: float = 1.0
) -> Measure:
    """A value with its interval. The samples are corrected like the value, and moved so that it is their mean.

    Drawing some texts twice raises what chance gives, so the plain percentiles of the samples lie too high.
    """
    samples = samples[~np.isnan(samples)]
    if len(samples) < 2 or np.isnan(value):
        return Measure(float(value), float(chance), None, maximum)
    stretch = maximum / (maximum - chance) if maximum > chance else 0.0
    low, high = interval(samples * stretch, around=without_chance(value, chance, maximum))
    return Measure(float(value), float(chance), (low, high), maximum)


def text_weights(
    texts: int, resamples: int, seed: int, strata: NDArray[np.int64] | None = None
) -> Iterator[NDArray[np.float64]]:
    """How often each text is drawn, block by block, shape (resample, text). strata: texts are drawn within each of these groups."""
    random = np.random.default_rng(seed)
    groups = [np.arange(texts)] if strata is None else [np.flatnonzero(strata == group) for group in np.unique(strata)]
    block_size = max(1, _WEIGHTS_AT_ONCE // max(1, texts))
    for start in range(0, resamples, block_size):
        block = np.zeros((min(block_size, resamples - start), texts))
        for group in groups:
            block[:, group] = random.multinomial(len(group), np.full(len(group), 1 / len(group)), size=len(block))
        yield block


def bootstrap_texts(
    statistic: Statistic, texts: int, *, resamples: int = RESAMPLES, seed: int = 0, strata: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """The statistic on every resample, shape (resample, ...). The same seed, texts and strata draw the same texts.

    With one text there is nothing to draw from: shape (0, ...).
    """
    if texts < 2:
        return statistic(np.ones((1, texts)))[:0]
    return np.concatenate([statistic(block) for block in text_weights(texts, resamples, seed, strata)])


def permute_labels(labels: NDArray[np.int64], shuffles: int = SHUFFLES, seed: int = 0) -> Iterator[NDArray[np.int64]]:
    """Random permutations of the labels of the texts."""
    random = np.random.default_rng([seed, 1])
    for _ in range(shuffles):
        yield random.permutation(labels)


def text_sums(values: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums over the tokens of each text. values: (token, ...), texts one behind the other. starts: the first token of each text."""
    return np.add.reduceat(values, starts, axis=0, dtype=np.float64)


def text_counts(codes: NDArray[np.int64], texts: NDArray[np.int64], number: int, size: int) -> NDArray[np.float64]:
    """How often each code (0 to size - 1) occurs in each text, shape (text, size). texts: the text of each token."""
    flat = np.bincount(texts * size + codes, minlength=number * size)
    return flat.reshape(number, size).astype(np.float64)


def mean_interval(values: Float[NDArray[np.float64], " text"], resamples: int = RESAMPLES, seed: int = 0) -> Measure:
    """The mean of a value of each text."""
    samples = bootstrap_texts(lambda weights: weights @ values / len(values), len(values), resamples=resamples, seed=seed)
    return with_interval(float(values.mean()), samples)


def mean_of(points: Sequence[Series], maximum: float = 1.0) -> Measure:
    """The mean of a measure over routing points, which have the same resamples of texts."""
    values, samples, chances = zip(*points, strict=True)
    return with_interval(float(np.mean(values)), np.mean(samples, axis=0), float(np.mean(chances)), maximum)
