"""What checks shapes and types of arguments in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Any) -> Any:
    """Check a function or class whenever it is called; leave a function inside another as it is.

    beartype writes new code for each function that it is given. A hook that is made for every forward pass would be written anew
    for every pass, which took a fifth of the time of the tests of encoding.
    """
    inner: Callable[..., Any] | Any = function
    return inner if "<locals>" in getattr(function, "__qualname__", "") else beartype(function)
