"""The task sets of tools.suites: designs are not chosen on texts that the report is about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.suites import DEVELOPMENT, FINAL, main
from unmask.tasks.find import resolve_tasks
from unmask.tasks.task import LocalTask


def texts(value: Any) -> Iterator[str]:
    """Every text of some rows, in lower case, without labels and ids."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in ("label", "_id", "id", "query-id", "corpus-id"):
                yield from texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts(part)
    elif isinstance(value, str) and len(value) > 20:
        yield " ".join(value.lower().split())


def test_the_two_sets_share_no_text(data: Path, tmp_path: Path) -> None:
    main(data, tmp_path)
    found = {}
    for name, expected in (("development", DEVELOPMENT), ("final", FINAL)):
        tasks = [task for task in resolve_tasks([str(tmp_path / name)]) if isinstance(task, LocalTask)]
        assert {task.name.partition("#")[0] for task in tasks} == set(expected)
        assert all(task.size >= 68 for task in tasks)
        found[name] = {text for task in tasks for rows in task.data.values() for text in texts(rows)}
    assert len(found["development"]) > 3000 and not found["development"] & found["final"]
