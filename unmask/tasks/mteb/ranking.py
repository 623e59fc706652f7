"""Ranking measures for one query at a time. mteb averages them over queries; here they come from the scores that it saves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from unmask.statistics.bootstrap import Items
from unmask.tasks.mteb.scored import ScoredSubset

Scores = Mapping[str, float]
Relevant = Mapping[str, int]
Measure = Callable[[Scores, Relevant, int], float]


def ndcg(scores: Scores, relevant: Relevant, depth: int) -> float:
    """nDCG at a depth of one query, with linear gains (trec_eval's ndcg_cut); ties by descending id, as trec_eval."""
    gains = [max(relevant.get(document, 0), 0) for document in _ranking(scores)[:depth]]
    ideal = sorted((gain for gain in relevant.values() if gain > 0), reverse=True)[:depth]
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    best = float(np.dot(ideal, discounts[: len(ideal)]))
    return float(np.dot(gains, discounts[: len(gains)])) / best if best else 0.0


def average_precision(scores: Scores, relevant: Relevant, depth: int) -> float:
    """Average precision of one query at a depth (trec_eval's map_cut)."""
    hits = _hits(scores, relevant, depth)
    total = _number(relevant)
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / total) if total else 0.0


def reciprocal_rank(scores: Scores, relevant: Relevant, depth: int) -> float:
    """One over the rank of the first relevant document among the first `depth`, or 0."""
    hits = np.flatnonzero(_hits(scores, relevant, depth))
    return 1 / float(hits[0] + 1) if len(hits) else 0.0


def recall(scores: Scores, relevant: Relevant, depth: int) -> float:
    """Share of the relevant documents that are among the first `depth` (trec_eval's recall)."""
    total = _number(relevant)
    return float(_hits(scores, relevant, depth).sum()) / total if total else 0.0


def precision(scores: Scores, relevant: Relevant, depth: int) -> float:
    """Share of the first `depth` places that hold a relevant document (trec_eval's P)."""
    return float(_hits(scores, relevant, depth).sum()) / depth


def hit_rate(scores: Scores, relevant: Relevant, depth: int) -> float:
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


@contextmanager
def without_abstention() -> Iterator[None]:
    """Let mteb leave out, within a `with` block, how well scores tell when not to answer (nAUC).

    These are about a hundred areas per ranking task; they are unused here and take longer to compute than the scores.
    """
    from mteb._evaluators import retrieval_metrics

    name = "evaluate_abstention"
    before = getattr(retrieval_metrics, name)
    setattr(retrieval_metrics, name, lambda *_: {})
    try:
        yield
    finally:
        setattr(retrieval_metrics, name, before)


def ranked_items(scored: ScoredSubset) -> Items | None:
    """Queries as items; None if the main score is not a mean over queries."""
    results = scored.predicted
    if scored.task.ignore_identical_ids:
        results = {query: {key: value for key, value in scores.items() if key != query} for query, scores in results.items()}
    if scored.task.skip_first_result:
        results = {
            query: dict(sorted(scores.items(), key=lambda entry: entry[1], reverse=True)[1:])
            for query, scores in results.items()
        }
    values = per_query(scored.metric, results, scored.data["relevant_docs"])
    return None if values is None else Items("mean", {"value": values})


def per_query(metric: str, results: Mapping[str, Scores], relevant: Mapping[str, Relevant]) -> NDArray[np.float64] | None:
    """The measure of each query, in the order of their ids; None if the main score is not a mean over queries.

    metric: such as `ndcg_at_10`. With `max_over_subqueries_` before it, the queries `a_1`, `a_2`, ... are one query `a`, and a document
    has the highest of its scores for them (MIND: one query for each article that a user has read).
    """
    name = re.fullmatch(rf"(max_over_subqueries_)?({'|'.join(MEASURES)})_at_(\d+)", metric)
    if not name:
        return None
    judged = {query: results[query] for query in sorted(results) if query in relevant}
    if name[1]:
        judged, relevant = _merged(judged, relevant)
    measure, depth = MEASURES[name[2]], int(name[3])
    return np.array([measure(scores, relevant[query], depth) for query, scores in judged.items()])


def _merged(results: Mapping[str, Scores], relevant: Mapping[str, Relevant]) -> tuple[dict[str, Scores], dict[str, Relevant]]:
    best: dict[str, dict[str, float]] = {}
    judged: dict[str, Relevant] = {}
    for query, scores in results.items():
        query_id = query.rpartition("_")[0]
        judged[query_id] = relevant[query]
        scores_of_query = best.setdefault(query_id, {})
        for document, score in scores.items():
            scores_of_query[document] = max(score, scores_of_query.get(document, score))
    return dict(best), judged


def _hits(scores: Scores, relevant: Relevant, depth: int) -> NDArray[np.bool_]:
    return np.array([relevant.get(document, 0) > 0 for document in _ranking(scores)[:depth]], dtype=bool)


def _number(relevant: Relevant) -> int:
    return sum(gain > 0 for gain in relevant.values())


def _ranking(scores: Scores) -> list[str]:
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)
