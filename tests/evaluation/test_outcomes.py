"""What is recorded of a design on a task: a result with its interval, a failure in the words of its error, or that it does not apply."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import give_code
from unmask.designs.design import Design
from unmask.encoding.encoder import Tally
from unmask.errors import UnmaskError
from unmask.evaluation.outcomes import attempt, make_failure, make_result, runs_code, why_not_scored
from unmask.evaluation.results import Conditions
from unmask.models.source import TRUSTED, Source
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
    tally = Tally(texts=30, tokens=90, truncated=2)
    result, stored = make_result(CONDITIONS, "mine", TASK, outcome(0.75, items), dim=16, tally=tally, provenance={})
    assert stored is items and result.n == 20 and result.interval == pytest.approx(wilson(15, 20))
    assert result.scores == {"ap": 0.25} and (result.texts, result.tokens, result.truncated, result.dim) == (30, 90, 2, 16)
    result, stored = make_result(CONDITIONS, "mine", TASK, outcome(0.75), dim=16, tally=tally, provenance={})
    assert stored is None and result.interval is None and result.n == 30, "without items the texts are counted"
    with pytest.raises(UnmaskError, match="the accuracy is nan, which is not a score"):
        make_result(CONDITIONS, "mine", TASK, outcome(float("nan")), dim=16, tally=tally, provenance={})


def test_a_full_disk_is_not_a_failure_of_a_design() -> None:
    errors: list[Exception] = []

    def fail(error: Exception) -> int:
        raise error

    assert attempt(lambda: 3, errors.append) == 3 and not errors
    assert attempt(lambda: fail(KeyError("x")), errors.append) is None and isinstance(errors[0], KeyError)
    with pytest.raises(OSError, match="full"):
        attempt(lambda: fail(OSError("full")), errors.append)
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnmaskError("no score for it"), "no score for it"),
        (ValueError("bad \x1b[31mvalue"), "ValueError: bad"),
        (MemoryError(), "MemoryError: MemoryError"),
    ],
)
def test_a_failure_is_in_the_words_of_its_error(error: Exception, text: str) -> None:
    failure = make_failure(CONDITIONS, "mine", TASK, error)
    assert failure.error.startswith(text) and "\x1b" not in failure.error and failure.applies


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_vectors_are_scored_where_documents_are_ranked(kind: str) -> None:
    reason = why_not_scored(Design.parse("causal/eol/last/lexical"), LocalTask("mine", kind, {"test": []}))
    assert (reason is None) == (kind in ("retrieval", "reranking"))
    assert reason is None or "only rank documents for a query" in reason


def test_code_of_a_base_that_a_folder_names_runs_if_it_is_listed(
    pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coded = give_code(Path(shutil.copytree(pico_folder("llama"), tmp_path / "coded")), tmp_path / "it-ran")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(coded)}))
    adapter = str(tmp_path / "adapter")
    assert not runs_code(Source(adapter))
    with pytest.raises(UnmaskError, match="Python code"):
        runs_code(Source(adapter, trust_remote_code=True))
    monkeypatch.setenv(TRUSTED, str(coded))
    assert runs_code(Source(adapter, trust_remote_code=True)) and not runs_code(Source(adapter))
    assert runs_code(Source(str(coded), adapters=(adapter,), trust_remote_code=True))
    assert not runs_code(Source(str(pico_folder("llama")), trust_remote_code=True))
