"""False findings and intervals of the test of trained designs, simulated.

    python -m benchmarks.seeds [--studies 1000] [--smoke]

It simulates two equal designs on 12 tasks, with 2 to 5 seeds each. Scores vary between the trainings of either design (runs), the
designs' difference varies between tasks (task), and there is other noise (rest). It prints the per cent of studies with p < 0.05, and
the per cent of 95 % intervals that contain the true difference, 0. `interval` is the interval of `seed_test`. `bootstrap` is an
alternative: it draws n - 1 of n tasks and of n seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks import _inputs
from unmask.statistics.bootstrap import Scores, interval
from unmask.statistics.paired import seed_test

TASKS, RESAMPLES = 12, 1000
DEVIATIONS = [(1.0, 0.1, 0.1), (1.0, 1.0, 0.5), (0.3, 1.0, 0.5), (0.0, 1.0, 0.3), (0.0, 0.0, 1.0)]
EQUAL = [((seeds, seeds), (run, run), task, rest) for seeds, (run, task, rest) in product((2, 3, 5), DEVIATIONS)]
UNEQUAL = [
    (seeds, runs, 0.3, 0.3) for seeds, runs in product(((3, 3), (5, 5), (3, 5), (5, 3), (2, 5)), ((1.0, 0.5), (1.0, 0.2)))
]


def bootstrapped(tables: tuple[Scores, Scores], random: np.random.Generator) -> tuple[float, float]:
    """Percentile interval of the mean difference, from resampled tasks and seeds."""

    def weights(n: int) -> Scores:
        return random.multinomial(n - 1, np.full(n, 1 / n), size=RESAMPLES) / (n - 1)

    tasks = weights(TASKS)
    a, b = (np.einsum("rs,st,rt->r", weights(len(table)), table, tasks, optimize=True) for table in tables)
    return interval(a - b)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each number of seeds and each set of deviations."""
    parser = _inputs.parser(__doc__, model=False)
    parser.add_argument("--studies", type=int, default=1000)
    given = parser.parse_args(arguments)
    studies = 2 if given.smoke else given.studies
    random = np.random.default_rng(0)
    print("seeds     runs task rest | p_tasks p_both larger | interval bootstrap")
    for seeds, runs, task, rest in EQUAL + UNEQUAL:
        found = []
        for _ in range(studies):
            a, b = (
                random.normal(0, run, (number, 1)) + random.normal(0, rest, (number, TASKS))
                for number, run in zip(seeds, runs, strict=True)
            )
            a = a + random.normal(0, task, TASKS)
            test = seed_test(a, b)
            held = [low <= 0 <= high for low, high in (test.test.interval, bootstrapped((a, b), random))]
            found.append([test.p_tasks < 0.05, test.p_both < 0.05, test.test.p < 0.05, *held])
        of_tasks, both, larger, own, drawn = 100 * np.mean(found, axis=0)
        varied = f"{seeds[0]:3} {seeds[1]}  {runs[0]:3.1f} {runs[1]:3.1f} {task:4.1f} {rest:4.1f}"
        print(f"{varied} | {of_tasks:7.1f} {both:6.1f} {larger:6.1f} | {own:8.1f} {drawn:9.1f}")


if __name__ == "__main__":
    main()
