"""Aggregate: from a routing record to the data of its page: small, whatever the size of the record."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.moe.atlas import packing
from unmask.moe.atlas.experts import examples, partners, words
from unmask.moe.atlas.maps import NEIGHBOURS, same_label, shared_neighbours, text_map
from unmask.moe.atlas.names import named_ids, pieces
from unmask.moe.atlas.packing import packed
from unmask.moe.atlas.removal import removal
from unmask.moe.atlas.tally import TOP, Shares, Tally, tally
from unmask.moe.routing.record import Point, RoutingRecord
from unmask.statistics.intervals import Bounds

MAPPED, SHOWN = 1000, 300
"""Most texts on the map, and most texts that are shown token by token."""
FLOWS = 300
"""Flows that are kept between two routing points, strongest first."""
_LONGEST, _SHORTEST, _WANTED = 200, 48, 100
_VALUES = 400_000
"""Tokens x routing points that are shown. With more, texts are cut, and then fewer are shown."""
_SNIPPET = 140


def aggregate(record: RoutingRecord, seed: int = 0) -> dict[str, Any]:
    """The data of a record's page, as JSON. Texts are drawn by the seed."""
    recorded = record.texts.tokens
    mapped, shown = choose_texts(recorded, len(record.points), seed)
    counts = tally(record, mapped, shown)
    return {
        "model": record.settings.model,
        "points": [
            {"name": name, "layer": point.layer, "experts": point.experts, "chosen": point.chosen}
            for name, point in zip(point_names(record.points), record.points, strict=True)
        ],
        "names": list(record.settings.experts or ()),
        "tokens": len(counts.texts),
        "texts": int((recorded > 0).sum()),
        "data": record.settings.data,
        "heat": [_heat(shares) for shares in (counts.everything, *counts.groups)],
        "flows": _flows(counts),
        **_texts_and_cards(counts),
        "removal": removal(counts),
        "map": _maps(counts),
    }


