"""Prefix gaps after each stage of training, such as base model, MNTP and SimCSE, on the same triples.

LLM2Vec (arXiv 2404.05961, section 4.1 and figure 4) shows that the gap opens with training: a base model that was only made bidirectional
hardly uses what follows a prefix. All stages see the same triples, so each stage is compared with the one before it triple by triple.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from unmask.designs.design import ATTENTIONS, Attention
from unmask.errors import UnmaskError
from unmask.probing.prefixes import PrefixGap
from unmask.statistics.ratios import Difference, Ratio, difference


@dataclass(frozen=True)
class StageGap:
    """The gap of one stage. name: as the user gave it; found: the gap; step: the change from the previous stage, None for the first."""

    name: str
    found: PrefixGap
    step: Difference | None


@dataclass(frozen=True)
class StageGaps:
    """The gaps of several models on the same triples, in the order in which the user gave them."""

    stages: tuple[StageGap, ...]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def compare_stages(names: Sequence[str], gaps: Sequence[PrefixGap]) -> StageGaps:
    """Compare each stage with the one before it. Raises UnmaskError for gaps that were measured on different triples."""
    if len({gap.data for gap in gaps}) > 1:
        raise UnmaskError("These gaps were measured on different triples. Measure all of them on the same triples.")
    steps = [None, *(_step(later, earlier) for earlier, later in pairwise(gaps))]
    return StageGaps(tuple(StageGap(*stage) for stage in zip(names, gaps, steps, strict=True)))


def attention_in(name: str) -> tuple[str, Attention | None]:
    """Split `MODEL:causal` or `MODEL:bidirectional` into model and attention. Any other name is a model without attention."""
    model, mark, attention = name.rpartition(":")
    return (model, attention) if mark and attention in ATTENTIONS else (name, None)  # type: ignore[return-value]


def _step(later: PrefixGap, earlier: PrefixGap) -> Difference:
    after, before = (Ratio(np.array(stage.gaps), np.ones(len(stage.gaps))) for stage in (later, earlier))
    return difference("gap", after, before)
