"""Word-level tasks: sentences with a tag for each word."""

from __future__ import annotations

import random
from typing import ClassVar

from unmask.errors import UnmaskError
from unmask.io.rows import Row
from unmask.tasks import columns
from unmask.tasks.columns import ColumnReader
from unmask.tasks.folder import TaskFolder
from unmask.tasks.kinds.kind import Data, TaskKind
from unmask.tasks.sampling import sampled
from unmask.tasks.tagged import read_sentences

_TRAINING_PER_TEST = 5  # sentences that a probe is fitted on, for each sentence that it is scored on


class WordLevel(TaskKind):
    """Tagged words: how well a linear probe reads the tag off the state of a word."""

    name = "word-level"
    layout = "train.jsonl, test.jsonl: tokens[], tags[]"
    metric = "accuracy of a linear probe on word states, or entity F1 of BIO tags"
    note = "A word-level score depends on attention and layer alone, so designs that share both share it."
    example: ClassVar[dict[str, Row]] = {
        "train.jsonl": {"tokens": ["A", "dog", "barks"], "tags": ["DET", "NOUN", "VERB"]},
        "test.jsonl": {"tokens": ["A", "cat", "sleeps"], "tags": ["DET", "NOUN", "VERB"]},
    }
    readers: ClassVar[dict[str, ColumnReader]] = {"tokens": columns.texts, "tags": columns.texts}
    of_words = True

    def read(self, folder: TaskFolder) -> Data:
        """Tagged sentences to fit on and to score."""
        train_file = folder.train_file()
        if train_file is None:
            raise UnmaskError(f"'{folder.path}' has no train.jsonl, which the word-level probe is trained on.")
        files = {"train": train_file, "test": folder.main_file}
        return {
            part: [{"tokens": list(sentence.words), "tags": list(sentence.tags)} for sentence in read_sentences(file)]
            for part, file in files.items()
        }

    def nothing_to_tell(self, data: Data) -> str | None:
        """All training words have one tag."""
        is_constant = len({tag for row in data["train"] for tag in row["tags"]}) < 2
        return "all words of the training sentences have one tag, so there is nothing to tell apart" if is_constant else None

    def sample(self, data: Data, limit: int, generator: random.Random) -> Data:
        """Sentences at random, and five training sentences for each of them."""
        part = super().sample(data, limit, generator)
        return {**part, "train": sampled(generator, data["train"], limit * _TRAINING_PER_TEST)}

    def texts_of(self, row: Row) -> tuple[list[str], list[int]]:
        """The sentence."""
        return [" ".join(row["tokens"])], []
