"""Classification: texts with a label, and training texts to fit a classifier on."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from unmask.errors import UnmaskError
from unmask.io.rows import Row
from unmask.statistics.bootstrap import Items
from unmask.tasks import columns
from unmask.tasks.columns import ColumnReader, read_columns
from unmask.tasks.folder import TaskFolder
from unmask.tasks.kinds.kind import Data, TextKind
from unmask.tasks.mteb.labels import read_labels_once
from unmask.tasks.mteb.scored import ScoredSubset
from unmask.tasks.mteb.tables import table
from unmask.tasks.sampling import drawn_halves


class Classification(TextKind):
    """Labelled texts: how often a classifier on their vectors is right."""

    name = "classification"
    heading = "class"
    layout = "train.jsonl, test.jsonl: text, label"
    metric = "accuracy of logistic regression"
    example: ClassVar[dict[str, Row]] = {
        "train.jsonl": {"text": "My card was stolen.", "label": "lost-card"},
        "test.jsonl": {"text": "I cannot find my card.", "label": "lost-card"},
    }
    named = frozenset({"text", "label"})
    readers: ClassVar[dict[str, ColumnReader]] = {"text": columns.text, "label": columns.label}
    gold = "label"
    order = 2  # many files have a text and a label
    mteb_types = ("Classification", "MultilabelClassification")
    mteb_class = "AbsTaskClassification"
    main_score = "accuracy"

    def recognises(self, folder: TaskFolder) -> bool:
        """Labelled texts with a training file."""
        return super().recognises(folder) and folder.file("train") is not None

    def near_miss(self, folder: TaskFolder) -> str | None:
        """Labelled texts without a training file."""
        if not super().recognises(folder):
            return None
        return (
            f"'{folder.main_file}' has labelled texts, but there is no train.jsonl beside it to fit a classifier on. Add train.jsonl, "
            f"or say what you mean: '{folder.path}:clustering' clusters these texts, '{folder.path}:classification' fits on one half "
            "of them and tests on the other."
        )

    def read(self, folder: TaskFolder) -> Data:
        """Training and test texts; without a training file, halves of the test file, as the seed draws them, with half of every class."""
        train_file = folder.train_file()
        test = super().read(folder)["test"]
        if train_file:
            train = read_columns(train_file, self.readers, self.file_columns(folder))
        else:
            classes = [row["label"] for row in test]
            halves = drawn_halves(len(test), folder.settings.seed, classes, odd_first=True)
            train, test = ([test[index] for index in half] for half in halves)
        if missing := {row["label"] for row in test} - {row["label"] for row in train}:
            raise UnmaskError(f"'{folder.path}': no training text has the label '{min(missing)}', which test texts have.")
        return {"train": train, "test": test}

    def mteb_data(self, data: Data) -> Any:
        """Texts with numbers for labels."""
        from datasets import DatasetDict

        # numbers, not names: of two classes, mteb takes class 1 to be the positive one
        number = {label: index for index, label in enumerate(sorted({row["label"] for row in data["train"]}))}
        parts = {part: [{**row, "label": number[row["label"]]} for row in data[part]] for part in ("train", "test")}
        return DatasetDict({part: table(rows) for part, rows in parts.items()})

    def prepare(self, task: Any) -> None:
        """Keep the labels in memory: mteb looks at each of them many times."""
        read_labels_once(task)

    def items(self, scored: ScoredSubset) -> Items | None:
        """Test texts: how often each is classified rightly, over the experiments."""
        gold = scored.data[scored.task.label_column_name]
        if isinstance(gold[0], list) or len({len(labels) for labels in scored.predicted} | {len(gold)}) > 1:
            return None  # several labels a text, or another part of the texts in each fold of a cross-validation
        return Items("mean", {"value": (np.array(scored.predicted) == np.array(gold)).mean(axis=0)})
