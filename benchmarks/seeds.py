"""False findings and intervals of the test of trained designs, simulated.

    python -m benchmarks.seeds [--studies 1000] [--smoke]

Two equal designs are scored on 12 tasks, with 2 to 5 seeds each. Scores vary between the trainings of a design (columns a and b), the
difference of the designs varies between tasks, and the rest is noise. The table has the per cent of studies with p below 0.05, and of
95 % intervals of `seed_test` that contain the true difference, 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks._common import head, row, start
from unmask.statistics.paired import seed_test

TASKS = 12
DEVIATIONS = [(1.0, 0.1, 0.1), (1.0, 1.0, 0.5), (0.3, 1.0, 0.5), (0.0, 1.0, 0.3), (0.0, 0.0, 1.0)]
EQUAL = [((seeds, seeds), (a, a), task, rest) for seeds, (a, task, rest) in product((2, 3, 5), DEVIATIONS)]
UNEQUAL = [(seeds, (1.0, b), 0.3, 0.3) for seeds, b in product(((3, 3), (5, 5), (3, 5), (5, 3), (2, 5)), (0.5, 0.2))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each number of seeds and each set of deviations."""
    args = start(__file__, __doc__, arguments, studies=(1000, 2))
    random = np.random.default_rng(0)
    head("seeds", "a", "b", "tasks", "rest", "p over tasks", "p over both", "larger p", "interval")
    for seeds, deviations, task, rest in EQUAL + UNEQUAL:
        outcomes = []
        for _ in range(args.studies):
            a, b = (
                random.normal(0, deviation, (number, 1)) + random.normal(0, rest, (number, TASKS))
                for number, deviation in zip(seeds, deviations, strict=True)
            )
            a = a + random.normal(0, task, TASKS)
            test = seed_test(a, b)
            low, high = test.test.interval
            outcomes.append([test.p_tasks < 0.05, test.p_both < 0.05, test.test.p < 0.05, low <= 0 <= high])
        shares = 100 * np.mean(outcomes, axis=0)
        row(f"{seeds[0]}, {seeds[1]}", *map(str, (*deviations, task, rest)), *(f"{share:.1f}" for share in shares))


if __name__ == "__main__":
    main()
