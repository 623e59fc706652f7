"""What is recorded of a design on a task: a result with its interval, a failure in the words of its error, or that it does not apply."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.designs.design import Design
from unmask.encoding.encode import Tally
from unmask.errors import UnmaskError
from unmask.evaluation.outcomes import attempted, does_not_apply, failed, made_result, why_not_scored
from unmask.evaluation.results import Conditions
from unmask.statistics.bootstrap import Items
from unmask.statistics.intervals import wilson
from unmask.tasks.kinds import KINDS
from unmask.tasks.mteb.evaluator import Outcome
from unmask.tasks.task import LocalTask

TASK = LocalTask("mine", "sts", {"test": []})
CONDITIONS = Conditions(
    model="m", model_revision="r", design="d", task="mine", task_revision="t", max_length=8, dtype="float32"
)  # fmt: skip


def outcome(score: float, items: Items | None = None) -> Outcome:
    return Outcome("accuracy", score, {"ap": 0.25, "nothing": float("nan")}, items)


def test_a_result_has_the_interval_of_its_items_and_only_scores_that_are_numbers() -> None:
    items = Items("mean", {"value": np.arange(20) > 4})
    result, kept = made_result(CONDITIONS, "mine", TASK, outcome(0.75, items), 16, Tally(texts=30, tokens=90, truncated=2), {})
    assert kept is items and result.n == 20 and result.interval == pytest.approx(wilson(15, 20))
    assert result.scores == {"ap": 0.25} and (result.texts, result.tokens, result.truncated, result.dim) == (30, 90, 2, 16)
    result, kept = made_result(CONDITIONS, "mine", TASK, outcome(0.75), 16, Tally(texts=30), {})
    assert kept is None and result.interval is None and result.n == 30, "without items the texts are counted"


def test_a_score_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(UnmaskError, match="the accuracy is nan, which is not a score"):
        made_result(CONDITIONS, "mine", TASK, outcome(float("nan")), 16, Tally(), {})


def test_a_failure_is_told_and_the_others_go_on_but_a_full_disk_is_not_hidden() -> None:
    told: list[Exception] = []

    def fails(error: Exception) -> int:
        raise error

    assert attempted(lambda: 3, told.append) == 3 and not told
    assert attempted(lambda: fails(KeyError("x")), told.append) is None and isinstance(told[0], KeyError)
    with pytest.raises(OSError, match="full"):
        attempted(lambda: fails(OSError("full")), told.append)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnmaskError("no score for it"), "no score for it"),
        (ValueError("bad \x1b[31mvalue"), "ValueError: bad"),
        (MemoryError(), "MemoryError: MemoryError"),
    ],
)
def test_a_failure_is_in_the_words_of_its_error(error: Exception, text: str) -> None:
    failure = failed(CONDITIONS, "mine", TASK, error)
    assert failure.error.startswith(text) and "\x1b" not in failure.error and failure.applies


def test_what_does_not_apply_did_not_fail() -> None:
    failure = does_not_apply(CONDITIONS, "mine", TASK, "words are read at one layer")
    assert (failure.error, failure.applies) == ("does not apply: words are read at one layer", False)


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_vectors_are_scored_where_documents_are_ranked(kind: str) -> None:
    reason = why_not_scored(Design.parse("causal/eol/last/lexical"), LocalTask("mine", kind, {"test": []}))
    assert (reason is None) == (kind in ("retrieval", "reranking"))
    assert reason is None or "only rank documents for a query" in reason
