"""Values that options of mixtures, merges and training allow. Importing this loads no torch."""

from __future__ import annotations

from typing import Literal

RouterPlacement = Literal["block", "layer", "final"]
RoutingLevel = Literal["token", "sequence"]
MergeMethod = Literal["linear", "ties", "dare"]


RouterStart = Literal["random", "prototypes"]
BalanceOver = Literal["pass", "step"]
LossAverage = Literal["example", "token"]
