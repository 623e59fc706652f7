"""The record of expert losses: `experts.json`, beside a routing record or alone. Reading it needs no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.io.records import Record
from unmask.moe.routing.record import EXPERTS, Point
from unmask.moe.routing.statistics.text_bootstrap import Measured


@dataclass(frozen=True)
class Removal:
    """An expert that is removed, and the routing points at which it is."""

    points: tuple[int, ...]
    expert: int


@dataclass(frozen=True)
class LabelLosses:
    """Losses of texts with one label, in nats per token: the mean over the texts of each value.

    loss: with all experts. changes: for each removal, its change for each value, paired by text. Intervals are by bootstrap over texts.
    """

    values: tuple[str, ...]
    loss: tuple[Measured, ...]
    changes: tuple[tuple[Measured, ...], ...]


@dataclass(frozen=True)
class LayerDifference:
    """The experts of one routing point. cosine, cka: of their outputs on the same tokens; 1 for copies. cka is None for one text."""

    point: str
    cosine: Measured
    cka: Measured | None


@dataclass(frozen=True)
class OutputDifferences:
    """How the outputs of experts differ on the same tokens: means over routing points, and each point's own values.

    Intervals are over texts: of the cosine by bootstrap, of CKA by jackknife (`unmask.statistics.intervals`).
    """

    cosine: Measured
    cka: Measured | None
    points: tuple[LayerDifference, ...]


class ExpertLosses(Record):
    """What an ablation of experts found.

    weights: the identity of the model. points: the routing points. experts: names of the experts, if they have some. texts, tokens: that
    were read; left_out: texts of one token, which have no loss. loss: nats per token with all experts, mean over texts. changes: of the
    loss, for each removal. labels: the same by label. differences: of the experts' outputs, for a native mixture whose experts can be
    called one by one. overlaps: of the directions that LoRA experts write to, by linear map; weights alone, so without intervals.
    """

    format: Literal[2] = 2
    model: str
    weights: str
    dtype: str
    max_length: int
    seed: int
    sources: tuple[str, ...]
    texts: int
    tokens: int
    left_out: int
    points: tuple[Point, ...]
    experts: tuple[str, ...] | None
    loss: Measured
    removals: tuple[Removal, ...]
    changes: tuple[Measured, ...]
    labels: dict[str, LabelLosses]
    differences: OutputDifferences | None
    overlaps: dict[str, float]
    provenance: dict[str, Any]


def read_expert_losses(folder: Path) -> ExpertLosses | None:
    """What `experts.json` of a folder holds; None without it, and with a warning if it is damaged."""
    return ExpertLosses.read(folder / EXPERTS)
