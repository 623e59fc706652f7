"""Data whose relations are named: texts with class labels, and pairs with a score.

Texts with labels become pairs: a text and another one of its label come together, texts of other labels are pushed apart.

NV-Embed trains on classification and clustering data in this way (arXiv 2405.17428). Each example knows the classes of its texts, and
the loss leaves out every candidate of the anchor's class.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.tasks import columns
from unmask.training.data import DataSet, DataSource, Example, SourceTable, columns_of_pairs, pair_columns, pairs_of, read_table


def read_related(name: str, source: DataSource, root: Path, seed: int) -> DataSet:
    """The pairs or triples of a source; or pairs made of its texts with labels. Raises UnmaskError with file and line.

    A source has labels if the recipe names a column `label`, or if there are columns `text` and `label` and none of a pair. Its pairs have
    scores if the recipe names a column `score`.
    """
    table = read_table(name, source, root, seed)
    if "score" in source.columns:
        return _graded_pairs(table)
    return _labelled_pairs(table) if _has_labels(table) else pairs_of(table)


def _graded_pairs(table: SourceTable) -> DataSet:
    source = table.source
    pairs = pairs_of(replace(table, source=source.model_copy(update={"negatives": 0})), as_matches=False)
    scores = {line: columns.number(table.file, line, row, "score") for line, row in table.rows}
    if len(set(scores.values())) == 1:
        raise UnmaskError(f"{table.file}: all pairs have the score {min(scores.values()):g}, so there is no order to learn.")
    examples = [replace(example, score=scores[example.row]) for example in pairs.examples]
    unread = tuple(column for column in pairs.unread if column != "score")
    return replace(pairs, source=source, examples=examples, positives={}, unread=unread)


def _has_labels(table: SourceTable) -> bool:
    names, row = table.source.columns, table.rows[0][1]
    if "label" in names:
        return True
    if not {"text", "label"} <= row.keys() or pair_columns(row) is not None:
        return False
    if "text" in names:  # its label may belong to a pair, such as entailment
        raise UnmaskError(
            f"{table.file}: the recipe names a column of texts but none of labels. If '{names['text']}' belongs to a class in the column "
            f'\'label\', name both: columns = {{text = "{names["text"]}", label = "label"}}.'
        )
    return pair_columns(dict.fromkeys(names.get(column, column) for column in row)) is None


def _labelled_pairs(table: SourceTable) -> DataSet:
    """One example for each text: another text of its label, and texts of other labels, sampled by the seed.

    The sample depends on the seed and on all texts, not on their order. Left out and counted: repeated texts, texts with two labels, the
    only text of a label, and texts with too few others to be negatives.
    """
    skipped: Counter[str] = Counter()
    rows_by_text: dict[str, list[tuple[int, str]]] = defaultdict(list)  # each row with its label
    for line, row in table.rows:
        label = columns.label(table.file, line, row, "label").strip()
        if not label:
            raise UnmaskError(f"{table.file}, line {line}, column 'label' is empty.")
        rows_by_text[table.text(line, row, "text").strip()].append((line, label))
    labelled: dict[str, tuple[int, str]] = {}
    for text, rows in rows_by_text.items():
        if len({label for _, label in rows}) > 1:
            skipped["with two labels"] += len(rows)
        else:
            labelled[text] = rows[0]
            skipped["repeated"] += len(rows) - 1
    by_label = sorted(labelled, key=lambda text: (labelled[text][1], text))
    position = {text: index for index, text in enumerate(by_label)}
    sizes = Counter(labelled[text][1] for text in by_label)
    if len(sizes) == 1:
        raise UnmaskError(
            f"{table.file}: all texts have the label '{next(iter(sizes))}'. Training on labels needs texts of two labels or more."
        )
    classes = {label: number for number, label in enumerate(sizes)}
    starts = {label: sum(list(sizes.values())[:number]) for label, number in classes.items()}
    negatives = 1 if table.source.negatives is None else table.source.negatives
    examples = []
    for text, (line, label) in labelled.items():
        start, size = starts[label], sizes[label]
        if size == 1:
            skipped["the only text of its label"] += 1
        elif len(by_label) - size < negatives:
            skipped["too few negatives"] += 1
        else:
            # seeded with bytes, because a text may hold half a surrogate pair, which has no UTF-8
            generator = random.Random(f"{table.seed}:{table.name}:{text}".encode("utf-8", "surrogatepass"))
            partner = start + generator.randrange(size - 1)
            others = generator.sample(range(len(by_label) - size), negatives)
            indices = (
                position[text],
                partner + (partner >= position[text]),
                *(index + size * (index >= start) for index in others),
            )
            texts = tuple(by_label[index] for index in indices)
            examples.append(Example(line, texts, tuple(classes[labelled[other][1]] for other in texts)))
    return table.data_set(columns_of_pairs(negatives), examples, +skipped, ("text", "label"))
