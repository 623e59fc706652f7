"""Cutting an mteb task to its first items, drawn as `subsets` draws them, under the protocol of the task."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from unmask.tasks.sampling import DOCUMENTS_PER_QUERY, drawn_order

_SEED = 0


def items_of_parts(parts: Sequence[Any]) -> int | None:
    """Number of items in all splits and subsets of a loaded task, or None for a task that cannot be cut.

    A task cannot be cut if it is cross-validated on the split that it is scored on, or if it scores several sets of texts one by one.
    """
    sizes = [_size(part, data) for part in parts for _, split, data in _cells(part) if not _is_fitted_on(part, split)]
    cells = sum(len(list(_cells(part))) for part in parts)
    return None if len(sizes) < cells or None in sizes else sum(size or 0 for size in sizes)


def texts_of_parts(parts: Sequence[Any]) -> int:
    """Texts, or rows of several, in all splits and subsets of a loaded task, documents included."""
    texts = 0
    for part in parts:
        for _, _, data in _cells(part):
            texts += (_size(part, data) or len(data)) + (len(data["corpus"]) if _is_search(data) else 0)
    return texts


def cut(parts: Sequence[Any], limit: int) -> None:
    """Keep `limit` items of loaded tasks, equally many of each split and subset, and every class of each."""
    cells = [(part, cell) for part in parts for cell in list(_cells(part))]
    each = max(2, ceil(limit / len(cells)))
    for part, (subset, split, data) in cells:
        smaller = _cut_search(data, each) if _is_search(data) else _cut_table(part, data, each)
        holder = part.dataset.get(subset, part.dataset)
        changed = type(holder)({**holder, split: smaller})
        if subset in part.dataset:
            part.dataset = type(part.dataset)({**part.dataset, subset: changed})
        else:
            part.dataset = changed
    for part in parts:
        # a part of many classes keeps more rows, one of each class, and k-means needs at least as many as there are classes
        _draw_no_more(part, max([each, *(len(data) for _, _, data in _cells(part))]))


def _cells(part: Any) -> list[tuple[str, str, Any]]:
    return [
        (subset, split, part.dataset.get(subset, part.dataset)[split])
        for split in part.eval_splits
        for subset in part.hf_subsets
    ]


def _is_fitted_on(part: Any, split: str) -> bool:
    return bool(getattr(part, "is_cross_validation", False)) or getattr(part, "train_split", None) == split


def _is_search(data: Any) -> bool:
    return isinstance(data, dict) and "queries" in data


def _size(part: Any, data: Any) -> int | None:
    if _is_search(data):
        return len(data["queries"])
    if len(data) > 1 and all(isinstance(data[0].get(name), list) for name in ("sentences", "labels")):
        return None  # several sets of texts, each scored for itself
    if _lists(data):
        return len(_lists(data)[0])
    if share := getattr(part, "max_fraction_of_documents_to_embed", None):
        return int(share * len(data))
    return min(len(data), getattr(part, "max_document_to_embed", None) or len(data))


def _lists(table: Any) -> list[list[Any]]:
    """The columns of a table that holds all items in one row, as mteb's older sets do."""
    if len(table) != 1:
        return []
    columns = list(table[0].values())
    same_length = all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns)
    return columns if same_length else []


def _cut_table(part: Any, table: Any, size: int) -> Any:
    from datasets import Dataset

    name = getattr(part, "label_column_name", None)
    classes = list(table[name][:]) if name in table.column_names else None
    if _lists(table):
        row = table[0]
        labels = row.get(name) if name else None
        indices = _chosen(len(_lists(table)[0]), labels, size)
        return Dataset.from_dict({column: [[values[index] for index in indices]] for column, values in row.items()})
    return table.select(_chosen(len(table), classes, size))


def _chosen(count: int, classes: Sequence[Any] | None, size: int) -> list[int]:
    if classes is not None and any(isinstance(label, list) for label in classes):
        classes = None  # several labels a text
    size = max(size, len(set(classes or ())))
    return drawn_order(count, _SEED, classes)[:size]


def _cut_search(data: Any, size: int) -> Any:
    queries = data["queries"].select(_chosen(len(data["queries"]), None, size))
    kept_queries = set(queries["id"][:])
    relevant = {query: documents for query, documents in data["relevant_docs"].items() if query in kept_queries}
    ranked = data.get("top_ranked")
    ranked = None if ranked is None else {query: documents for query, documents in ranked.items() if query in kept_queries}
    corpus = data["corpus"]
    if ranked is None:
        sample = set(_chosen(len(corpus), None, size * DOCUMENTS_PER_QUERY))
        required = {document for documents in relevant.values() for document in documents}
    else:
        sample, required = set(), {document for documents in ranked.values() for document in documents}
    identifiers = corpus["id"][:]
    corpus = corpus.select([index for index, document in enumerate(identifiers) if index in sample or document in required])
    return type(data)({**data, "queries": queries, "relevant_docs": relevant, "top_ranked": ranked, "corpus": corpus})


def _draw_no_more(part: Any, size: int) -> None:
    """Let clustering embed all texts of a small set and draw as many; of a large set it embeds a share and draws thousands."""
    if hasattr(part, "max_fraction_of_documents_to_embed"):
        part.max_fraction_of_documents_to_embed = part.max_document_to_embed = None
        part.max_documents_per_cluster = min(part.max_documents_per_cluster, size)
