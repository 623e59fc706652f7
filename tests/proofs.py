"""How much is tried: a sample in `make test`, everything in `make proofs`."""

from __future__ import annotations

import os

ALL = os.environ.get("UNMASK_PROOFS") == "all"
"""Whether this is `make proofs`: every case, or so many that it takes hours, instead of a sample that takes a minute."""
