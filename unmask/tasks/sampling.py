"""Samples of a table: a part of its rows at random, or the beginning of an order that a seed draws."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

from unmask.io.rows import Row

Item = TypeVar("Item")

DOCUMENTS_PER_QUERY = 10
"""Documents that a part of a retrieval task keeps for each query, besides the relevant ones."""


def sampled(generator: random.Random, table: Sequence[Row], size: int) -> list[Row]:
    """At most `size` rows, drawn at random and kept in their order."""
    indices = sorted(generator.sample(range(len(table)), min(size, len(table))))
    return [table[index] for index in indices]


def random_subset(items: Sequence[Item], limit: int | None, seed: int = 0) -> list[Item]:
    """At most `limit` items, drawn at random and kept in their order; all of them without a limit."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[index] for index in np.sort(np.random.default_rng(seed).choice(len(items), limit, replace=False))]


def drawn_order(count: int, seed: int, classes: Sequence[Hashable] | None = None) -> list[int]:
    """Indices of `count` items in an order that the seed draws.

    classes: the class of each item. One item of every class comes first; then the classes follow in proportion to their sizes. So
    every beginning of the order that has room for all classes holds all of them.
    """
    order = random.Random(seed).sample(range(count), count)
    if classes is None:
        return order
    sizes, counts = Counter(classes), Counter[Hashable]()
    share: dict[int, float] = {}
    for index in order:
        share[index] = counts[classes[index]] / sizes[classes[index]]
        counts[classes[index]] += 1
    return sorted(order, key=lambda index: share[index])


def drawn_halves(count: int, seed: int, classes: Sequence[Hashable], *, odd_first: bool = False) -> tuple[list[int], list[int]]:
    """Indices of `count` items in two halves that a seed draws, each with half of every class.

    The odd item of a class goes to either half in turn; with `odd_first`, to the first half.
    """
    halves: tuple[list[int], list[int]] = ([], [])
    turn: dict[Hashable, int] = {}
    for index in random.Random(seed).sample(range(count), count):
        half = turn.setdefault(classes[index], 0 if odd_first else len(turn) % 2)
        halves[half].append(index)
        turn[classes[index]] = 1 - half
    return halves
