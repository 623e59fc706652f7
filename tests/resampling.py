"""Statistics made cheap, for tests of what is shown and written and not of the numbers."""

from __future__ import annotations

import importlib
from collections.abc import Callable

_NUMBERS = (
    ("unmask.statistics.correlations", "RESAMPLES"),
    ("unmask.statistics.ratios", "RESAMPLES"),
    ("unmask.probing.layers", "RESAMPLES"),
    ("unmask.probing.clusters", "_PERMUTATIONS"),
)
_FEW = 20


def resample_less(change: Callable[[object, str, object], None] = setattr) -> None:
    """Draw few samples in every bootstrap and permutation test of a probe. change: `monkeypatch.setattr`, if it is to be undone."""
    for module, name in _NUMBERS:
        place = importlib.import_module(module)
        assert getattr(place, name) >= _FEW, f"{module}.{name} is no number of samples any more"
        change(place, name, _FEW)
