"""What a kind of task is: how its folder is read, which items are scored, how they are scored, and what the commands print."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from unmask.io.rows import Row
from unmask.statistics.bootstrap import Items
from unmask.tasks.columns import ColumnReader, read_columns
from unmask.tasks.folder import TaskFolder
from unmask.tasks.mteb.scored import ScoredSubset
from unmask.tasks.mteb.tables import split_table
from unmask.tasks.sampling import drawn_halves, drawn_order, sampled

Data = dict[str, list[Row]]
"""Rows by part: "test" and "train", or "corpus", "queries" and "qrels"."""

Forms = str | tuple[str, ...]
"""A text; or a document with a title, with its title before the text and without."""

TextsAndPairs = tuple[list[Forms], list[tuple[int, int]]]
"""The texts of a task, and the indices of the texts that it compares with each other."""


class TaskKind(ABC):
    """A kind of task. Readers, scores, listings and tests all follow from one object of this class."""

    name: ClassVar[str]
    """As in `FOLDER:name`."""
    layout: ClassVar[str]
    """Files and columns of a folder."""
    metric: ClassVar[str]
    """The main score, for people."""
    example: ClassVar[dict[str, Row]]
    """A row of each file."""
    readers: ClassVar[Mapping[str, ColumnReader]] = {}
    """The columns of the scored file and how they are read. A folder of this kind is recognised by them."""
    named: ClassVar[frozenset[str]] = frozenset()
    """Those that `task.toml` may rename."""
    gold: ClassVar[str] = ""
    """The column whose values must not all be equal."""
    heading: ClassVar[str] = ""
    """The name in the head of a narrow table."""
    title: ClassVar[str] = ""
    """The name at the head of a paragraph."""
    note: ClassVar[str] = ""
    """What a reader of scores has to know."""
    order: ClassVar[int] = 1
    """Kinds with a smaller number are recognised first."""
    item_part: ClassVar[str] = "test"
    """The part of the data whose rows are the items."""
    of_words: ClassVar[bool] = False
    """Whether the items are tagged words, not texts."""

    def file_columns(self, folder: TaskFolder) -> dict[str, str]:
        """What the files of a folder call the columns that have another name there."""
        return {column: getattr(folder.settings, column) for column in self.named}

    def recognises(self, folder: TaskFolder) -> bool:
        """Whether the files and columns of a folder match this kind."""
        names = self.file_columns(folder)
        return {names.get(column, column) for column in self.readers} <= folder.columns

    def near_miss(self, folder: TaskFolder) -> str | None:
        """What a folder lacks that is almost of this kind, as a sentence; None if it is not like this kind."""
        return None

    def read(self, folder: TaskFolder) -> Data:
        """The rows of a folder, checked. Raises UnmaskError with file, line and column."""
        return {"test": read_columns(folder.main_file, self.readers, self.file_columns(folder))}

    def size(self, data: Data) -> int:
        """Number of items: pairs, texts, queries or sentences."""
        return len(data[self.item_part])

    def nothing_to_tell(self, data: Data) -> str | None:
        """Why no score can be computed (all items are identical), or None."""
        if not self.gold or len({row[self.gold] for row in data.get("train", data["test"])}) > 1:
            return None
        return f"all items have one {self.gold}, so there is nothing to tell apart"

    def sample(self, data: Data, limit: int, generator: random.Random) -> Data:
        """At most `limit` items (`FOLDER#limit`), drawn at random."""
        return {**data, self.item_part: sampled(generator, data[self.item_part], limit)}

    def first_items(self, data: Data, size: int, seed: int) -> Data:
        """The first `size` items in the order that a seed draws, with all classes. A larger size holds the items of a smaller one."""
        rows = data[self.item_part]
        order = drawn_order(len(rows), seed, [row.get("label") for row in rows])
        return {**data, self.item_part: [rows[index] for index in order[:size]]}

    def halves(self, data: Data, seed: int) -> tuple[Data, Data]:
        """Two halves of the items, as a seed draws them, with half of every class in each."""
        rows = data[self.item_part]
        first, second = drawn_halves(len(rows), seed, [row.get("label") for row in rows])
        parts = [{**data, self.item_part: [rows[index] for index in half]} for half in (first, second)]
        return parts[0], parts[1]

    def marks(self, data: Data) -> tuple[str, ...]:
        """What scores depend on in addition to the data; part of the task revision. Empty for most tasks."""
        return ()

    def number_of_classes(self, data: Data) -> int:
        """Number of classes among the items; 1 if they have no class."""
        return len({row.get("label") for row in data[self.item_part]})

    def texts_of(self, row: Row) -> tuple[list[str], list[int]]:
        """The texts of an item, and the indices of those that its first text is compared with."""
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


class TextKind(TaskKind):
    """A kind that mteb scores on vectors of texts."""

    mteb_types: ClassVar[tuple[str, ...]]
    """mteb's names of this kind, the first one for a local folder."""
    mteb_class: ClassVar[str]
    """The class of a local folder in `mteb.abstasks`."""
    main_score: ClassVar[str]
    """mteb's name of it for a local folder."""
    searches: ClassVar[bool] = False
    """Queries are compared with a corpus, so mteb counts queries and documents."""

    def new_task(self, attributes: dict[str, Any]) -> Any:
        """An object of mteb's class, with these class attributes."""
        module, _, name = f"mteb.abstasks.{self.mteb_class}".rpartition(".")
        return type("LocalMtebTask", (getattr(import_module(module), name),), attributes)()

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
