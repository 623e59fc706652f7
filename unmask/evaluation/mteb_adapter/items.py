"""The items behind a score of mteb's: what each pair, text or query contributed, read from the predictions that mteb saves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from unmask.evaluation.resampling import Items
from unmask.evaluation.tasks import Kind


class RecordingRandom(random.Random):
    """mteb's clustering draws its resamples here and keeps only the assignments, so the draws are kept for it.

    kept: the texts that it embeds, where those are not all; draws: places among them, with repeats, an experiment a row.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.kept: list[int] | None = None
        self.draws: list[list[int]] = []

    def sample(self, population: Any, k: int, **options: Any) -> list[Any]:
        """Choose the texts that are embedded at all, and remember them."""
        self.kept = super().sample(population, k, **options)
        return self.kept

    def choices(self, population: Any, *args: Any, **options: Any) -> list[Any]:
        """Draw as random.Random does, and remember."""
        drawn = super().choices(population, *args, **options)
        self.draws.append(drawn)
        return drawn


def _sts_items(data: Any, split: str, predicted: Any, _: RecordingRandom) -> Items:
    return Items("spearman", {"predicted": np.array(predicted["cosine_scores"]), "gold": np.array(data[split]["score"], float)})


def _pair_items(data: Any, split: str, predicted: Any, _: RecordingRandom) -> Items:
    table = data[split]
    labels = table["labels"] if "labels" in table.column_names else table["label"]
    labels = labels[0] if len(labels) == 1 else labels  # mteb's older sets hold all pairs in one row
    return Items("average-precision", {"predicted": np.array(predicted["cosine_scores"]), "label": np.array(labels, int)})


def _classification_items(data: Any, split: str, predicted: Any, _: RecordingRandom) -> Items:
    gold = np.array(data[split]["label"])
    return Items("mean", {"value": (np.array(predicted) == gold).mean(axis=0)})


def _clustering_items(data: Any, split: str, predicted: Any, recorder: RecordingRandom) -> Items | None:
    if len(predicted) != 1:  # hierarchical labels: several levels, each scored on its own
        return None
    table = data[split]
    column = "labels" if "labels" in table.column_names else "label"
    labels = np.unique([label[0] if isinstance(label, list) else label for label in table[column]], return_inverse=True)[1]
    assigned = np.array(next(iter(predicted.values()))).T
    if recorder.kept is not None:
        labels = labels[recorder.kept]
    if len(recorder.draws) != assigned.shape[1] or max(map(max, recorder.draws)) >= len(labels):
        return None
    return Items("v-measure", {"assigned": assigned, "label": np.stack([labels[draw] for draw in recorder.draws], axis=1)})


def _retrieval_items(data: Any, split: str, predicted: Any, _: RecordingRandom) -> Items:
    relevant = data[split]["relevant_docs"]
    return Items("mean", {"value": np.array([ndcg(predicted[query], relevant[query], 10) for query in sorted(predicted)])})


def _reranking_items(data: Any, split: str, predicted: Any, _: RecordingRandom) -> Items:
    relevant = data[split]["relevant_docs"]
    return Items(
        "mean", {"value": np.array([average_precision(predicted[query], relevant[query]) for query in sorted(predicted)])}
    )


def _summarization_items(data: Any, split: str, predicted: Any, _: RecordingRandom) -> Items | None:
    from scipy.stats import spearmanr

    pairs = list(zip(predicted["human_scores"], predicted["cosine_scores"], strict=True))
    if len(pairs) != sum(len(set(scores)) > 1 for scores in data[split]["relevance"]):
        return None  # mteb skips texts whose summaries have equal vectors, and then designs are not paired
    return Items("mean", {"value": np.array([spearmanr(human, cosine).statistic for human, cosine in pairs])})


ITEMS: dict[Kind, Callable[[Any, str, Any, RecordingRandom], Items | None]] = {
    "sts": _sts_items,
    "pair-classification": _pair_items,
    "classification": _classification_items,
    "clustering": _clustering_items,
    "retrieval": _retrieval_items,
    "reranking": _reranking_items,
    "summarization": _summarization_items,
}


def ndcg(scores: dict[str, float], relevant: dict[str, int], depth: int) -> float:
    """nDCG at a depth of one query, with gains as they are (trec_eval's ndcg_cut); ties by descending id, as trec_eval."""
    gains = [max(relevant.get(document, 0), 0) for document in _ranking(scores)[:depth]]
    ideal = sorted((gain for gain in relevant.values() if gain > 0), reverse=True)[:depth]
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    best = float(np.dot(ideal, discounts[: len(ideal)]))
    return float(np.dot(gains, discounts[: len(gains)])) / best if best else 0.0


def average_precision(scores: dict[str, float], relevant: dict[str, int]) -> float:
    """Average precision of one query over the documents that were ranked (trec_eval's map)."""
    hits = np.array([relevant.get(document, 0) > 0 for document in _ranking(scores)])
    total = sum(gain > 0 for gain in relevant.values())
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / total) if total else 0.0


def _ranking(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)
