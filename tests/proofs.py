"""How much is tried: a sample in `make test`, everything in `make test-all`."""

from __future__ import annotations

import os

ALL = os.environ.get("UNMASK_TESTS") == "all"
"""Whether this is `make test-all`: every case, and simulations long enough to take hours, instead of a sample that takes minutes."""
