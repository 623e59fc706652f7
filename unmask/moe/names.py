"""Values that options of mixtures, merges and training allow. Importing this loads no torch."""

from __future__ import annotations

from typing import Literal

RouterPlacement = Literal["block", "layer", "final"]
Level = Literal["token", "sequence"]
Method = Literal["linear", "ties", "dare"]


Start = Literal["random", "prototypes"]
Over = Literal["pass", "step"]
Average = Literal["example", "token"]
