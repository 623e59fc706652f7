"""Routing records: a folder with the choice of every router for every token, and what reads it.

```
record.json                 what was recorded, of which model and texts (see `RecordSettings`)
parts/00000/texts.parquet   a row for each text: text, number of tokens, where each of them stands, its labels, the mean hidden state
                            of its last layer
parts/00000/tokens.parquet  a row for each token: text, position, token id, labels of tokens, and three columns for each routing point
measures.json               the measures, once they were computed
experts.json                the result of `unmask probe experts`, if it was run (see `unmask.moe.routing.expert_losses`)
```
`read_record(folder)` opens a finished record. A part holds whole texts, in order, and is sealed. Probabilities and gates are of 16 bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict

from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.records import Record
from unmask.io.seals import Damaged, check_seal, is_sealed
from unmask.moe.routing.text_bootstrap import Measure

RECORD, PARTS, TOKENS, TEXTS = "record.json", "parts", "tokens.parquet", "texts.parquet"
MEASURES, EXPERTS = "measures.json", "experts.json"


class Point(BaseModel):
    """A routing point. name: of the router's module. layer: 1..L. experts: their number; chosen: how many of them act on a token."""

    model_config = ConfigDict(frozen=True)

    name: str
    layer: int
    experts: int
    chosen: int


class Label(BaseModel):
    """A label of texts or of tokens. In the files it is the index of its value in `values`, and -1 for a token without one."""

    model_config = ConfigDict(frozen=True)

    name: str
    of: Literal["text", "token"]
    values: tuple[str, ...]


class RecordSettings(Record):
    """What a record is of.

    weights: the model's identity. data: a hash of texts and labels. tokens: that are recorded; in all texts there are `tokens_of_texts`.
    sample: the most tokens to record, drawn by the seed. experts: their names, if they have some. parts: number of parts, of at most
    `part_tokens` tokens each. dim: of the hidden states. provenance: all else that a result depends on.
    """

    format: Literal[1] = 1
    model: str
    weights: str
    attention: str
    dtype: str
    max_length: int
    batch_tokens: int
    data: str
    sources: tuple[str, ...]
    texts: int
    truncated: int
    tokens: int
    tokens_of_texts: int
    sample: int | None
    seed: int
    labels: tuple[Label, ...]
    experts: tuple[str, ...] | None
    points: tuple[Point, ...]
    dim: int
    part_tokens: int
    parts: int
    provenance: dict[str, Any]

    @property
    def digest(self) -> str:
        """A name for everything but the provenance. Each part carries it."""
        plain = self.model_dump(mode="json", exclude={"provenance", "model"})
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Choices:
    """What routers did with some tokens, token by token, texts one behind the other. The lists have an entry for each routing point read.

    texts: the number of the text. positions: in the text, from 0, special tokens before it included. ids: token ids. tags: labels
    of tokens. probabilities: softmax of the router's scores over the experts. chosen: the experts that act, strongest
    first; -1 for none. gates: how strongly these act.
    """

    texts: Int[NDArray[Any], " token"]
    positions: Int[NDArray[Any], " token"]
    ids: Int[NDArray[Any], " token"]
    tags: dict[str, NDArray[np.int16]]
    probabilities: list[Float[NDArray[np.float16], "token _"]]
    chosen: list[Int[NDArray[np.int16], "token _"]]
    gates: list[Float[NDArray[np.float16], "token _"]]


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of a record. tokens: recorded tokens of each. labels: for each label of texts, the index of its value."""

    texts: list[str]
    tokens: Int[NDArray[Any], " text"]
    labels: dict[str, NDArray[np.int16]]


class RoutingRecord:
    """A finished record on disk."""

    def __init__(self, folder: Path, settings: RecordSettings) -> None:
        self.folder, self.settings = folder, settings

    @property
    def points(self) -> tuple[Point, ...]:
        """The routing points, in the order of the model."""
        return self.settings.points

    def batches(self) -> Iterator[Choices]:
        """Iterate over the choices at every routing point, in parts that fit in memory."""
        for part in range(self.settings.parts):
            yield self._choices([part], range(len(self.points)))

    def choices(self, points: Sequence[int] = ()) -> Choices:
        """The choices of every token at some routing points. 1 M tokens at a point of 16 experts take 50 MB."""
        return self._choices(range(self.settings.parts), points)

    @cached_property
    def texts(self) -> Texts:
        """The texts, with their labels."""
        names = [label.name for label in self.settings.labels if label.of == "text"]
        columns = ["text", "tokens", *(f"label_{name}" for name in names)]
        table = self._table(TEXTS, range(self.settings.parts), columns)
        labels = {name: _numbers(table, f"label_{name}") for name in names}
        return Texts(table["text"].to_pylist(), _numbers(table, "tokens"), labels)

    def hidden(self, numbers: Int[NDArray[Any], " text"]) -> Float[NDArray[np.float32], "text dim"]:
        """The mean state of the last layer over the tokens of some texts, by their ascending numbers."""
        rows, first = [], 0
        for part in range(self.settings.parts):
            states = _rows(self._table(TEXTS, [part], ["hidden"]), "hidden")
            rows.append(states[numbers[(numbers >= first) & (numbers < first + len(states))] - first])
            first += len(states)
        return np.concatenate(rows)

    def spans(self) -> list[Int[NDArray[np.int32], "_ 2"]]:
        """For each text, the characters [first, last) of each token that the model read, by position; empty for BOS."""
        column = self._table(TEXTS, range(self.settings.parts), ["spans"])["spans"].combine_chunks()
        flat, ends = column.values.to_numpy(), column.offsets.to_numpy()
        return [flat[first:last].reshape(-1, 2) for first, last in pairwise(ends)]

    def _table(self, name: str, parts: Sequence[int], columns: Sequence[str]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = [pq.read_table(part_folder(self.folder, part) / name, columns=list(columns)) for part in parts]
        return pa.concat_tables(tables)

    def _choices(self, parts: Sequence[int], points: Sequence[int]) -> Choices:
        tags = [label.name for label in self.settings.labels if label.of == "token"]
        lists = [[f"{kind}_{point}" for point in points] for kind in ("probabilities", "chosen", "gates")]
        columns = [
            "text",
            "position",
            "token",
            *(f"label_{name}" for name in tags),
            *(name for names in lists for name in names),
        ]
        table = self._table(TOKENS, parts, columns)
        texts, positions, ids = (_numbers(table, name) for name in ("text", "position", "token"))
        probabilities, selected, gates = ([_rows(table, name) for name in names] for names in lists)
        return Choices(
            texts=texts,
            positions=positions,
            ids=ids,
            tags={name: _numbers(table, f"label_{name}") for name in tags},
            probabilities=probabilities,
            chosen=selected,
            gates=gates,
        )


def read_record(folder: str | Path) -> RoutingRecord:
    """Open a finished record. Raises UnmaskError for a folder without one, for an unfinished one, and for a damaged file."""
    folder = Path(folder)
    settings = RecordSettings.read(folder / RECORD)
    if settings is None:
        raise UnmaskError(
            f"'{folder}' holds no routing record. `unmask probe routing -m MODEL -t TEXTS -o {folder}` writes one."
        )
    for part in range(settings.parts):
        if not is_whole(part_folder(folder, part), settings):
            why = (
                "damaged"
                if is_sealed(part_folder(folder, part))
                else f"not finished: {part} of {settings.parts} parts are there"
            )
            raise UnmaskError(f"The record in '{folder}' is {why}. Run the command that wrote it once more.")
    return RoutingRecord(folder, settings)


def part_folder(folder: Path, part: int) -> Path:
    """The folder of one part."""
    return folder / PARTS / f"{part:05d}"


def is_whole(part: Path, settings: RecordSettings) -> bool:
    """Whether a part is there, undamaged, and of this record."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not is_sealed(part):
            return False
        check_seal(part)
        metadata = pq.read_schema(part / TOKENS).metadata or {}
    except (Damaged, OSError, pa.ArrowException):
        return False
    return bool(metadata.get(b"unmask") == settings.digest.encode())


