"""Results with items, in a folder, for the tests of what is said of designs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.statistics.bootstrap import Items

DESIGNS = {"mean": 0.5, "last": 0.45, "echo": 0.8}
TASKS = ["t0", "t1", "t2", "t3", "t4", "t5", "t6"]
REFERENCE = "sentence-transformers"


def values_of(design: str, task: str, n: int = 40) -> np.ndarray:
    """Scores of items: a task's own, moved by the design's mean, with noise of both."""
    shared = np.random.default_rng([TASKS.index(task)]).normal(0, 0.1, n)
    noise = np.random.default_rng([TASKS.index(task), sum(design.encode())]).normal(0, 0.02, n)
    return shared + noise + DESIGNS.get(design, 0.95)


def add(
    store: ResultStore, design: str, task: str, *, model: str = "m", kind: str = "sts", items: bool = True, tokens: int = 100
) -> Result:
    value = values_of(design, task)
    result = Result(
        model=model,
        design=design,
        label=f"{design}-label",
        task=task,
        kind=kind,
        metric="accuracy",
        main_score=float(value.mean()),
        interval=None,
        n=len(value),
        scores={},
        dim=8,
        texts=10,
        tokens=tokens,
        truncated=0,
        conditions=Conditions(
            model=model,
            model_revision="r",
            design=design,
            task=task,
            task_revision="tr",
            max_length=512,
            dtype="float32",
        ),
        provenance={},
    )
    store.add(result, Items("mean", {"value": value}) if items else None)
    return result


def grid(folder: Path, designs: Sequence[str], tasks: Sequence[str]) -> tuple[list[Result], ResultStore]:
    store = ResultStore(folder)
    return [add(store, design, task) for design in designs for task in tasks], store


def items_of(design: str, tasks: Sequence[str]) -> list[Items]:
    return [Items("mean", {"value": values_of(design, task)}) for task in tasks]
