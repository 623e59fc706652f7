"""Aggregate: from a routing record to the data of its page, which is small whatever the size of the record.

A slot is one expert at one routing point. All tables have a column for each slot, point by point, so that a model of any number of
experts in each layer fits. Arrays are packed into the JSON as base64; the page's `unpack` reads them.
"""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt

from unmask.io.array_types import NDArray
from unmask.io.terminal import progress_bar, visible
from unmask.moe.routing.record import Choices, Label, Point, RoutingRecord, read_expert_losses

MOST_VALUES = 24
"""Most values of a label that are shown; the rarest are merged into `others`."""
OTHERS = "(others)"
TOP, WORDS, MIN_COUNT = 3, 6, 3
"""Experts shown for each token; words listed for each expert; how often a word must be routed to an expert to be listed for it."""
SHOWN = 300
"""Most texts that are shown token by token."""
_LONGEST, _SHORTEST, _WANTED = 200, 48, 100
_VALUES = 400_000
"""Tokens x routing points that are shown. With more, texts are cut, and then fewer are shown."""
_KINDS = {"uint8": "u8", "uint16": "u16", "uint32": "u32", "float32": "f32"}
NONE32 = 2**32 - 1
"""Marker of "none"."""


def pack(values: NDArray[Any]) -> dict[str, str]:
    """An array as JSON: its type and its bytes in base64, little endian, row by row."""
    plain = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return {"type": _KINDS[values.dtype.name], "data": base64.b64encode(plain.tobytes()).decode("ascii")}


