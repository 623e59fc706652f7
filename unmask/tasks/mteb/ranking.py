"""Ranking measures query by query, by trec_eval. mteb averages them over queries; here they come from the scores that it saves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unmask.statistics.bootstrap import Items
from unmask.tasks.mteb.scored import ScoredSubset

Scores = Mapping[str, float]
Relevant = Mapping[str, int]

MEASURES: Final = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "precision": "P", "hit_rate": "success"}
"""trec_eval's measures by mteb's names. It breaks ties by descending id."""


def per_query(metric: str, results: Mapping[str, Scores], relevant: Mapping[str, Relevant]) -> NDArray[np.float64] | None:
    """A measure such as `ndcg_at_10` of each judged query, in the order of their ids; None for a metric that is not in MEASURES."""
    import pytrec_eval  # type: ignore[import-untyped]

    name = re.fullmatch(rf"({'|'.join(MEASURES)})_at_(\d+)", metric)
    if not name:
        return None
    judged = {query: dict(results[query]) for query in sorted(results) if query in relevant}
    evaluator = pytrec_eval.RelevanceEvaluator(
        {query: dict(relevant[query]) for query in judged}, {f"{MEASURES[name[1]]}.{name[2]}"}
    )
    measured = evaluator.evaluate(judged)
    return np.array([measured[query][f"{MEASURES[name[1]]}_{name[2]}"] for query in judged])


def ndcg(scores: Scores, relevant: Relevant, depth: int) -> float:
    """nDCG at a depth of one query, with linear gains."""
    plain = {name: float(score) for name, score in scores.items()}  # trec_eval takes no numbers of NumPy
    values = per_query(f"ndcg_at_{depth}", {"query": plain}, {"query": relevant})
    assert values is not None
    return float(values[0])


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


@contextmanager
def without_abstention() -> Iterator[None]:
    """Let mteb leave out, within a `with` block, how well scores tell when not to answer (nAUC).

    These are about a hundred areas per ranking task; they are unused here and take longer to compute than the scores.
    """
    from mteb._evaluators import retrieval_metrics

    original = retrieval_metrics.evaluate_abstention
    retrieval_metrics.evaluate_abstention = lambda *_: {}
    try:
        yield
    finally:
        retrieval_metrics.evaluate_abstention = original
