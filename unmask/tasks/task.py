"""Tasks: labelled data of a kind, in memory; or the name of a task in mteb."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property

from unmask.tasks.kinds import KINDS
from unmask.tasks.kinds.kind import Data, TextsAndPairs


@dataclass(frozen=True)
class LocalTask:
    """A folder of labelled data, read and checked.

    kind: a name of KINDS. data: rows by part ("test", and "train" for classification; "corpus", "queries", "qrels" for retrieval),
    with the columns of the kind, whatever the files call them.
    """

    name: str
    kind: str
    data: Data = field(repr=False)
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
        """The texts that are scored, documents included, and the places of those that are compared with each other."""
        return KINDS[self.kind].texts_and_pairs(self.data)


@dataclass(frozen=True)
class MtebTask:
    """A task of mteb by name. Its data come from the hub, at the revision that mteb pins.

    metric: mteb's main score. splits, subsets: what it is scored on (none: all of mteb's splits, all English subsets). revision: of
    the data, with subsets and splits where there is a choice. limit: it is scored on this number of its items only.
    """

    name: str
    kind: str
    revision: str
    metric: str = ""
    splits: tuple[str, ...] = ()
    subsets: tuple[str, ...] = ()
    limit: int | None = None

    def limited(self, size: int) -> MtebTask:
        """The task on this number of its items, which is another task with other scores."""
        return replace(self, name=f"{self.name}@{size}", revision=f"{self.revision}@{size}", limit=size)

    @property
    def in_mteb(self) -> str:
        """What mteb calls the task."""
        return self.name if self.limit is None else self.name.removesuffix(f"@{self.limit}")


Task = LocalTask | MtebTask
