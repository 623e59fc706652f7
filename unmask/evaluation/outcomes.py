"""Outcomes: what is recorded for a design on a task, a result or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from unmask.designs.design import Design
from unmask.encoding.encoder import Tally
from unmask.errors import UnmaskError
from unmask.evaluation.results import Conditions, Failure, Result
from unmask.evaluation.seed_means import training_note
from unmask.io.terminal import visible
from unmask.models.bundled import resolve
from unmask.models.identity import identity_of
from unmask.models.loading import Source
from unmask.models.source import below, code_of, place_of
from unmask.statistics.bootstrap import Items
from unmask.statistics.intervals import score_interval
from unmask.tasks.kinds import is_of_words, searches
from unmask.tasks.task import Task

if TYPE_CHECKING:
    from unmask.tasks.mteb.evaluator import Outcome

_RESAMPLES = 1000


def make_result(
    conditions: Conditions,
    label: str,
    task: Task,
    outcome: Outcome,
    *,
    dim: int,
    tally: Tally,
    provenance: Mapping[str, Any],
) -> tuple[Result, Items | None]:
    """The result of an evaluator's outcome, with its interval, and the items behind it.

    tally: the texts of the task; dim: the size of a vector. Raises UnmaskError if the main score is not a finite number. Other scores
    that are not finite are left out.
    """
    if not isfinite(outcome.main_score):
        raise UnmaskError(f"the {outcome.metric} is {outcome.main_score}, which is not a score")
    items = outcome.items
    bounds = score_interval(items, resamples=_RESAMPLES) if items is not None and items.n > 1 else None
    result = Result(
        model=conditions.model,
        design=conditions.design,
        label=label,
        task=task.name,
        kind=task.kind,
        metric=outcome.metric,
        main_score=outcome.main_score,
        interval=bounds,
        n=items.n if items is not None else tally.texts,
        scores={name: value for name, value in outcome.scores.items() if isfinite(value)},
        dim=dim,
        texts=tally.texts,
        tokens=tally.tokens,
        tokens_by_prompt=tally.by_prompt,
        truncated=tally.truncated,
        conditions=conditions,
        provenance={**provenance, **training_note(conditions.model)},
    )
    return result, items


def why_not_scored(design: Design, task: Task) -> str | None:
    """Why a task cannot score a design, or None if it can."""
    if design.is_sparse and not searches(task.kind):
        return "sparse vectors only rank documents for a query, as in retrieval and reranking"
    if not is_of_words(task.kind):
        return None
    if design.prompt != "plain":
        return "words are read in the plain text, without a prompt"
    if design.uses_routing:
        return "words are read from hidden states, not from routing weights"
    if isinstance(design.layer, str | tuple) or design.adds_poolings:
        return "words are read at one layer, without a pooling"
    if design.needs_head:
        return "words are read without a trained pooling"
    return None


Returned = TypeVar("Returned")


def attempt(work: Callable[[], Returned], give_up: Callable[[Exception], None]) -> Returned | None:
    """What `work` returns. If it fails: call `give_up` with the error and return None, so that the other designs and tasks go on.

    Raises OSError as it comes: a full disk says nothing of one design.
    """
    try:
        return work()
    except OSError:
        raise
    except Exception as error:
        give_up(error)
        return None


def make_failure(conditions: Conditions, label: str, task: Task, error: Exception) -> Failure:
    """The record of a design without a score on a task, with the text of the error."""
    reason = visible(str(error).strip(), keep="\n") or type(error).__name__
    return Failure(
        model=conditions.model,
        design=conditions.design,
        label=label,
        task=task.name,
        kind=task.kind,
        error=reason if isinstance(error, UnmaskError) else f"{type(error).__name__}: {reason}",
        conditions=conditions,
    )


def make_not_applicable(conditions: Conditions, label: str, task: Task, reason: str) -> Failure:
    """The record of a design that a task cannot score, and why. Nothing failed."""
    return make_failure(conditions, label, task, UnmaskError(f"does not apply: {reason}")).model_copy(update={"applies": False})


def model_revision(source: Source) -> str:
    """What identifies a model's weights, its adapter and its base model: see `unmask.models.identity`."""
    return identity_of(source).revision


def runs_code(source: Source) -> bool:
    """Whether Python code runs that comes with a model, or with the base model that its folder names. Raises UnmaskError."""
    if not source.trust_remote_code:
        return False
    folder = Path(place_of(source))
    base = (below(folder, source) if folder.is_dir() else None) or source
    return base.trust_remote_code and bool(code_of(resolve(base.model), base.revision))