def as_script(content: Any) -> str:
    r"""JSON that may stand inside a `<script>` element: no `<` can end it. Nothing in its strings is hidden or turns their direction."""
    text = json.dumps(_with_visible_controls(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _with_visible_controls(content: Any) -> Any:
    if isinstance(content, str):
        return visible(content, keep="\n\t")
    if isinstance(content, dict):
        return {key: _with_visible_controls(value) for key, value in content.items()}
    return [_with_visible_controls(value) for value in content] if isinstance(content, (list, tuple)) else content


INSIDE = "·"
"""Precedes a token that continues a word."""
_BLANKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "⏎"}


def token_name(text: str, first: int, last: int) -> str:
    """What the characters [first, last) of a text are called: blanks by signs, and a piece inside a word with a dot before it."""
    piece = text[first:last]
    if not piece.strip():
        return "".join(_BLANKS.get(blank, "␣") for blank in piece) or "∅"
    inside = first > 0 and piece[0].isalnum() and text[first - 1].isalnum()
    return (INSIDE if inside else "") + piece.strip()


def pieces(text: str, spans: NDArray[Any], positions: NDArray[Any], complete: bool) -> list[str]:
    """A text split at its recorded tokens: the text before each, the token itself, and finally the rest if it is shown (`complete`).

    A token that shares a character with the one before it (a part of an emoji, say) is empty.
    """
    parts, cursor = [], 0
    for position in positions:
        first, last = (int(bound) for bound in spans[position])
        first = max(first, cursor)
        parts += [text[cursor:first], text[first:last]]
        cursor = max(cursor, last)
    return [*parts, text[cursor:] if complete else ""]


@dataclass(frozen=True, eq=False)
class Heat:
    """For each value of a label (None: all tokens) and each slot, how many tokens of the value choose it first.

    index: the row in `values` of each value of the label in the record. tokens: the number of tokens of each value.
    """

    label: Label | None
    values: tuple[str, ...]
    index: NDArray[np.int64]
    tokens: Int[NDArray[np.int64], " value"]
    first: Float[NDArray[np.float64], "value slot"]

    @classmethod
    def of(cls, record: RoutingRecord, label: Label | None, slots: int) -> Heat:
        """Empty tables of all values of a label, or of the most frequent ones."""
        names = ("all",) if label is None else label.values
        retained = np.arange(len(names))
        if label is not None and len(names) > MOST_VALUES:
            of_text = label.of == "text"
            codes = record.texts.labels[label.name] if of_text else record.choices().tags[label.name]
            counts = np.bincount(codes[codes >= 0], minlength=len(names))
            retained = np.sort(np.argsort(-counts, kind="stable")[: MOST_VALUES - 1])
        index = np.full(len(names), len(retained), np.int64)
        index[retained] = np.arange(len(retained))
        values = tuple(names[value] for value in retained) + ((OTHERS,) if len(retained) < len(names) else ())
        return cls(label, values, index, np.zeros(len(values), np.int64), np.zeros((len(values), slots)))

    def codes(self, choices: Choices, labels: Mapping[str, NDArray[np.int16]]) -> NDArray[np.int64]:
        """The value of each token; -1 for none."""
        if self.label is None:
            return np.zeros(len(choices.texts), np.int64)
        if self.label.of == "text":
            return np.asarray(self.index[labels[self.label.name][choices.texts]])
        tags = choices.tags[self.label.name]
        return np.where(tags >= 0, self.index[tags], -1)

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return {
            "name": self.label.name if self.label else None,
            "of": self.label.of if self.label else None,
            "values": list(self.values),
            "tokens": self.tokens.tolist(),
            "first": pack(self.first.astype(np.uint32)),
        }


@dataclass(frozen=True, eq=False)
class RoutingCounts:
    """Counts of a record, from one reading.

    starts: the first slot of each routing point, and their number. first: the first choice of each token, in the order of the record.
    shown: for each text that is shown, its rows in `positions`, `top` and `probabilities`.
    """

    starts: NDArray[np.int64]
    heats: list[Heat]
    texts: Int[NDArray[np.int32], " token"]
    ids: Int[NDArray[np.int32], " token"]
    token_positions: Int[NDArray[np.int32], " token"]
    first: Int[NDArray[Any], "token point"]
    shown: dict[int, range]
    positions: Int[NDArray[np.int32], " row"]
    top: UInt[NDArray[np.uint16], "row point top"]
    probabilities: Float[NDArray[np.float32], "row point top"]

    def slots(self, point: int) -> slice:
        """The slots of a routing point."""
        return slice(int(self.starts[point]), int(self.starts[point + 1]))


def tally(record: RoutingRecord, displayed: Mapping[int, int]) -> RoutingCounts:
    """Read a record once, part by part. displayed: how many of its tokens are shown, for each text that is shown."""
    points = record.points
    starts = np.concatenate([[0], np.cumsum([point.experts for point in points])]).astype(np.int64)
    heats = [Heat.of(record, label, int(starts[-1])) for label in (None, *record.settings.labels)]
    rows_of_text: dict[int, range] = {}
    tokens, tops = [], []
    filled = 0
    with progress_bar("reading the record", record.settings.parts) as advance:
        for choices in record.batches():
            rows: list[int] = []
            for text, start in zip(*np.unique(choices.texts, return_index=True), strict=True):
                if size := displayed.get(int(text), 0):
                    rows_of_text[int(text)] = range(filled + len(rows), filled + len(rows) + size)
                    rows += range(start, start + size)
            filled += len(rows)
            codes = [heat.codes(choices, record.texts.labels) for heat in heats]
            for heat, code in zip(heats, codes, strict=True):
                np.add.at(heat.tokens, code[code >= 0], 1)
            firsts = np.empty((len(choices.texts), len(points)), np.int16)
            top = np.zeros((len(rows), len(points), TOP), np.uint16)
            probabilities = np.zeros((len(rows), len(points), TOP), np.float32)
            for point, (shares, selected) in enumerate(zip(choices.probabilities, choices.chosen, strict=True)):
                first = np.where(selected[:, 0] >= 0, selected[:, 0], shares.argmax(axis=1)).astype(np.int64)
                firsts[:, point] = first
                for heat, code in zip(heats, codes, strict=True):
                    labelled, shape = code >= 0, (len(heat.values), shares.shape[1])
                    counts = np.bincount(code[labelled] * shape[1] + first[labelled], minlength=shape[0] * shape[1])
                    heat.first[:, starts[point] : starts[point + 1]] += counts.reshape(shape)
                raised = shares[rows].astype(np.float32)  # the first choice before the most probable others
                np.put_along_axis(raised, first[rows, None], 2.0, axis=1)
                best = np.argsort(-raised, axis=1, kind="stable")[:, :TOP]
                top[:, point, : best.shape[1]] = best
                probabilities[:, point, : best.shape[1]] = np.take_along_axis(shares[rows], best, axis=1)
            tokens.append((choices.texts, choices.ids, choices.positions, firsts))
            tops.append((choices.positions[rows], top, probabilities))
            advance(1)
    texts, ids, token_positions, first = (np.concatenate(arrays) for arrays in zip(*tokens, strict=True))
    positions, top, probabilities = (np.concatenate(arrays) for arrays in zip(*tops, strict=True))
    return RoutingCounts(
        starts=starts,
        heats=heats,
        texts=texts,
        ids=ids,
        token_positions=token_positions,
        first=first,
        shown=rows_of_text,
        positions=positions,
        top=top,
        probabilities=probabilities,
    )


def aggregate(record: RoutingRecord, seed: int = 0) -> dict[str, Any]:
    """The data of a record's page, as JSON. Texts are drawn by the seed."""
    texts = record.texts
    displayed = choose_texts(texts.tokens, len(record.points), seed)
    counts, spans = tally(record, displayed), record.spans()
    displayed_texts = []
    for text, rows in counts.shown.items():
        complete = len(rows) == int(texts.tokens[text])
        codes = [
            int(heat.index[texts.labels[heat.label.name][text]]) if heat.label and heat.label.of == "text" else -1
            for heat in counts.heats[1:]
        ]
        parts = pieces(texts.texts[text], spans[text], counts.positions[rows.start : rows.stop], complete)
        displayed_texts.append({"number": text, "parts": parts, "cut": not complete, "labels": codes})
    return {
        "model": record.settings.model,
        "points": [
            {"name": name, "layer": point.layer, "experts": point.experts, "chosen": point.chosen}
            for name, point in zip(point_names(record.points), record.points, strict=True)
        ],
        "names": list(record.settings.experts or ()),
        "tokens": len(counts.texts),
        "texts": int((texts.tokens > 0).sum()),
        "heat": [heat.as_json() for heat in counts.heats],
        "words": words(counts, texts.texts, spans),
        "shown": displayed_texts,
        "top": pack(counts.top),
        "kept": TOP,
        "probabilities": pack(np.rint(255 * np.clip(counts.probabilities, 0, 1)).astype(np.uint8)),
        "removal": removal(record, counts),
    }


def choose_texts(tokens: NDArray[Any], points: int, seed: int) -> dict[int, int]:
    """Texts to show with the number of their tokens to show. tokens: number of recorded tokens of each text."""
    budget = _VALUES // points
    longest = int(np.clip(budget // _WANTED, _SHORTEST, _LONGEST))
    displayed: dict[int, int] = {}
    for text in np.random.default_rng(seed).permutation(np.flatnonzero(tokens > 0))[:SHOWN]:
        size = min(int(tokens[text]), longest)
        if displayed and sum(displayed.values()) + size > budget:
            break
        displayed[int(text)] = size
    return displayed


def point_names(points: Sequence[Point]) -> list[str]:
    """What routing points are called: their layer, and where a layer has several, the last part of their module's name that differs."""
    names = []
    for point in points:
        siblings = [sibling.name.split(".") for sibling in points if sibling.layer == point.layer and sibling is not point]
        distinct = [part for part in point.name.split(".") if not any(part in parts for parts in siblings)]
        names.append(f"{point.layer} {distinct[-1] if distinct else point.name}" if siblings else str(point.layer))
    return names


def words(counts: RoutingCounts, texts: Sequence[str], spans: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """For each slot, the token ids that choose it first more often than its load explains, strongest first by count x log lift.

    The lift is p(expert given word) / p(expert). Alone it would list the rarest words: a word seen once has the largest lift. A word is
    named after its first occurrence. `place` holds indices into `names`; 2^32 - 1 means empty.
    """
    _, occurrences, codes = np.unique(counts.ids, return_index=True, return_inverse=True)
    totals = np.bincount(codes)
    frequent = np.flatnonzero(totals >= MIN_COUNT)
    row_of = np.full(len(totals), -1)
    row_of[frequent] = np.arange(len(frequent))
    is_frequent = row_of[codes] >= 0
    slots = int(counts.starts[-1])
    index = np.full((slots, WORDS), NONE32, np.uint32)
    count, lift = np.zeros((slots, WORDS), np.uint32), np.zeros((slots, WORDS), np.float32)
    for point in range(counts.first.shape[1]):
        point_slots, first = counts.slots(point), counts.first[:, point].astype(np.int64)
        experts = point_slots.stop - point_slots.start
        flat = row_of[codes[is_frequent]] * experts + first[is_frequent]
        table = np.bincount(flat, minlength=len(frequent) * experts).reshape(len(frequent), experts)
        load = np.bincount(first, minlength=experts) / len(first)
        with np.errstate(divide="ignore", invalid="ignore"):
            lifts = table / (totals[frequent][:, None] * load)
            score = np.where((table >= MIN_COUNT) & (lifts > 1), table * np.log(lifts), 0.0)
        for rank, row in enumerate(np.argsort(-score, axis=0, kind="stable")[:WORDS]):
            best = (row, np.arange(experts))
            good = score[best] > 0
            index[point_slots, rank] = np.where(good, frequent[row], NONE32)
            count[point_slots, rank] = np.where(good, table[best], 0)
            lift[point_slots, rank] = np.where(good, lifts[best], 0)
    used = np.unique(index[index != NONE32])
    names = []
    for token in occurrences[used]:
        text = int(counts.texts[token])
        names.append(token_name(texts[text], *map(int, spans[text][counts.token_positions[token]])))
    name_index = np.where(index == NONE32, NONE32, np.searchsorted(used, index)).astype(np.uint32)
    return {"names": names, "place": pack(name_index), "count": pack(count), "lift": pack(lift)}


def removal(record: RoutingRecord, counts: RoutingCounts) -> dict[str, Any] | None:
    """For each slot, the change of the loss without its expert with the bounds of its interval, and the change by label; NaN if unknown.

    None if nothing was measured, and with a warning if it was measured on another model.
    """
    losses = read_expert_losses(record.folder)
    if losses is None:
        return None
    if losses.weights != record.settings.weights:
        warnings.warn(
            f"The losses in '{record.folder}' are of a model with other weights, so they are not shown.", stacklevel=2
        )
        return None
    start_of = {point.name: int(start) for point, start in zip(record.points, counts.starts, strict=False)}
    names = [losses.points[point].name for point in range(len(losses.points))]
    slots = [
        [start_of[names[point]] + entry.expert for point in entry.points if names[point] in start_of]
        for entry in losses.removals
    ]

    def table(rows: Sequence[Sequence[float]]) -> dict[str, str]:
        filled: NDArray[np.float32] = np.full((int(counts.starts[-1]), len(rows[0])), np.nan, np.float32)
        for row, slots_of_removal in zip(rows, slots, strict=True):
            filled[slots_of_removal] = row
        return pack(filled)

    by_label: list[dict[str, str] | None] = []
    for heat in counts.heats[1:]:
        of_label = losses.labels.get(heat.label.name) if heat.label else None
        changes = [dict(zip(of_label.values, row, strict=True)) for row in of_label.changes] if of_label else []
        rows = [[row[value].value if value in row else np.nan for value in heat.values] for row in changes]
        by_label.append(table(rows) if rows else None)
    return {
        "all": table([(change.value, *(change.interval or (np.nan, np.nan))) for change in losses.changes]),
        "labels": by_label,
        "texts": losses.texts,
        "together": any(len(entry.points) > 1 for entry in losses.removals),
    }
