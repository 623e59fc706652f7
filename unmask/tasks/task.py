"""Tasks: labelled data of a kind, in memory; or the name of a task in mteb."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property

from unmask.tasks.kinds import KINDS
from unmask.tasks.kinds.kind import Data, TextsAndPairs


@dataclass(frozen=True)
class LocalTask:
    """A folder of labelled data, read and checked."""

    name: str
    kind: str
    """A name of KINDS."""
    data: Data = field(repr=False)
    """Rows by part ("test", and "train" for classification; "corpus", "queries", "qrels" for retrieval), with the columns of the kind,
    whatever the files call them."""
    seed: int = 0
    instruction: str | None = None

    @cached_property
    def revision(self) -> str:
        """Hash of the data, of the instruction and of the marks of the kind, so that a result says what it was measured on."""
        used = (self.instruction, sorted(self.data.items()), *KINDS[self.kind].marks(self.data))
        return hashlib.sha256(repr(used).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def size(self) -> int:
        """Number of scored items: pairs, texts, queries or tagged sentences."""
        return KINDS[self.kind].size(self.data)

    @property
    def texts_and_pairs(self) -> TextsAndPairs:
        """The texts that are scored, documents included, and the indices of those that are compared with each other."""
        return KINDS[self.kind].texts_and_pairs(self.data)

    def subset(self, size: int) -> LocalTask:
        """The task on its first `size` items in an order that its seed draws, or the task itself if it has no more.

        Every class of the task is in each subset, so a subset has at least as many items as there are classes. Classification keeps its
        training texts. Retrieval keeps the documents that are relevant to its queries, and ten others for each query: the task grows with
        its items, so small subsets are easier than large ones, equally for all designs.
        """
        kind = KINDS[self.kind]
        size = max(size, kind.number_of_classes(self.data))
        if size >= self.size:
            return self
        return replace(self, name=f"{self.name}@{size}", data=kind.first_items(self.data, size, self.seed))

    def halves(self) -> tuple[LocalTask, LocalTask]:
        """The task on two halves of its items: one to choose a design on, and one to estimate the score of the chosen design."""
        chosen_on, held_out = KINDS[self.kind].halves(self.data, self.seed)
        return (
            replace(self, name=f"{self.name}/chosen-on", data=chosen_on),
            replace(self, name=f"{self.name}/held-out", data=held_out),
        )


@dataclass(frozen=True)
class MtebTask:
    """A task of mteb by name. Its data come from the hub, at the revision that mteb pins."""

    name: str
    kind: str
    revision: str
    """Of the data, with subsets and splits where there is a choice."""
    metric: str = ""
    """mteb's main score."""
    splits: tuple[str, ...] = ()
    """What it is scored on; none: all of mteb's splits."""
    subsets: tuple[str, ...] = ()
    """What it is scored on; none: all English subsets."""


Task = LocalTask | MtebTask
