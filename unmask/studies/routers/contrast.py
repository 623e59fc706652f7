"""Contrasts: how two configurations differ by one yardstick, seed by seed, and the test of it.

A seed gives both configurations the same first weights and the same order of lessons, so their difference is taken within each seed. It
has two sources of error: other texts (or tasks), and other seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from unmask.io.array_types import NDArray
from unmask.statistics.paired import PairedTest
from unmask.statistics.variance_sources import t_of_sources
from unmask.studies.routers.configurations import Yardstick

Source = tuple[float, int]
"""A variance and its degrees of freedom."""
SeedNoise = Mapping[Yardstick, Source]
"""By yardstick: the variance of the difference from one seed to another, pooled over the configurations of a study."""

FEWEST = 6
"""Fewer items or tasks give no test."""


@dataclass(frozen=True)
class Contrast:
    """The difference of two configurations. by_seed: of each seed. over_items: the variance of their mean that comes from the items.

    what: names the items, for the name of the test.
    """

    by_seed: tuple[float, ...]
    over_items: float
    items: int
    what: str

    @property
    def seeds(self) -> Source:
        """The variance of one seed's difference."""
        return float(np.var(self.by_seed, ddof=1)), len(self.by_seed) - 1

    def test(self, pooled: Source) -> PairedTest:
        """t of the mean difference. Its variance is that from the items plus that from the seeds.

        The variance between three seeds may be near zero by chance, and a test that trusts it finds too much: at the strictest level of
        Holm's correction up to eight times as many false differences as it should. So the larger of the contrast's own variance and that
        pooled over the study counts.
        """
        variance, freedom = max(self.seeds, pooled)
        sources = [(self.over_items, self.items - 1), (variance / len(self.by_seed), max(1, freedom))]
        return t_of_sources(
            float(np.mean(self.by_seed)), sources, self.items, f"{self.what} and {len(self.by_seed)} paired seeds"
        )


def of_items(differences: Float[NDArray[np.float64], "seed item"], what: str) -> Contrast | None:
    """The contrast of two configurations with scores on the same items. None for fewer than six items."""
    items = differences.shape[1]
    if items < FEWEST:
        return None
    over_items = float(differences.mean(axis=0).var(ddof=1)) / items
    return Contrast(tuple(differences.mean(axis=1).tolist()), over_items, items, what)


def seed_noise(contrasts: Iterable[Mapping[Yardstick, Contrast]]) -> dict[Yardstick, Source]:
    """The variance between seeds by yardstick, pooled over contrasts: the mean of their variances, weighted by degrees of freedom."""
    found: dict[Yardstick, list[Source]] = {}
    for one in contrasts:
        for yardstick, contrast in one.items():
            found.setdefault(yardstick, []).append(contrast.seeds)
    freedom = {yardstick: sum(count for _, count in sources) for yardstick, sources in found.items()}
    return {
        yardstick: (sum(variance * count for variance, count in sources) / freedom[yardstick], freedom[yardstick])
        for yardstick, sources in found.items()
    }
