"""Ranking measures, a query at a time: what mteb averages over queries, computed from the scores that it saves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Scored = Mapping[str, float]
Relevant = Mapping[str, int]
Measure = Callable[[Scored, Relevant, int], float]


def ndcg(scores: Scored, relevant: Relevant, depth: int) -> float:
    """nDCG at a depth of one query, with gains as they are (trec_eval's ndcg_cut); ties by descending id, as trec_eval."""
    gains = [max(relevant.get(document, 0), 0) for document in _ranking(scores)[:depth]]
    ideal = sorted((gain for gain in relevant.values() if gain > 0), reverse=True)[:depth]
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    best = float(np.dot(ideal, discounts[: len(ideal)]))
    return float(np.dot(gains, discounts[: len(gains)])) / best if best else 0.0


def average_precision(scores: Scored, relevant: Relevant, depth: int) -> float:
    """Average precision of one query at a depth (trec_eval's map_cut)."""
    hits = _hits(scores, relevant, depth)
    total = _number(relevant)
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / total) if total else 0.0


def reciprocal_rank(scores: Scored, relevant: Relevant, depth: int) -> float:
    """One over the rank of the first relevant document among the first `depth`, or 0."""
    places = np.flatnonzero(_hits(scores, relevant, depth))
    return 1 / float(places[0] + 1) if len(places) else 0.0


def recall(scores: Scored, relevant: Relevant, depth: int) -> float:
    """Share of the relevant documents that are among the first `depth` (trec_eval's recall)."""
    total = _number(relevant)
    return float(_hits(scores, relevant, depth).sum()) / total if total else 0.0


def precision(scores: Scored, relevant: Relevant, depth: int) -> float:
    """Share of the first `depth` places that hold a relevant document (trec_eval's P)."""
    return float(_hits(scores, relevant, depth).sum()) / depth


def hit_rate(scores: Scored, relevant: Relevant, depth: int) -> float:
    """1 if a relevant document is among the first `depth`, else 0 (trec_eval's success)."""
    return float(_hits(scores, relevant, depth).any())


MEASURES: dict[str, Measure] = {
    "ndcg": ndcg,
    "map": average_precision,
    "mrr": reciprocal_rank,
    "recall": recall,
    "precision": precision,
    "hit_rate": hit_rate,
}


def per_query(metric: str, results: Mapping[str, Scored], relevant: Mapping[str, Relevant]) -> NDArray[np.float64] | None:
    """What each query contributes to a main score of mteb, by query id; None for one that is no mean over queries.

    metric: `ndcg_at_10` and the like; with `max_over_subqueries_` the queries `a_1`, `a_2`, ... are one query `a`, for which a
    document has the highest of its scores (MIND: one query for each article that a user has read).
    """
    name = re.fullmatch(rf"(max_over_subqueries_)?({'|'.join(MEASURES)})_at_(\d+)", metric)
    if not name:
        return None
    asked = {query: results[query] for query in sorted(results) if query in relevant}
    if name[1]:
        asked, relevant = _merged(asked, relevant)
    measure, depth = MEASURES[name[2]], int(name[3])
    return np.array([measure(scores, relevant[query], depth) for query, scores in asked.items()])


def _merged(results: Mapping[str, Scored], relevant: Mapping[str, Relevant]) -> tuple[dict[str, Scored], dict[str, Relevant]]:
    best: dict[str, dict[str, float]] = {}
    judged: dict[str, Relevant] = {}
    for query, scores in results.items():
        whole = query.rpartition("_")[0]
        judged[whole] = relevant[query]
        mine = best.setdefault(whole, {})
        for document, score in scores.items():
            mine[document] = max(score, mine.get(document, score))
    return dict(best), judged


def _hits(scores: Scored, relevant: Relevant, depth: int) -> NDArray[np.bool_]:
    return np.array([relevant.get(document, 0) > 0 for document in _ranking(scores)[:depth]], dtype=bool)


def _number(relevant: Relevant) -> int:
    return sum(gain > 0 for gain in relevant.values())


def _ranking(scores: Scored) -> list[str]:
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)
