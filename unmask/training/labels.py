"""Texts with class labels as pairs: a text and another one of its label come together, and texts of other labels are pushed apart.

So does NV-Embed train on data of classification and clustering (arXiv 2405.17428). Each example knows the classes of its texts, and the
loss leaves out every candidate of the anchor's class.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.rows import Row
from unmask.tasks import columns
from unmask.training.data import (
    DataSet,
    DataSource,
    Example,
    data_set,
    pair_columns,
    pairs_of,
    read_table,
    text_of,
    unread_columns,
)


@dataclass(frozen=True)
class _Labelled:
    """A text with its label. row: its line in the file."""

    row: int
    text: str
    label: str


def read_related(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """The pairs or triples of a source; or pairs that are made of its texts with labels. Raises UnmaskError with file and line.

    A source has labels if the recipe names a column `label`, or if there are columns `text` and `label` and none of a pair, and it names no
    other column for the texts.
    """
    file, table = read_table(source, root)
    if _has_labels(source, file, table[0][1]):
        return _labelled_pairs(name, source, file, table, seed)
    return pairs_of(name, source, file, table, seed)


def _has_labels(source: DataSource, file: Path, row: Row) -> bool:
    if "label" in source.columns:
        return True
    if not {"text", "label"} <= row.keys() or pair_columns(row) is not None:
        return False
    if "text" in source.columns:  # its label may belong to a pair, such as entailment
        text = source.columns["text"]
        raise UnmaskError(
            f"{file}: the recipe names a column of texts but none of labels. If '{text}' belongs to a class in the column 'label', "
            f'name both: columns = {{text = "{text}", label = "label"}}.'
        )
    return pair_columns(dict.fromkeys(source.columns.get(column, column) for column in row)) is None


def _labelled_pairs(name: str, source: DataSource, file: Path, table: Sequence[tuple[int, Row]], seed: int) -> DataSet:
    """One example for each text: another text of its label, and texts of other labels, drawn by the seed.

    What is drawn for a text depends on the seed and on all texts, and not on their order. Left out and counted: repeated texts, texts
    with two labels, the only text of a label, and texts with too few others to be negatives.
    """
    skipped: Counter[str] = Counter()
    rows = _distinct(file, table, skipped)
    if len({row.label for row in rows}) == 1:
        raise UnmaskError(
            f"{file}: all texts have the label '{rows[0].label}'. Training on labels needs texts of two labels or more."
        )
    negative_count = 1 if source.negatives is None else source.negatives
    negatives = ["negative"] if negative_count == 1 else [f"negative_{number}" for number in range(1, negative_count + 1)]
    examples = list(_examples(name, rows, negative_count, seed, skipped))
    dataset = data_set(name, "pairs", ("anchor", "positive", *negatives), examples, source, seed, skipped, file)
    return replace(dataset, unread=unread_columns(source, table, ("text", "label")))


def _distinct(file: Path, table: Sequence[tuple[int, Row]], skipped: Counter[str]) -> list[_Labelled]:
    """The texts that have one label, each once."""
    of_text: dict[str, list[_Labelled]] = defaultdict(list)
    for line, row in table:
        text = text_of(file, line, row, "text").strip()
        label = columns.label(file, line, row, "label").strip()
        if not label:
            raise UnmaskError(f"{file}, line {line}, column 'label' is empty.")
        of_text[text].append(_Labelled(line, text, label))
    clear = [rows for rows in of_text.values() if len({row.label for row in rows}) == 1]
    counts = {"repeated": sum(len(rows) - 1 for rows in clear), "with two labels": len(table) - sum(map(len, clear))}
    skipped.update({reason: count for reason, count in counts.items() if count})
    return [rows[0] for rows in clear]


def _examples(name: str, rows: Sequence[_Labelled], negative_count: int, seed: int, skipped: Counter[str]) -> Iterator[Example]:
    ordered = sorted(rows, key=lambda row: (row.label, row.text))
    texts = [row.text for row in ordered]
    labels = [row.label for row in ordered]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    groups = {label: range(bisect_left(labels, label), bisect_right(labels, label)) for label in numbers}
    for row in rows:
        group = groups[row.label]
        if len(group) == 1:
            skipped["the only text of its label"] += 1
        elif len(texts) - len(group) < negative_count:
            skipped["too few negatives"] += 1
        else:
            # of bytes, because a text of a file may hold half a surrogate pair, which has no UTF-8
            generator = random.Random(f"{seed}:{name}:{row.text}".encode("utf-8", "surrogatepass"))
            anchor = bisect_left(texts, row.text, group.start, group.stop)
            indices = anchor, _inside(group, anchor, generator), *_outside(group, len(texts), negative_count, generator)
            yield Example(row.row, tuple(texts[index] for index in indices), tuple(numbers[labels[index]] for index in indices))


def _inside(group: range, anchor: int, generator: random.Random) -> int:
    """A place of a group, but not this one."""
    index = group.start + generator.randrange(len(group) - 1)
    return index + (index >= anchor)


def _outside(group: range, count: int, negative_count: int, generator: random.Random) -> list[int]:
    """Different places of a list of `count` that are not in a group of it."""
    sample = generator.sample(range(count - len(group)), negative_count)
    return [index + len(group) * (index >= group.start) for index in sample]