def choose_texts(tokens: NDArray[Any], points: int, seed: int) -> tuple[NDArray[np.int64], dict[int, int]]:
    """Texts for the map, and texts to show with the number of their tokens to show. tokens: that are recorded of each text."""
    known = np.flatnonzero(tokens > 0)
    order = np.random.default_rng(seed).permutation(known)
    budget = _VALUES // points
    most = int(np.clip(budget // _WANTED, _SHORTEST, _LONGEST))
    shown: dict[int, int] = {}
    for text in order[:SHOWN]:
        size = min(int(tokens[text]), most)
        if shown and sum(shown.values()) + size > budget:
            break
        shown[int(text)] = size
    return np.sort(order[:MAPPED]), shown


def point_names(points: tuple[Point, ...]) -> list[str]:
    """What routing points are called: their layer, and where a layer has several, the part of their module's name in which these differ."""
    layers = [point.layer for point in points]
    return [
        str(point.layer) if layers.count(point.layer) == 1 else f"{point.layer} {_own_part(point, points)}" for point in points
    ]


def _own_part(point: Point, points: tuple[Point, ...]) -> str:
    """The last part of a module's name that another point of the layer does not have; the whole name if there is none."""
    others = [set(other.name.split(".")) for other in points if other.layer == point.layer and other is not point]
    parts = [part for part in point.name.split(".") if not any(part in other for other in others)]
    return parts[-1] if parts else point.name


def _heat(shares: Shares) -> dict[str, Any]:
    """One label: how many tokens of each value choose each slot first, and at all; and how sure they are, as shares of 65535."""
    label = shares.grouping.label
    sure = np.divide(shares.sure, shares.first, out=np.zeros_like(shares.sure), where=shares.first > 0)
    return {
        "name": label.name if label else None,
        "of": label.of if label else None,
        "values": list(shares.grouping.values),
        "tokens": shares.tokens.tolist(),
        "first": packed(shares.first.astype(np.uint32)),
        "load": packed(shares.load.astype(np.uint32)),
        "sure": packed(packing.shares(sure)),
    }


def _flows(counts: Tally) -> list[dict[str, Any]]:
    """For each two routing points in a row, the most frequent pairs of first choices."""
    found = []
    for point in range(counts.first.shape[1] - 1):
        here, after = (counts.slots(place) for place in (point, point + 1))
        size = after.stop - after.start
        codes = counts.first[:, point].astype(np.int64) * size + counts.first[:, point + 1]
        table = np.bincount(codes, minlength=(here.stop - here.start) * size)
        best = np.argsort(-table, kind="stable")[:FLOWS]
        best = best[table[best] > 0]
        found.append(
            {
                "from": packed((best // size).astype(np.uint16)),
                "to": packed((best % size).astype(np.uint16)),
                "tokens": packed(table[best].astype(np.uint32)),
            }
        )
    return found


def _texts_and_cards(counts: Tally) -> dict[str, Any]:
    spans, texts = counts.record.spans(), counts.record.texts
    names, codes = named_ids(counts, texts.texts, spans)
    of_experts = words(counts, names, codes)
    place, rate = partners(counts)
    shown = []
    for text, rows in counts.shown.items():
        positions = counts.shown_positions[rows.start : rows.stop]
        whole = len(rows) == int(texts.tokens[text])
        shown.append(
            {
                "number": text,
                "parts": pieces(texts.texts[text], spans[text], positions, whole),
                "cut": not whole,
                "labels": [
                    int(shares.grouping.place[texts.labels[shares.grouping.label.name][text]])
                    if shares.grouping.label and shares.grouping.label.of == "text"
                    else -1
                    for shares in counts.groups
                ],
            }
        )
    return {
        "words": {
            "names": of_experts.names,
            "place": packed(of_experts.place),
            "count": packed(of_experts.count),
            "lift": packed(of_experts.lift),
        },
        "partners": {"place": packed(place), "rate": packed(packing.shares(rate))},
        "examples": packed(examples(counts)),
        "shown": shown,
        "top": packed(counts.top),
        "kept": TOP,
        "probabilities": packed(np.rint(255 * np.clip(counts.probabilities, 0, 1)).astype(np.uint8)),
    }


def _maps(counts: Tally) -> dict[str, Any] | None:
    """Both maps of the same texts; None for fewer than three texts, which have no shape."""
    if len(counts.mapped) < 3:
        return None
    record, place = counts.record, {text: at for at, text in enumerate(counts.shown)}
    hidden, routing = text_map(record.hidden(counts.mapped)), text_map(counts.routing)
    together = shared_neighbours(hidden, routing)
    labels: list[dict[str, Any] | None] = []
    for shares in counts.groups:
        label = shares.grouping.label
        if label is None or label.of != "text":
            labels.append(None)
            continue
        codes = shares.grouping.place[record.texts.labels[label.name][counts.mapped]]
        near = {name: same_label(own, codes) for name, own in (("hidden", hidden), ("routing", routing))}
        labels.append(
            {
                "codes": codes.tolist(),
                **{name: round(own.value, 4) for name, own in near.items()},
                "intervals": {name: _bounds(own.interval) for name, own in near.items()},
                "chance": round(near["hidden"].chance, 4),
            }
        )
    return {
        "texts": [_snippet(record.texts.texts[text]) for text in counts.mapped],
        "shown": [place.get(int(text), -1) for text in counts.mapped],
        "labels": labels,
        "hidden": packed(packing.shares(hidden.places)),
        "routing": packed(packing.shares(routing.places)),
        "explained": {"hidden": list(hidden.explained), "routing": list(routing.explained)},
        "neighbours": {
            "number": min(NEIGHBOURS, len(counts.mapped) - 1),
            "shared": round(together.value, 4),
            "interval": _bounds(together.interval),
            "chance": round(together.chance, 4),
        },
    }


def _bounds(interval: Bounds | None) -> list[float] | None:
    return [round(bound, 4) for bound in interval] if interval else None


def _snippet(text: str) -> str:
    return text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"
