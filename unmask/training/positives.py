"""Positives: the texts that a data set itself names as right for an anchor. None of them may serve as a negative of that anchor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from unmask.training.folding import text_key

Positives = Mapping[str, frozenset[str]]
"""The key of an anchor -> the keys of its positives (see `text_key`)."""


def positives_of(pairs: Iterable[tuple[str, str]]) -> Positives:
    """All positives of every anchor of these pairs of anchor and positive."""
    found: dict[str, set[str]] = defaultdict(set)
    for anchor, positive in pairs:
        found[text_key(anchor)].add(text_key(positive))
    return {anchor: frozenset(texts) for anchor, texts in found.items()}


def several_positives(pairs: Iterable[tuple[str, str]]) -> Positives:
    """The same, of the anchors that have two positives or more. In most data sets these are few or none."""
    return {anchor: texts for anchor, texts in positives_of(pairs).items() if len(texts) > 1}
