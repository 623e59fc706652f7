"""The designs of Pooling and Attention, from the results of `unmask compare` on runs of several seeds.

    python -m benchmarks.five_designs REPORT_FOLDER...

A score is the mean over seeds of one design on one task. Every pair of designs is tested by Wilcoxon's signed-rank test over tasks,
Holm-corrected over all pairs. The spread over seeds stands beside it: it is what a single run could have shown by luck.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.statistics import wilcoxon, with_holm

Scores = dict[str, dict[str, list[float]]]


def by_design(results: list[Result]) -> Scores:
    """Scores x 100 by design, then task, one for each seed."""
    found: Scores = defaultdict(lambda: defaultdict(list))
    for result in results:
        found[result.design][result.task].append(100 * result.main_score)
    seeds = {len(scores) for tasks in found.values() for scores in tasks.values()}
    assert len(seeds) == 1, f"every design needs every task with every seed, found {seeds} seeds"
    return found


def scores_table(found: Scores, tasks: list[str]) -> Table:
    """Mean over seeds of each design and task, and of the mean over tasks its deviation over seeds."""
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
    """Every pair: difference of means over tasks, its interval, p before and after Holm."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    found = by_design([result for folder in parser.parse_args().folders for result in ResultStore(folder).results])
    tasks = list(next(iter(found.values())))
    console = Console(width=180)
    console.print(scores_table(found, tasks))
    console.print(tests_table(found, tasks))


if __name__ == "__main__":
    main()
