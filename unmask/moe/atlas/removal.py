"""Removal: what the page says of an expert that was removed (`unmask probe experts`)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.moe.atlas.packing import packed
from unmask.moe.atlas.tally import Grouping, Tally
from unmask.moe.routing.expert_record import ExpertLosses, read_expert_losses


def removal(counts: Tally) -> dict[str, Any] | None:
    """For each slot, the change of the loss without its expert with the bounds of its interval, and the change by label; NaN if unknown.

    None if nothing was measured, and with a warning if it was measured on another model.
    """
    record = counts.record
    found = read_expert_losses(record.folder)
    if found is None:
        return None
    if found.weights != record.settings.weights:
        warnings.warn(
            f"The losses in '{record.folder}' are of a model with other weights, so they are not shown.", stacklevel=2
        )
        return None
    slots = _slots(counts, found)
    every = np.full((int(counts.starts[-1]), 3), np.nan, np.float32)
    for change, own in zip(found.changes, slots, strict=True):
        every[own] = (change.value, *(change.interval or (np.nan, np.nan)))
    return {
        "all": packed(every),
        "labels": [_by_value(found, shares.grouping, slots, len(every)) for shares in counts.groups],
        "texts": found.texts,
        "together": any(len(one.points) > 1 for one in found.removals),
    }


def _slots(counts: Tally, found: ExpertLosses) -> list[list[int]]:
    """For each removal, the slots of the page that it is about: one at each of its points that the page shows."""
    places = {point.name: place for place, point in enumerate(counts.record.points)}
    slots = []
    for one in found.removals:
        shown = (places.get(found.points[point].name) for point in one.points)
        here = (counts.slots(point) for point in shown if point is not None)
        slots.append([own.start + one.expert for own in here if one.expert < own.stop - own.start])
    return slots


def _by_value(found: ExpertLosses, grouping: Grouping, slots: list[list[int]], number: int) -> dict[str, str] | None:
    """The changes by the values of a label, in the page's order of values; None for a label without losses."""
    losses = found.labels.get(grouping.label.name) if grouping.label else None
    if losses is None:
        return None
    place = {value: at for at, value in enumerate(losses.values)}
    table: NDArray[np.float32] = np.full((number, len(grouping.values)), np.nan, np.float32)
    for changes, own in zip(losses.changes, slots, strict=True):
        table[own] = [changes[place[value]].value if value in place else np.nan for value in grouping.values]
    return packed(table)
