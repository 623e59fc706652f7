"""Aggregate: from a routing record to the data of its page, which is small whatever the size of the record.

Arrays are packed into the JSON as base64; the page's `unpack` reads them.
"""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt

from unmask.io.array_types import NDArray
from unmask.io.terminal import visible
from unmask.moe.atlas.maps import NEIGHBOURS, same_label, shared_neighbours, text_map
from unmask.moe.atlas.tally import TOP, Grouping, Shares, Tally, tally
from unmask.moe.routing.record import ExpertLosses, Point, RoutingRecord, read_expert_losses
from unmask.statistics.intervals import Bounds

_KINDS = {"uint8": "u8", "uint16": "u16", "uint32": "u32", "float32": "f32"}
NONE16, NONE32 = 2**16 - 1, 2**32 - 1
"""Markers of "none"."""


def packed(values: NDArray[Any]) -> dict[str, str]:
    """An array as JSON: its type and its bytes in base64, little endian, row by row."""
    plain = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return {"type": _KINDS[values.dtype.name], "data": base64.b64encode(plain.tobytes()).decode("ascii")}


def quantized_shares(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Shares from 0 to 1 in 16 bits, rounded to 1/65535."""
    return np.asarray(np.rint(np.clip(values, 0, 1) * NONE16), np.uint16)


def as_script(content: Any) -> str:
    r"""JSON that may stand inside a `<script>` element: no `<` can end it. Nothing in its strings is hidden or turns their direction."""
    text = json.dumps(_seen(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _seen(content: Any) -> Any:
    if isinstance(content, str):
        return visible(content, keep="\n\t")
    if isinstance(content, dict):
        return {key: _seen(value) for key, value in content.items()}
    return [_seen(value) for value in content] if isinstance(content, (list, tuple)) else content


INSIDE = "·"
"""Precedes a token that continues a word."""
_BLANKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "⏎"}


def named_ids(tally: Tally, texts: Sequence[str], spans: Sequence[NDArray[Any]]) -> tuple[list[str], NDArray[np.int64]]:
    """A name for each token id of a record, from its first occurrence; and the index of each token's id in the names."""
    _, first_rows, codes = np.unique(tally.ids, return_index=True, return_inverse=True)
    names = []
    for token in first_rows:
        text, position = int(tally.texts[token]), int(tally.positions[token])
        names.append(token_name(texts[text], *(int(bound) for bound in spans[text][position])))
    return names, codes.reshape(-1)


def token_name(text: str, first: int, last: int) -> str:
    """What the characters [first, last) of a text are called: blanks by signs, and a piece inside a word with a dot before it."""
    piece = text[first:last]
    if not piece.strip():
        return "".join(_BLANKS.get(blank, "␣") for blank in piece) or "∅"
    inside = first > 0 and piece[0].isalnum() and text[first - 1].isalnum()
    return (INSIDE if inside else "") + piece.strip()


def pieces(text: str, spans: NDArray[Any], positions: NDArray[Any], complete: bool) -> list[str]:
    """A text split at its recorded tokens: the text before each, the token itself, and finally the rest.

    A token that shares a character with the one before it (a part of an emoji, say) is empty. whole: whether the rest is shown.
    """
    parts, cursor = [], 0
    for position in positions:
        first, last = (int(bound) for bound in spans[position])
        first = max(first, cursor)
        parts += [text[cursor:first], text[first:last]]
        cursor = max(cursor, last)
    return [*parts, text[cursor:] if complete else ""]


WORDS, PARTNERS, EXAMPLES = 6, 3, 2
SEEN = 3
"""How often a word must choose an expert to be listed for it."""


@dataclass(frozen=True, eq=False)
class Words:
    """The words of each slot, strongest first. place: in `names`, or 2^32 - 1 for none. lift: p(expert given word) / p(expert)."""

    names: list[str]
    place: UInt[NDArray[np.uint32], "slot word"]
    count: UInt[NDArray[np.uint32], "slot word"]
    lift: Float[NDArray[np.float32], "slot word"]


def words(tally: Tally, names: Sequence[str], codes: NDArray[np.int64]) -> Words:
    """The token ids that choose an expert first more often than its load explains, by count x log lift. codes: of each token's id.

    The lift alone would list the rarest words: a word seen once has the largest lift.
    """
    totals = np.bincount(codes, minlength=len(names))
    frequent = np.flatnonzero(totals >= SEEN)
    row_of = np.full(len(names), -1)
    row_of[frequent] = np.arange(len(frequent))
    is_frequent = row_of[codes] >= 0
    slots = int(tally.starts[-1])
    index = np.full((slots, WORDS), NONE32, np.uint32)
    count, lift = np.zeros((slots, WORDS), np.uint32), np.zeros((slots, WORDS), np.float32)
    for point in range(tally.first.shape[1]):
        point_slots, first = tally.slots(point), tally.first[:, point].astype(np.int64)
        experts = point_slots.stop - point_slots.start
        flat = row_of[codes[is_frequent]] * experts + first[is_frequent]
        table = np.bincount(flat, minlength=len(frequent) * experts).reshape(len(frequent), experts)
        load = np.bincount(first, minlength=experts) / len(first)
        with np.errstate(divide="ignore", invalid="ignore"):
            lifts = table / (totals[frequent][:, None] * load)
            score = np.where((table >= SEEN) & (lifts > 1), table * np.log(lifts), 0.0)
        best = np.argsort(-score, axis=0, kind="stable")[:WORDS]
        for rank, row in enumerate(best):
            good = score[row, np.arange(experts)] > 0
            index[point_slots, rank] = np.where(good, frequent[row], NONE32)
            count[point_slots, rank] = np.where(good, table[row, np.arange(experts)], 0)
            lift[point_slots, rank] = np.where(good, lifts[row, np.arange(experts)], 0)
    used, inverse = np.unique(index, return_inverse=True)
    used_codes = used[used != NONE32]
    short = np.append(np.arange(len(used_codes)), NONE32)[inverse].reshape(index.shape).astype(np.uint32)
    return Words([names[code] for code in used_codes], short, count, lift)


def partners(tally: Tally) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """The experts that act on the same tokens as each slot, most often first, and how often they do. None: 2^16 - 1."""
    slots = int(tally.starts[-1])
    partner, rate = np.full((slots, PARTNERS), NONE16, np.uint16), np.zeros((slots, PARTNERS))
    for point, pairs in enumerate(tally.pairs):
        own_slots, size = tally.slots(point), min(PARTNERS, len(pairs) - 1)
        alone = np.diagonal(pairs)
        rates = np.divide(pairs, alone[:, None], out=np.zeros_like(pairs), where=alone[:, None] > 0)
        np.fill_diagonal(rates, -1)
        best = np.argsort(-rates, axis=1, kind="stable")[:, :size]
        best_rates = np.take_along_axis(rates, best, axis=1)
        partner[own_slots, :size] = np.where(best_rates > 0, best, NONE16)
        rate[own_slots, :size] = np.maximum(best_rates, 0)
    return partner, rate


def examples(tally: Tally) -> UInt[NDArray[np.uint32], "slot example"]:
    """Rows of shown tokens at which each slot is chosen first and surest, from different texts. None: 2^32 - 1."""
    owner = np.zeros(len(tally.top), np.int64)
    for text, rows_of_text in tally.shown.items():
        owner[rows_of_text.start : rows_of_text.stop] = text
    rows_of_slot = np.full((int(tally.starts[-1]), EXAMPLES), NONE32, np.uint32)
    for point in range(tally.first.shape[1]):
        first, sure = tally.top[:, point, 0], tally.probabilities[:, point, 0]
        rows_of_expert: dict[int, list[int]] = {}
        for row in np.argsort(-sure, kind="stable").tolist():
            rows = rows_of_expert.setdefault(int(first[row]), [])
            if len(rows) < EXAMPLES and all(owner[row] != owner[earlier] for earlier in rows):
                rows.append(row)
        for expert, rows in rows_of_expert.items():
            rows_of_slot[tally.starts[point] + expert, : len(rows)] = rows
    return rows_of_slot


def removal(counts: Tally) -> dict[str, Any] | None:
    """For each slot, the change of the loss without its expert with the bounds of its interval, and the change by label; NaN if unknown.

    None if nothing was measured, and with a warning if it was measured on another model.
    """
    record = counts.record
    losses = read_expert_losses(record.folder)
    if losses is None:
        return None
    if losses.weights != record.settings.weights:
        warnings.warn(
            f"The losses in '{record.folder}' are of a model with other weights, so they are not shown.", stacklevel=2
        )
        return None
    slots = _slots(counts, losses)
    table = np.full((int(counts.starts[-1]), 3), np.nan, np.float32)
    for change, slots_of_removal in zip(losses.changes, slots, strict=True):
        table[slots_of_removal] = (change.value, *(change.interval or (np.nan, np.nan)))
    return {
        "all": packed(table),
        "labels": [_by_value(losses, shares.grouping, slots, len(table)) for shares in counts.groups],
        "texts": losses.texts,
        "together": any(len(entry.points) > 1 for entry in losses.removals),
    }


def _slots(counts: Tally, losses: ExpertLosses) -> list[list[int]]:
    """For each removal, the slots of the page that it is about: one at each of its points that the page shows."""
    point_index = {point.name: index for index, point in enumerate(counts.record.points)}
    slots = []
    for entry in losses.removals:
        indices = (point_index.get(losses.points[point].name) for point in entry.points)
        slices = (counts.slots(point) for point in indices if point is not None)
        slots.append([span.start + entry.expert for span in slices if entry.expert < span.stop - span.start])
    return slots


def _by_value(expert_losses: ExpertLosses, grouping: Grouping, slots: list[list[int]], number: int) -> dict[str, str] | None:
    """The changes by the values of a label, in the page's order of values; None for a label without losses."""
    losses = expert_losses.labels.get(grouping.label.name) if grouping.label else None
    if losses is None:
        return None
    column = {value: index for index, value in enumerate(losses.values)}
    table: NDArray[np.float32] = np.full((number, len(grouping.values)), np.nan, np.float32)
    for changes, slots_of_removal in zip(losses.changes, slots, strict=True):
        table[slots_of_removal] = [changes[column[value]].value if value in column else np.nan for value in grouping.values]
    return packed(table)


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
    mapped, displayed = choose_texts(recorded, len(record.points), seed)
    counts = tally(record, mapped, displayed)
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
    non_empty = np.flatnonzero(tokens > 0)
    order = np.random.default_rng(seed).permutation(non_empty)
    budget = _VALUES // points
    longest = int(np.clip(budget // _WANTED, _SHORTEST, _LONGEST))
    displayed: dict[int, int] = {}
    for text in order[:SHOWN]:
        size = min(int(tokens[text]), longest)
        if displayed and sum(displayed.values()) + size > budget:
            break
        displayed[int(text)] = size
    return np.sort(order[:MAPPED]), displayed


def point_names(points: tuple[Point, ...]) -> list[str]:
    """What routing points are called: their layer, and where a layer has several, the part of their module's name in which these differ."""
    layers = [point.layer for point in points]
    return [
        str(point.layer) if layers.count(point.layer) == 1 else f"{point.layer} {_own_part(point, points)}" for point in points
    ]


def _own_part(point: Point, points: tuple[Point, ...]) -> str:
    """The last part of a module's name that another point of the layer does not have; the whole name if there is none."""
    name_parts = [
        set(parts_of_other.name.split("."))
        for parts_of_other in points
        if parts_of_other.layer == point.layer and parts_of_other is not point
    ]
    parts = [part for part in point.name.split(".") if not any(part in parts_of_other for parts_of_other in name_parts)]
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
        "sure": packed(quantized_shares(sure)),
    }


def _flows(counts: Tally) -> list[dict[str, Any]]:
    """For each two routing points in a row, the most frequent pairs of first choices."""
    flows = []
    for point in range(counts.first.shape[1] - 1):
        source, target = (counts.slots(index) for index in (point, point + 1))
        size = target.stop - target.start
        codes = counts.first[:, point].astype(np.int64) * size + counts.first[:, point + 1]
        table = np.bincount(codes, minlength=(source.stop - source.start) * size)
        best = np.argsort(-table, kind="stable")[:FLOWS]
        best = best[table[best] > 0]
        flows.append(
            {
                "from": packed((best // size).astype(np.uint16)),
                "to": packed((best % size).astype(np.uint16)),
                "tokens": packed(table[best].astype(np.uint32)),
            }
        )
    return flows


def _texts_and_cards(counts: Tally) -> dict[str, Any]:
    spans, texts = counts.record.spans(), counts.record.texts
    names, codes = named_ids(counts, texts.texts, spans)
    of_experts = words(counts, names, codes)
    partner, rate = partners(counts)
    entries = []
    for text, rows in counts.shown.items():
        positions = counts.shown_positions[rows.start : rows.stop]
        complete = len(rows) == int(texts.tokens[text])
        entries.append(
            {
                "number": text,
                "parts": pieces(texts.texts[text], spans[text], positions, complete),
                "cut": not complete,
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
        "partners": {"place": packed(partner), "rate": packed(quantized_shares(rate))},
        "examples": packed(examples(counts)),
        "shown": entries,
        "top": packed(counts.top),
        "kept": TOP,
        "probabilities": packed(np.rint(255 * np.clip(counts.probabilities, 0, 1)).astype(np.uint8)),
    }


def _maps(counts: Tally) -> dict[str, Any] | None:
    """Both maps of the same texts; None for fewer than three texts, which have no shape."""
    if len(counts.mapped) < 3:
        return None
    record, displayed_index = counts.record, {text: index for index, text in enumerate(counts.shown)}
    hidden, routing = text_map(record.hidden(counts.mapped)), text_map(counts.routing)
    shared = shared_neighbours(hidden, routing)
    labels: list[dict[str, Any] | None] = []
    for shares in counts.groups:
        label = shares.grouping.label
        if label is None or label.of != "text":
            labels.append(None)
            continue
        codes = shares.grouping.place[record.texts.labels[label.name][counts.mapped]]
        agreements = {name: same_label(text_map_, codes) for name, text_map_ in (("hidden", hidden), ("routing", routing))}
        labels.append(
            {
                "codes": codes.tolist(),
                **{name: round(text_map_.value, 4) for name, text_map_ in agreements.items()},
                "intervals": {name: _bounds(text_map_.interval) for name, text_map_ in agreements.items()},
                "chance": round(agreements["hidden"].chance, 4),
            }
        )
    return {
        "texts": [_snippet(record.texts.texts[text]) for text in counts.mapped],
        "shown": [displayed_index.get(int(text), -1) for text in counts.mapped],
        "labels": labels,
        "hidden": packed(quantized_shares(hidden.places)),
        "routing": packed(quantized_shares(routing.places)),
        "explained": {"hidden": list(hidden.explained), "routing": list(routing.explained)},
        "neighbours": {
            "number": min(NEIGHBOURS, len(counts.mapped) - 1),
            "shared": round(shared.value, 4),
            "interval": _bounds(shared.interval),
            "chance": round(shared.chance, 4),
        },
    }


def _bounds(interval: Bounds | None) -> list[float] | None:
    return [round(bound, 4) for bound in interval] if interval else None


def _snippet(text: str) -> str:
    return text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"
