"""False findings of the paired tests over items, if two equal designs differ on few items.

    python -m benchmarks.few_differences [--smoke]

Items are right or wrong. Each item differs between the two designs with the same small chance, and each design is then right with the same
chance. It prints the per cent of such comparisons with p below 0.05, and below 0.05 / 28 (the level of the first of 28 pairs under Holm's
correction), for the bootstrap and for the exact sign-flip test of `unmask compare`. The per cents are exact sums over all outcomes, not a
simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np

from benchmarks import _inputs
from unmask.statistics.bootstrap import Items, score
from unmask.statistics.paired import bootstrap_tasks, difference_test, sign_flip_p, task_changes

RESAMPLES = 2800
LEVELS = (0.05, 0.05 / 28)


@cache
def p_values(items: int, better: int, worse: int) -> tuple[float, float]:
    """p of the bootstrap and of the sign-flip test. The first design is better on some items and worse on others."""
    first, second = np.ones(items), np.ones(items)
    second[:better], first[better : better + worse] = 0, 0
    a, b = (Items("mean", {"value": value}) for value in (first, second))
    exact = sign_flip_p(task_changes([[a]], [[b]]))  # type: ignore[arg-type]
    assert exact is not None
    drawn_a, drawn_b = (bootstrap_tasks([design], RESAMPLES) for design in (a, b))
    return difference_test(drawn_a, drawn_b, [score(a)], [score(b)], items).p, exact


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each number of items and each number of items that differ."""
    from scipy.stats import binom

    given = _inputs.parser(__doc__, model=False).parse_args(arguments)
    sizes, counts = ((40,), (3,)) if given.smoke else ((40, 160), (3, 5, 8, 12, 20))
    print("items  differ (mean) | p < 0.05: bootstrap, sign-flip | p < 0.0018: bootstrap, sign-flip")
    for items, differing in product(sizes, counts):
        shares = np.zeros((2, 2))
        for number in range(1, items + 1):
            chance = binom.pmf(number, items, differing / items)
            if chance < 1e-6:
                continue
            for better in range(number + 1):
                p = np.array(p_values(items, max(better, number - better), min(better, number - better)))
                shares += chance * binom.pmf(better, number, 0.5) * (p < np.array(LEVELS)[:, None])
        columns = " | ".join(f"{100 * drawn:18.2f} {100 * exact:11.2f}" for drawn, exact in shares)
        print(f"{items:5} {differing:14} | {columns}")


if __name__ == "__main__":
    main()
