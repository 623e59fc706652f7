"""Errors that a user can fix, and messages that say how."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Integral
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


class UnmaskError(ValueError):
    """A mistake that the user can fix: the command line prints it as one sentence and exits with code 2."""


class AttentionError(UnmaskError):
    """The loaded model does not attend as the design requires."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> UnmaskError:
    """Error for a name outside a fixed set, with the nearest match and all allowed names."""
    names = sorted(allowed)
    nearest = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    quoted = f"'{name}'" if name.isprintable() else ascii(name)  # an error stays one line
    return UnmaskError(f"Unknown {kind} {quoted}.{hint} Allowed: {', '.join(names)}.")


_LONGEST_CAUSE = 600
"""Most characters of a library's message that are shown."""


def cause_of(error: BaseException) -> str:
    """A library's complete error message on one line, with the exception class where the message alone explains nothing ("'su'").

    Libraries often put the reason in the second line or at the end, so a long message loses its middle.
    """
    message = " ".join(str(error).split())
    if not message or not isinstance(error, OSError | ValueError | RuntimeError | ImportError):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if len(message) > _LONGEST_CAUSE:
        half = _LONGEST_CAUSE // 2
        message = f"{message[:half].rstrip()} ... {message[-half:].lstrip()}"
    return message


def require_counts(**numbers: int | None) -> None:
    """Raise UnmaskError unless a named number is a positive integer or None (use the default)."""
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 1):
            raise UnmaskError(f"{name} is {value!r}: give a whole number from 1 on.")


def require_package(module: str) -> None:
    """Raise UnmaskError, with the command that installs it, if a module of an optional package cannot be imported."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise not_installed(module) or ModuleNotFoundError(module, name=module)


def not_installed(module: str) -> UnmaskError | None:
    """Error for a missing module, with the command that installs it; None if no extra of unmask installs it."""
    from importlib.metadata import requires

    name = module.split(".")[0]
    package = "scikit-learn" if name == "sklearn" else name.replace("_", "-")
    for requirement in requires("unmask") or []:
        extra = re.match(r"([\w.-]+)[^;]*;.*\bextra == ['\"](\w+)['\"]", requirement)
        if extra and extra[1] == package:
            return UnmaskError(f"This needs {package}, which is not installed: pip install 'unmask[{extra[2]}]'.")
    return None


def first_problem(error: ValidationError) -> str:
    """The first problem that pydantic found in a file: the key and the reason."""
    problem = error.errors()[0]
    return f"{'.'.join(place_of(problem)) or 'the file'}: {reason_of(problem)}"


def place_of(problem: ErrorDetails) -> list[str]:
    """The keys that lead to a problem, without the members of a union that pydantic tried, such as literal['all']."""
    return [str(part) for part in problem["loc"] if not str(part).startswith(("literal[", "tuple["))]


def reason_of(problem: ErrorDetails) -> str:
    """What is wrong with a value: pydantic's message, or a plain one where that is hard to read."""
    if problem["type"] == "missing":
        return "it is missing"
    if problem["type"] == "extra_forbidden":
        return "this name is unknown"
    if problem["type"] == "too_short":
        least, number = problem["ctx"]["min_length"], problem["ctx"]["actual_length"]
        return f"it needs at least {least} value{'s' * (least != 1)}, and has {number or 'none'}"
    return str(problem["msg"]).removeprefix("Value error, ").rstrip(".")


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turn pydantic's error about an option into an UnmaskError of one sentence."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        name, reason = ".".join(place_of(problem)), reason_of(problem)
        if reason.startswith("Input should be "):
            message = f"{name} should be {reason.removeprefix('Input should be ')}, not {problem['input']!r}."
        else:
            message = f"{name}: {reason}." if name else f"{reason}."
        raise UnmaskError(message) from error
