"""What a kind of task is: how its folder is read, which items are scored, how they are scored, and what the commands print."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from unmask.io.rows import Row
from unmask.statistics.bootstrap import Items
from unmask.tasks.folder import TaskFolder
from unmask.tasks.mteb.scored import ScoredSubset
from unmask.tasks.mteb.tables import split_table
from unmask.tasks.sampling import drawn_halves, first_drawn, sampled

Data = dict[str, list[Row]]
"""Rows by part: "test" and "train", or "corpus", "queries" and "qrels"."""

Forms = str | tuple[str, ...]
"""A text; or a document with a title, with its title before the text and without."""

TextsAndPairs = tuple[list[Forms], list[tuple[int, int]]]
"""The texts of a task, and the places of the texts that it compares with each other."""


class TaskKind(ABC):
    """A kind of task. Readers, scores, listings and tests all follow from one object of this class.

    name: as in `FOLDER:name`. layout: files and columns of a folder. metric: the main score, for people. example: a row of each file.
    columns: those that a folder of this kind is recognised by. named: keys of `task.toml` that say what its files call a column.
    heading: the name in the head of a narrow table. title: the name at the head of a paragraph. note: what a reader of scores has to
    know. tried: kinds with a smaller number are recognised first. item_part: the part of the data whose rows are the items. of_words:
    the items are tagged words, not texts.
    """

    name: ClassVar[str]
    layout: ClassVar[str]
    metric: ClassVar[str]
    example: ClassVar[dict[str, Row]]
    columns: ClassVar[frozenset[str]] = frozenset()
    named: ClassVar[frozenset[str]] = frozenset()
    heading: ClassVar[str] = ""
    title: ClassVar[str] = ""
    note: ClassVar[str] = ""
    tried: ClassVar[int] = 1
    item_part: ClassVar[str] = "test"
    of_words: ClassVar[bool] = False

    def recognises(self, folder: TaskFolder) -> bool:
        """Whether the files and columns of a folder match this kind."""
        return self.columns <= folder.columns

    def near_miss(self, folder: TaskFolder) -> str | None:
        """What a folder lacks that is almost of this kind, as a sentence; None if it is not like this kind."""
        return None

    @abstractmethod
    def read(self, folder: TaskFolder) -> Data:
        """The rows of a folder, checked. Raises UnmaskError with file, line and column."""

    def size(self, data: Data) -> int:
        """Number of items: pairs, texts, queries or sentences."""
        return len(data[self.item_part])

    @abstractmethod
    def nothing_to_tell(self, data: Data) -> str | None:
        """Why no score can be computed (all items are identical), or None."""

    def sample(self, data: Data, limit: int, generator: random.Random) -> Data:
        """At most `limit` items (`FOLDER#limit`), drawn at random."""
        return {**data, self.item_part: sampled(generator, data[self.item_part], limit)}

    def first_items(self, data: Data, size: int, seed: int) -> Data:
        """The first `size` items in the order that a seed draws, with all classes. A larger size holds the items of a smaller one."""
        rows = data[self.item_part]
        return {**data, self.item_part: first_drawn(rows, size, seed, [row.get("label") for row in rows])}

    def halves(self, data: Data, seed: int) -> tuple[Data, Data]:
        """Two halves of the items, as a seed draws them, with half of every class in each."""
        rows = data[self.item_part]
        first, second = drawn_halves(len(rows), seed, [row.get("label") for row in rows])
        return {**data, self.item_part: [rows[index] for index in first]}, {
            **data,
            self.item_part: [rows[index] for index in second],
        }

    def marks(self, data: Data) -> tuple[str, ...]:
        """What scores depend on in addition to the data; part of the task revision. Empty for most tasks."""
        return ()

    def number_of_classes(self, data: Data) -> int:
        """Number of classes among the items; 1 if they have no class."""
        return len({row.get("label") for row in data[self.item_part]})

    def texts_of(self, row: Row) -> tuple[list[str], list[int]]:
        """The texts of an item, and the places among them of those that its first text is compared with."""
        return [row["text"]], []

    def texts_and_pairs(self, data: Data) -> TextsAndPairs:
        """The texts that are scored, and which of them are compared; training data are checked against them for leaks."""
        texts: list[Forms] = []
        pairs: list[tuple[int, int]] = []
        for row in data[self.item_part]:
            start = len(texts)
            of_row, compared = self.texts_of(row)
            texts += of_row
            pairs += [(start, start + offset) for offset in compared]
        return texts, pairs

    def whole_texts(self, part_texts: int, part: Data, full: Data) -> int:
        """How many texts the whole task embeds, estimated from those that a part of it embeds."""
        return round(part_texts * self.size(full) / self.size(part))


class TextKind(TaskKind):
    """A kind that mteb scores on vectors of texts.

    mteb_types: mteb's names of this kind, the first one for a local folder. main_score: mteb's name of it for a local
    folder. searches: queries are compared with a corpus, so mteb counts queries and documents.
    """

    mteb_types: ClassVar[tuple[str, ...]]
    main_score: ClassVar[str]
    searches: ClassVar[bool] = False

    @abstractmethod
    def mteb_class(self) -> type[Any]:
        """mteb's abstract task of this kind."""

    def mteb_settings(self, data: Data) -> dict[str, Any]:
        """Class attributes of mteb's task, such as the names of columns."""
        return {}

    def mteb_data(self, data: Data) -> Any:
        """The data of a local folder as mteb's task wants them."""
        return split_table(data["test"])

    def prepare(self, task: Any) -> None:
        """Change an mteb task before it is scored, where that makes it faster."""

    @abstractmethod
    def items(self, scored: ScoredSubset) -> Items | None:
        """The items behind the main score; None if mteb does not tell what each of them contributes."""


def all_alike(data: Data, column: str, part: str = "test") -> str | None:
    """Error text if a column has the same value in all rows, else None."""
    is_constant = len({row[column] for row in data[part]}) < 2
    return f"all items have one {column}, so there is nothing to tell apart" if is_constant else None
