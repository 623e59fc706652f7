"""Task sets: a benchmark of mteb, or the tasks that a paper was evaluated on, by one name."""

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
from unmask.evaluation.tasks import MtebTask


class PaperSet(BaseModel):
    """What `benchmarks.toml` says of a set: `of` names the benchmark whose subsets and splits hold for its tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    of: str
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class TaskSet:
    """Tasks by one name. refused: why each of the others cannot be compared, by its name in mteb."""

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
        whole = len(self.tasks) + len(self.refused)
        return f"{self.name}: {len(self.refused)} of its {whole} tasks cannot be compared and are left out: {', '.join(self.refused)}."


def set_names() -> list[str]:
    """The names of all task sets: those of papers first, then mteb's benchmarks."""
    from unmask.evaluation.mteb_adapter.catalogue import benchmark_names

    return [*_papers(), *dict.fromkeys(benchmark_names().values())]


def find_set(name: str) -> TaskSet | None:
    """The task set of this name in any spelling (`MTEB(eng, v2)`, `mteb-eng-v2`, `MOEE`), or None."""
    from unmask.evaluation.mteb_adapter.catalogue import benchmark_names, described_benchmark, of_benchmark, short

    if paper := _papers().get(short(name)):
        whole = {task.name: task for task in of_benchmark(paper.of)[0]}
        return TaskSet(short(name), paper.source, tuple(whole[task] for task in paper.tasks), {})
    if benchmark := benchmark_names().get(short(name)):
        tasks, refused = of_benchmark(benchmark)
        return TaskSet(benchmark, described_benchmark(benchmark), tuple(tasks), refused)
    return None


def unknown_task(name: str) -> UnmaskError:
    """Error for a name that is neither a task nor a task set, with the nearest of both."""
    from unmask.evaluation.mteb_adapter.catalogue import benchmark_names, short, task_names

    known = task_names() | benchmark_names() | {paper: paper for paper in _papers()}
    nearest = dict.fromkeys(known[one] for one in get_close_matches(short(name), known, n=3, cutoff=0.6))
    hint = f" Did you mean {_either([repr(one) for one in nearest])}?" if nearest else ""
    return UnmaskError(
        f"Unknown task '{name}'.{hint} A task is a folder, 'starter', a task set (`unmask tasks` lists them) or a name in mteb."
    )


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@cache
def _papers() -> dict[str, PaperSet]:
    text = resources.files("unmask.evaluation").joinpath("benchmarks.toml").read_text(encoding="utf-8")
    return {name: PaperSet.model_validate(paper) for name, paper in tomllib.loads(text).items()}
