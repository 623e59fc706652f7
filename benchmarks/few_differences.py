"""False findings of the paired tests over items, if two equal designs differ on few items.

    python -m benchmarks.few_differences [--smoke]

Items are right or wrong. Each item differs between the two designs with the same small chance, and then each design is right with the same
chance. The table has the per cent of such comparisons with p below 0.05, and below 0.05 / 28 (the level of the first of 28 pairs under
Holm's correction), for the bootstrap and for the exact sign-flip test. These are exact sums over all outcomes, not a simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
from scipy.stats import binom

from benchmarks._common import head, row, start
from unmask.statistics.bootstrap import Items
from unmask.statistics.paired import SampledScores, compare_on_items, sign_flip_p, task_changes

RESAMPLES = 2800
LEVELS = (0.05, 0.05 / 28)


@cache
def p_values(items: int, better: int, worse: int) -> tuple[float, float]:
    """p of the bootstrap and of the sign-flip test, if the first design is better on some items and worse on others."""
    first, second = np.ones(items), np.ones(items)
    second[:better], first[better : better + worse] = 0, 0
    a, b = (Items("mean", {"value": values}) for values in (first, second))
    exact = sign_flip_p(task_changes([[a]], [[b]]))  # type: ignore[arg-type]
    assert exact is not None
    sampled = (SampledScores.draw([[design]], RESAMPLES) for design in (a, b))
    return compare_on_items(*sampled, interaction=True).p, exact  # without the sign-flip test


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each number of items and each mean number of items that differ."""
    args = start(__file__, __doc__, arguments)
    sizes, counts = ((40,), (3,)) if args.smoke else ((40, 160), (3, 5, 8, 12, 20))
    head("items", "differ, mean", *(f"{test}, % below {level:.4g}" for level in LEVELS for test in ("bootstrap", "sign-flip")))
    for items, mean in product(sizes, counts):
        shares = np.zeros((2, 2))
        for differing in range(1, items + 1):
            if (chance := binom.pmf(differing, items, mean / items)) < 1e-6:
                continue
            for better in range(differing + 1):
                worse = differing - better
                p = np.array(p_values(items, max(better, worse), min(better, worse)))
                shares += chance * binom.pmf(better, differing, 0.5) * (p < np.array(LEVELS)[:, None])
        row(str(items), str(mean), *(f"{100 * share:.2f}" for share in shares.flat))


if __name__ == "__main__":
    main()
