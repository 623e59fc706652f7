"""Cells: what is kept of a design on a task, be it a score or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from unmask.encoding.encode import Tally
from unmask.errors import UnmaskError
from unmask.evaluation.results import Conditions, Failure, Result
from unmask.io.terminal import visible
from unmask.models.identity import identity_of
from unmask.models.loading import Source
from unmask.statistics.bootstrap import Items
from unmask.statistics.intervals import score_interval
from unmask.tasks.task import Task

if TYPE_CHECKING:
    from unmask.tasks.mteb.evaluator import Outcome

_RESAMPLES = 1000


def made_result(
    conditions: Conditions, label: str, task: Task, outcome: Outcome, dim: int, tally: Tally, provenance: Mapping[str, Any]
) -> tuple[Result, Items | None]:
    """The result of an outcome, with its interval, and the items behind it. tally: of the task's texts; dim: of a vector.

    Raises UnmaskError for a main score that is no finite number; another score that is none is left out.
    """
    if not isfinite(outcome.main_score):
        raise UnmaskError(f"the {outcome.metric} is {outcome.main_score}, so this is no result")
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
        truncated=tally.truncated,
        conditions=conditions,
        provenance=dict(provenance),
    )
    return result, items


Scored = TypeVar("Scored")


def attempted(work: Callable[[], Scored], give_up: Callable[[Exception], None]) -> Scored | None:
    """What scoring gives, or None once `give_up` was told why it failed: a grid of hundreds of cells goes on.

    A full disk is not the cell's failure, and raises OSError.
    """
    try:
        return work()
    except OSError:
        raise
    except Exception as error:
        give_up(error)
        return None


def failed(conditions: Conditions, label: str, task: Task, error: Exception) -> Failure:
    """Why a cell has no score, in the words of its error."""
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


def not_asked(conditions: Conditions, label: str, task: Task, reason: str) -> Failure:
    """That a task asks nothing of a design, and why; nothing failed."""
    return failed(conditions, label, task, UnmaskError(f"does not apply: {reason}")).model_copy(update={"applies": False})


def model_revision(source: Source) -> str:
    """What identifies a model's weights, its adapter and the base below it: see `unmask.models.identity`."""
    return identity_of(source).revision
