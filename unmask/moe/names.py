"""Names that mixtures and merges allow. Types, options of the commands and errors take them from here."""

from __future__ import annotations

from typing import Literal

RouterKind = Literal["block", "layer", "final"]
Level = Literal["token", "sequence"]
Method = Literal["linear", "ties", "dare"]


Start = Literal["random", "prototypes"]
Over = Literal["pass", "step"]
Average = Literal["example", "token"]
