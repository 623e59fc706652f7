"""Task sets: the tasks of a benchmark or a paper, under one name."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict

from unmask.errors import UnmaskError
from unmask.tasks.task import MtebTask


class StatedSet(BaseModel):
    """A set in `benchmarks.toml`: its source, the benchmark that it is or is a part of, and its number of tasks by kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    of: str
    kinds: dict[str, int]
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskSet:
    """Tasks under one name. refused: why each other task of the set cannot be compared, by its name in mteb."""

    name: str
    source: str
    tasks: tuple[MtebTask, ...]
    refused: dict[str, str]

    @property
    def kinds(self) -> dict[str, int]:
        """Number of tasks by kind, the most frequent first."""
        return dict(Counter(task.kind for task in self.tasks).most_common())

    @property
    def left_out(self) -> str:
        """One sentence on the tasks that cannot be compared, or nothing."""
        if not self.refused:
            return ""
        total = len(self.tasks) + len(self.refused)
        return f"{self.name}: {len(self.refused)} of its {total} tasks cannot be compared and are left out: {', '.join(self.refused)}."


@cache
def stated_sets() -> dict[str, StatedSet]:
    """The task sets that this package names, by short name; any other benchmark of mteb is one too."""
    text = resources.files("unmask.tasks").joinpath("benchmarks.toml").read_text(encoding="utf-8")
    return {name: StatedSet.model_validate(stated) for name, stated in tomllib.loads(text).items()}


def find_set(name: str) -> TaskSet | None:
    """The task set of this name in any spelling (`MTEB(eng, v2)`, `mteb-eng-v2`, `MoEE`), or None."""
    from unmask.tasks.mteb.catalogue import benchmark_names, described_benchmark, of_benchmark, short

    benchmark = benchmark_names().get(short(name))
    stated = stated_sets().get(short(benchmark or name))
    if stated and stated.tasks:
        by_name = {task.name: task for task in of_benchmark(stated.of)[0]}
        return TaskSet(short(name), stated.source, tuple(by_name[task] for task in stated.tasks), {})
    if not benchmark:
        return None
    tasks, refused = of_benchmark(benchmark)
    return TaskSet(benchmark, stated.source if stated else described_benchmark(benchmark), tuple(tasks), refused)


def known_names() -> dict[str, str]:
    """The tasks of mteb and all task sets, by short name."""
    from unmask.tasks.mteb.catalogue import benchmark_names, task_names

    return task_names() | benchmark_names() | {stated: stated for stated, entry in stated_sets().items() if entry.tasks}


def unknown_task(name: str) -> UnmaskError:
    """Error for a name that is neither a task nor a task set, with the nearest of both."""
    from unmask.tasks.mteb.catalogue import short

    names = known_names()
    nearest = dict.fromkeys(names[entry] for entry in get_close_matches(short(name), names, n=3, cutoff=0.6))
    hint = f" Did you mean {_either([repr(entry) for entry in nearest])}?" if nearest else ""
    return UnmaskError(
        f"Unknown task '{name}'.{hint} A task is a folder, 'starter', a task set (`unmask tasks` lists them) or a name in mteb."
    )


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
