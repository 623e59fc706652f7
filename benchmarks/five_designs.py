"""The five designs of the paper Pooling and Attention, from the results of `unmask compare` on runs with several seeds.

    python -m benchmarks.five_designs REPORT_FOLDER... (or --smoke)

A score is the mean over seeds of one design on one task. Every pair of designs is tested by Wilcoxon's signed-rank test over tasks,
Holm-corrected over all pairs. The tables also show the spread over seeds: a single run may be better or worse by so much, only by luck.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import _inputs
from unmask.evaluation.results import Result, ResultStore
from unmask.statistics.paired import wilcoxon, with_holm

Scores = dict[str, dict[str, list[float]]]


def by_design(results: list[Result]) -> Scores:
    """Scores x 100 by design, then task, one for each seed."""
    found: Scores = defaultdict(lambda: defaultdict(list))
    for result in results:
        found[result.design][result.task].append(100 * result.main_score)
    seeds = {len(scores) for tasks in found.values() for scores in tasks.values()}
    assert len(seeds) == 1, f"Every design needs every task with every seed. The numbers of seeds differ: {seeds}."
    return found


def scores_table(found: Scores, tasks: list[str]) -> Table:
    """The mean over seeds of each design on each task. The last column: the mean over tasks ± its deviation over seeds."""
    table = Table(box=box.SIMPLE_HEAD, title="mean over seeds x 100", title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("design", no_wrap=True)
    for task in [*tasks, "mean ± seeds"]:
        table.add_column(task, justify="right", overflow="fold")
    order = sorted(found, key=lambda design: -np.mean([np.mean(found[design][task]) for task in tasks]))
    for design in order:
        means = np.mean([found[design][task] for task in tasks], axis=0)
        cells = [f"{np.mean(found[design][task]):.1f}" for task in tasks]
        table.add_row(design, *cells, f"{means.mean():.2f} ± {means.std(ddof=1):.2f}")
    return table


def tests_table(found: Scores, tasks: list[str]) -> Table:
    """For every pair: the difference of the means over tasks, its interval, and p before and after Holm's correction."""
    pairs = list(combinations(found, 2))
    averages = {design: [float(np.mean(found[design][task])) for task in tasks] for design in found}
    tested = with_holm([wilcoxon(averages[a], averages[b]) for a, b in pairs])
    table = Table(
        box=box.SIMPLE_HEAD, title=f"Wilcoxon over {len(tasks)} tasks, Holm over {len(pairs)} pairs", title_justify="left"
    )
    for column in ("a", "b", "a - b", "95 %", "p", "p (Holm)"):
        table.add_column(column, no_wrap=True)
    for (a, b), test in sorted(zip(pairs, tested, strict=True), key=lambda one: one[1].p):
        low, high = test.interval
        table.add_row(a, b, f"{test.difference:+.2f}", f"{low:+.2f} .. {high:+.2f}", f"{test.p:.4f}", f"{test.p_holm or 1:.3f}")
    return table


def smoke_results(folder: Path) -> list[Result]:
    """Results of two designs of the pico model on six small tasks: the test needs six."""
    from unmask.designs.design import parse_designs
    from unmask.evaluation.compare import ComparisonPlan, compare
    from unmask.models.loading import Source
    from unmask.starter import reference_texts
    from unmask.tasks.find import resolve_tasks
    from unmask.tasks.task import LocalTask

    names = [f"{_inputs.STARTER[name]}#{limit}" for name in ("sts", "retrieval") for limit in (8, 10, 12)]
    tasks = [task for task in resolve_tasks(names) if isinstance(task, LocalTask)]
    store = ResultStore(folder)
    compare(ComparisonPlan(Source("pico"), parse_designs("mean,last"), tasks, 64, reference_texts()), store)
    return store.results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _inputs.parser(__doc__, model=False)
    parser.add_argument("folders", type=Path, nargs="*")
    given = parser.parse_args(arguments)
    if given.smoke:
        with tempfile.TemporaryDirectory() as folder:
            found = by_design(2 * smoke_results(Path(folder)))
    else:
        found = by_design([result for folder in given.folders for result in ResultStore(folder).results])
    tasks = list(next(iter(found.values())))
    console = Console(width=180)
    console.print(scores_table(found, tasks))
    console.print(tests_table(found, tasks))


if __name__ == "__main__":
    main()
