"""Tasks: labelled data of a kind, in memory; or the name of a task in mteb."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, get_args

from unmask.io.rows import Row

Kind = Literal[
    "sts", "pair-classification", "classification", "clustering", "retrieval", "reranking", "summarization", "word-level"
]
KINDS: Final = get_args(Kind)
METRICS: Final[dict[str, str]] = {
    "sts": "Spearman of cosine",
    "pair-classification": "average precision",
    "classification": "accuracy of logistic regression",
    "clustering": "V-measure (AMI beside it)",
    "retrieval": "nDCG@10",
    "reranking": "MAP",
    "summarization": "Spearman per document",
    "word-level": "accuracy of a linear probe on word states, or entity F1 of BIO tags",
}


@dataclass(frozen=True)
class LocalTask:
    """A folder of labelled data, read and checked.

    data: rows by part ("test", and "train" for classification; "corpus", "queries", "qrels" for retrieval), with the columns of
    design's table, whatever the files call them. revision: a hash of the data as used.
    """

    name: str
    kind: Kind
    data: dict[str, list[Row]] = field(repr=False)
    seed: int = 0
    instruction: str | None = None

    @cached_property
    def revision(self) -> str:
        """Hash of the data as used and of the instruction they are read under, so that a result says what it was measured on."""
        used = (self.instruction, sorted(self.data.items()))
        return hashlib.sha256(repr(used).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def size(self) -> int:
        """Number of scored items: pairs, texts, queries or tagged sentences."""
        return len(self.data["queries" if self.kind == "retrieval" else "test"])


@dataclass(frozen=True)
class MtebTask:
    """A task of mteb by name; its data come from the hub at mteb's pinned revision.

    metric: mteb's main score of it; splits, subsets: what it is scored on (none: all of mteb's splits, all English subsets).
    revision: of the data, with subsets and splits where they are a choice. limit: scored on so many of its items alone.
    """

    name: str
    kind: Kind
    revision: str
    metric: str = ""
    splits: tuple[str, ...] = ()
    subsets: tuple[str, ...] = ()
    limit: int | None = None

    def limited(self, size: int) -> MtebTask:
        """The task on so many of its items, which is another task with other scores."""
        return replace(self, name=f"{self.name}@{size}", revision=f"{self.revision}@{size}", limit=size)

    @property
    def in_mteb(self) -> str:
        """What mteb calls the task."""
        return self.name if self.limit is None else self.name.removesuffix(f"@{self.limit}")


Task = LocalTask | MtebTask
