"""Routing with a known answer: tokens of texts of several domains, and the experts that they choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXPERTS, DOMAINS = 4, 4


@dataclass(frozen=True)
class Routed:
    """first: the expert of each token; texts: its text; labels: the domain of each text."""

    first: NDArray[np.int64]
    texts: NDArray[np.int64]
    labels: NDArray[np.int64]

    @property
    def shares(self) -> NDArray[np.float64]:
        """(text, 1, expert)."""
        counts = np.zeros((len(self.labels), EXPERTS))
        np.add.at(counts, (self.texts, self.first), 1)
        return np.asarray((counts / counts.sum(axis=1, keepdims=True))[:, None, :])

    def with_first(self, first: Any) -> Routed:
        return Routed(np.asarray(first), self.texts, self.labels)


def routed(known: float = 0.0, texts: int = 40, length: int = 25, seed: int = 0) -> Routed:
    """A share `known` of the tokens goes to the expert of their domain, all others anywhere."""
    random = np.random.default_rng(seed)
    labels = np.arange(texts) % DOMAINS
    of_token = np.repeat(np.arange(texts), length)
    knows = random.random(len(of_token)) < known
    first = np.where(knows, labels[of_token] % EXPERTS, random.integers(EXPERTS, size=len(of_token)))
    return Routed(first, of_token, labels)


def collapsed(texts: int = 40) -> Routed:
    """Every token goes to expert 2."""
    made = routed(texts=texts)
    return made.with_first(np.full(len(made.first), 2))
