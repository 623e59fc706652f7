"""Names that the training of experts and routers allows. Types and options of the commands take them from here."""

from __future__ import annotations

from typing import Literal

Start = Literal["random", "prototypes"]
Over = Literal["pass", "step"]
Average = Literal["example", "token"]
