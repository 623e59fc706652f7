"""Rows of ours as the tables that mteb's tasks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from unmask.io.rows import Row
from unmask.io.unicode import without_surrogates

SPLIT: Final = "test"


def table(rows: Sequence[Row]) -> Any:
    """A table of these rows. Lone surrogates, which it cannot hold, become U+FFFD, as in every text that is embedded."""
    from datasets import Dataset

    return Dataset.from_list([_readable(row) for row in rows])


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {name: _readable(item) for name, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list | tuple) else value


def split_table(rows: Sequence[Row]) -> Any:
    """A table whose rows are all scored."""
    from datasets import DatasetDict

    return DatasetDict({SPLIT: table(rows)})


def search_data(
    documents: Sequence[Row],
    queries: Sequence[Row],
    relevant: Mapping[str, Mapping[str, int]],
    ranked: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Documents and queries, with the gain of each document for each query. ranked: the candidates of a query; None: all documents."""
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

    data = RetrievalSplitData(corpus=table(documents), queries=table(queries), relevant_docs=relevant, top_ranked=ranked)
    return {SPLIT: data}
