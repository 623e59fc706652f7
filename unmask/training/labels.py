"""Texts with class labels as pairs: a text and another one of its label come together, and texts of other labels are pushed apart.

So does NV-Embed train on data of classification and clustering (arXiv 2405.17428). Each example knows the classes of its texts, and the
loss leaves out every candidate of the anchor's class.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.rows import Row
from unmask.tasks import columns
from unmask.training.data import DataSet, DataSource, Example, data_set, pair_columns, pairs_of, read_table, text_of


@dataclass(frozen=True)
class _Labelled:
    """A text with its label. row: its line in the file."""

    row: int
    text: str
    label: str


def read_related(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """The pairs or triples of a source; or pairs that are made of its texts with labels. Raises UnmaskError with file and line.

    A source has labels if the recipe names a column `label`, or if there are columns `text` and `label` and none of a pair.
    """
    file, table = read_table(source, root)
    if _has_labels(source, table[0][1]):
        return _labelled_pairs(name, source, file, table, seed)
    return pairs_of(name, source, file, table, seed)


def _has_labels(source: DataSource, row: Row) -> bool:
    return "label" in source.columns or ({"text", "label"} <= row.keys() and pair_columns(row) is None)


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
    wanted = 1 if source.negatives is None else source.negatives
    negatives = ["negative"] if wanted == 1 else [f"negative_{number}" for number in range(1, wanted + 1)]
    examples = list(_examples(name, rows, wanted, seed, skipped))
    return data_set(name, "pairs", ("anchor", "positive", *negatives), examples, source, seed, skipped, file)


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


def _examples(name: str, rows: Sequence[_Labelled], wanted: int, seed: int, skipped: Counter[str]) -> Iterator[Example]:
    label_of = {row.text: row.label for row in sorted(rows, key=lambda row: row.text)}
    texts = list(label_of)
    by_label: dict[str, list[str]] = defaultdict(list)
    for text, label in label_of.items():
        by_label[label].append(text)
    numbers = {label: number for number, label in enumerate(sorted(by_label))}
    for row in rows:
        same = by_label[row.label]
        if len(same) == 1:
            skipped["the only text of its label"] += 1
        elif len(texts) - len(same) < wanted:
            skipped["too few negatives"] += 1
        else:
            generator = random.Random(f"{seed}:{name}:{row.text}")
            drawn = (_another(same, row.text, generator), *_others(texts, label_of, row.label, wanted, generator))
            yield Example(row.row, (row.text, *drawn), tuple(numbers[label_of[text]] for text in (row.text, *drawn)))


def _another(texts: Sequence[str], text: str, generator: random.Random) -> str:
    """One of some sorted texts, but not this one."""
    place = generator.randrange(len(texts) - 1)
    return texts[place + (place >= bisect_left(texts, text))]


def _others(texts: Sequence[str], label_of: Mapping[str, str], label: str, wanted: int, generator: random.Random) -> list[str]:
    """Texts of other labels, no text twice."""
    drawn: dict[str, None] = {}
    while len(drawn) < wanted:
        text = generator.choice(texts)
        if label_of[text] != label:
            drawn[text] = None
    return list(drawn)
