"""Cost of a grid: 30 designs on ten tasks, compared with the costliest design alone in each pass (one attention and one prompt).

    python -m benchmarks.grid [--model smollm2] [--limit 100] [--keep FILE] [--smoke]

The data of the tasks are in UNMASK_DATA. The costliest design of a pass has the widest vectors: all layers side by side. It needs the
same forward passes as all the others, and its scoring takes the longest. All runs are in one process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import _inputs, _report
from benchmarks._report import Report
from unmask.designs.design import Design, parse_designs
from unmask.evaluation.compare import ComparisonPlan, compare, load_checked
from unmask.evaluation.results import ResultStore
from unmask.models.loading import Source
from unmask.starter import reference_texts
from unmask.tasks.find import resolve_tasks
from unmask.tasks.task import LocalTask

TASKS = ("stsb", "sickr", "sts12", "sts13", "mrpc", "trec", "subj", "bbc_news", "searchsnippets", "trecqa")
LAYERS = (4, 8, 12, 16, 20, 24)
COLUMNS = {"what": "{}", "time": "{:.2f}", "share of forward passes": "{:.0%}"}
PASSES = ("causal/plain", "causal/eol")


def designs(layers: Sequence[int]) -> dict[str, Design]:
    """Fifteen designs for each pass."""
    names = []
    for start in PASSES:
        names += [f"{start}/{pooling}" for pooling in ("last", "mean", "weighted-mean", "max", "first")]
        names += [f"{start}/{pooling}@{layer}" for pooling in ("last", "mean") for layer in layers][:8]
        names += [f"{start}/mean/zscore", f"{start}/mean@all"]
    return parse_designs(",".join(names))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _report.parser(__doc__)
    parser.add_argument("--limit", type=int, default=100)
    given = parser.parse_args(arguments)
    model, limit = _inputs.model_of(given), 10 if given.smoke else given.limit
    specs = [f"{_inputs.STARTER['sts']}#{limit}"] if given.smoke else _inputs.tasks(*(f"{name}#{limit}" for name in TASKS))
    tasks = [task for task in resolve_tasks(specs) if isinstance(task, LocalTask)]
    plan = ComparisonPlan(Source(model), designs((1, 2) if given.smoke else LAYERS), tasks, 512, reference_texts())
    loaded = load_checked(plan)

    def seconds(of: Mapping[str, Design]) -> tuple[float, float]:
        """Seconds of the whole run, and of its forward passes."""
        with tempfile.TemporaryDirectory() as folder:
            store = ResultStore(Path(folder))
            began = time.perf_counter()
            compare(ComparisonPlan(plan.source, of, tasks, 512, plan.reference), store, loaded=lambda: loaded)
            return time.perf_counter() - began, sum(cost.seconds for cost in store.costs)

    seconds({"last": Design.parse("causal/plain/last")})  # a warm-up
    widest = {start: seconds({start: Design.parse(f"{start}/mean@all")}) for start in PASSES}
    whole, passes = seconds(plan.designs)
    alone = sum(total for total, _ in widest.values())
    with Report(__file__, arguments) as report:
        report.note(
            f"{model}: {len(plan.designs)} designs on {len(tasks)} tasks of at most {limit} items, {len(PASSES)} forward passes."
        )
        table = report.table("Times as multiples of the costliest design of each forward pass alone", COLUMNS)
        table.add("all designs together", whole / alone, passes / whole)
        table.add("the costliest designs alone", 1.0, sum(own for _, own in widest.values()) / alone)


if __name__ == "__main__":
    main()
