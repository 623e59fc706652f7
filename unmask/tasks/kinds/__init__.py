"""The kinds of task, by name. A new kind is one file in this folder and one entry below."""

from __future__ import annotations

from typing import Final

from unmask.tasks.kinds.classification import Classification
from unmask.tasks.kinds.clustering import Clustering
from unmask.tasks.kinds.kind import TaskKind, TextKind
from unmask.tasks.kinds.pair_classification import PairClassification
from unmask.tasks.kinds.reranking import Reranking
from unmask.tasks.kinds.retrieval import Retrieval
from unmask.tasks.kinds.sts import Sts
from unmask.tasks.kinds.summarization import Summarization
from unmask.tasks.kinds.word_level import WordLevel

KINDS: Final[dict[str, TaskKind]] = {
    kind.name: kind
    for kind in (
        Sts(),
        PairClassification(),
        Classification(),
        Clustering(),
        Retrieval(),
        Reranking(),
        Summarization(),
        WordLevel(),
    )
}

TEXT_KINDS: Final[dict[str, TextKind]] = {name: kind for name, kind in KINDS.items() if isinstance(kind, TextKind)}


def searches(kind: str) -> bool:
    """Whether tasks of this kind rank documents for queries."""
    return kind in TEXT_KINDS and TEXT_KINDS[kind].searches


def is_of_words(kind: str) -> bool:
    """Whether tasks of this kind are scored on words, not on texts; False for a kind that this version does not know."""
    return kind in KINDS and KINDS[kind].of_words