def write_part(
    scratch: Path,
    settings: RecordSettings,
    first_text: int,
    texts: Texts,
    spans: Sequence[Int[NDArray[Any], "_ 2"]],
    hidden: Float[NDArray[np.float32], "text dim"],
    choices: Choices,
) -> None:
    """Write the two tables of a part into a folder. spans: the characters of each token of each text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    points = range(len(settings.points))
    kinds: dict[str, Sequence[Any]] = {"probabilities": choices.probabilities, "chosen": choices.chosen, "gates": choices.gates}
    lists = {f"{kind}_{point}": _list_column(kinds[kind][point]) for point in points for kind in kinds}
    plain = {"text": choices.texts, "position": choices.positions, "token": choices.ids}
    tags = {f"label_{name}": values for name, values in choices.tags.items()}
    metadata = {b"unmask": settings.digest.encode()}
    pq.write_table(
        pa.table({**plain, **tags, **lists}).replace_schema_metadata(metadata),
        scratch / TOKENS,
        compression="zstd",
        use_dictionary=["text", "token", *(f"chosen_{point}.list.element" for point in points)],
        use_byte_stream_split=[f"{kind}_{point}.list.element" for kind in ("probabilities", "gates") for point in points],
    )
    columns = {
        "number": np.arange(first_text, first_text + len(texts.texts), dtype=np.int32),
        "text": pa.array(texts.texts, pa.string()),
        "tokens": texts.tokens,
        "spans": pa.array([of_text.reshape(-1).astype(np.int32) for of_text in spans], pa.list_(pa.int32())),
        **{f"label_{name}": values for name, values in texts.labels.items()},
        "hidden": _list_column(hidden),
    }
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), scratch / TEXTS, compression="zstd")


def _list_column(values: NDArray[Any]) -> Any:
    import pyarrow as pa

    flat = np.ascontiguousarray(values).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), values.shape[1])


def _numbers(table: Any, column: str) -> NDArray[Any]:
    return np.asarray(table[column].to_numpy())


def _rows(table: Any, column: str) -> NDArray[Any]:
    values = table[column].combine_chunks()
    return np.asarray(values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), values.type.list_size))


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
    loss: tuple[Measure, ...]
    changes: tuple[tuple[Measure, ...], ...]


class ExpertLosses(Record):
    """What an ablation of experts found.

    weights: the identity of the model. points: the routing points. experts: names of the experts, if they have some. texts, tokens: that
    were read; left_out: texts of one token, which have no loss. loss: nats per token with all experts, mean over texts. changes: of the
    loss, for each removal. labels: the same by label.
    """

    format: Literal[3] = 3
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
    loss: Measure
    removals: tuple[Removal, ...]
    changes: tuple[Measure, ...]
    labels: dict[str, LabelLosses]
    provenance: dict[str, Any]


def read_expert_losses(folder: Path) -> ExpertLosses | None:
    """What `experts.json` of a folder holds; None without it, and with a warning if it is damaged."""
    return ExpertLosses.read(folder / EXPERTS)
