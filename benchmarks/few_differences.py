"""False findings of the paired tests over items where two equal designs differ on few items, simulated.

    python -m benchmarks.few_differences [--studies 2000] [--smoke]

Two equal designs, items that are right or wrong. A share of the items differs between the designs, either way with the same chance. Prints
the per cent of studies with p < 0.05 by the bootstrap and by the exact sign-flip test that `unmask compare` uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks import _inputs
from unmask.statistics.bootstrap import Items, score
from unmask.statistics.paired import bootstrap_tasks, difference_test, sign_flip_p, task_changes

RESAMPLES = 1000


def p_values(a: Items, b: Items, seed: int) -> tuple[float, float]:
    """p by the bootstrap and by the sign-flip test."""
    drawn = [bootstrap_tasks([items], RESAMPLES, seed) for items in (a, b)]
    exact = sign_flip_p(task_changes([[a]], [[b]]))
    assert exact is not None
    return difference_test(*drawn, [score(a)], [score(b)], a.n).p, exact


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each number of items and each share of items that differ."""
    parser = _inputs.parser(__doc__, model=False)
    parser.add_argument("--studies", type=int, default=2000)
    given = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    print("items  differ (mean) | bootstrap  sign-flip")
    for items, differing in product((40, 160, 640), (3, 5, 8, 12, 20)):
        findings = []
        for study in range(2 if given.smoke else given.studies):
            differs = random.random(items) < differing / items
            right = random.integers(0, 2, items)
            a, b = (Items("mean", {"value": value}) for value in (right, np.where(differs, 1 - right, right)))
            findings.append([p < 0.05 for p in p_values(a, b, study)])
        drawn, exact = 100 * np.mean(findings, axis=0)
        print(f"{items:5} {differing:14} | {drawn:9.1f} {exact:10.1f}")


if __name__ == "__main__":
    main()
