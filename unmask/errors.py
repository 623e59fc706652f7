"""What a user did that cannot work, said so that they can put it right."""

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

_DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # modules whose package has another name


class UnmaskError(ValueError):
    """A mistake that the user can put right: the command line prints it as one sentence and exits with code 2."""


class AttentionError(UnmaskError):
    """The loaded model does not attend as the design says."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> UnmaskError:
    """Error for a name outside a fixed set: what was given, the nearest match, everything that is allowed."""
    names = sorted(allowed)
    nearest = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    quoted = f"'{given}'" if given.isprintable() else ascii(given)  # of a line break, its escape: the error stays one line
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


def require_counts(**given: int | None) -> None:
    """Raise UnmaskError unless a named number is a positive integer or None (use the default)."""
    for name, value in given.items():
        if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 1):
            raise UnmaskError(f"{name} is {value!r}: give a whole number from 1 on.")


def require_package(module: str) -> None:
    """Raise UnmaskError, with the command that installs it, if a module of an optional package cannot be imported."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise not_installed(module) or ModuleNotFoundError(module, name=module)


def not_installed(module: str) -> UnmaskError | None:
    """Error for a module that is missing, with the command that installs it; None if no extra of unmask brings it."""
    name = module.split(".")[0]
    package = _DISTRIBUTIONS.get(name, name.replace("_", "-"))
    extra = _extras().get(package)
    said = f"This needs {package}, which is not installed: pip install 'unmask[{extra}]'."
    return UnmaskError(said) if extra else None


def _extras() -> dict[str, str]:
    """The extra of unmask that installs each optional package, as its own metadata say; the first of several."""
    from importlib.metadata import requires

    extras: dict[str, str] = {}
    for requirement in requires("unmask") or []:
        if told := re.match(r"([\w.-]+)[^;]*;.*\bextra == ['\"](\w+)['\"]", requirement):
            extras.setdefault(told[1], told[2])
    return extras


def first_problem(error: ValidationError) -> str:
    """The first problem that pydantic found in a file: where it is, and what."""
    problem = error.errors()[0]
    return f"{'.'.join(place_of(problem)) or 'the file'}: {reason_of(problem)}"


def place_of(problem: ErrorDetails) -> list[str]:
    """The keys that lead to a problem. pydantic also names the members of a union that it tried, such as literal['all']."""
    return [str(part) for part in problem["loc"] if not str(part).startswith(("literal[", "tuple["))]


def reason_of(problem: ErrorDetails) -> str:
    """What is wrong with a value, in words for a user: for the most part pydantic's own."""
    return _plain_reason(problem) or str(problem["msg"]).removeprefix("Value error, ").rstrip(".")


def _plain_reason(problem: ErrorDetails) -> str | None:
    """A clause of our own where pydantic's words are hard to read, else None."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "missing":
        return "it is missing"
    if kind == "extra_forbidden":
        return "this name is unknown"
    if kind == "too_short":
        least, plural = context["min_length"], "s" if context["min_length"] != 1 else ""
        return f"it needs at least {least} value{plural}, and has {context['actual_length'] or 'none'}"
    return None


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turn what pydantic says of a wrong option into an UnmaskError of one sentence: which option, what it was, what is allowed."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        reason = reason_of(problem).removeprefix("Input should be ")
        if plain := _plain_reason(problem):
            said = f"{name}: {plain}."
        else:
            said = f"{name} should be {reason}, not {problem['input']!r}." if name else f"{reason[:1].upper()}{reason[1:]}."
        raise UnmaskError(said) from error
