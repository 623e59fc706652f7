"""Numbers on the command line: click takes nan for any range, and whole numbers of any size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from typer import BadParameter

_LARGEST = 2**63


def check_numbers(context: Any, parameters: Sequence[Any]) -> None:
    """Raise a usage error for nan, infinity, and a number beyond 64 bits, whichever option was given it."""
    for parameter in parameters:
        value = context.params.get(parameter.name)
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise BadParameter(f"{number} is not a finite number.", context, parameter)
            if isinstance(number, int) and abs(number) >= _LARGEST:
                raise BadParameter(f"{number} is too large a number.", context, parameter)
