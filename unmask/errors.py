"""What a user did that cannot work, said so that they can put it right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UnmaskError(ValueError):
    """A mistake that the user can put right: the command line prints it as one sentence and exits with code 2."""


class AttentionError(UnmaskError):
    """The loaded model does not attend as the design says."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> UnmaskError:
    """Error for a name outside a fixed set: what was given, the nearest match, everything that is allowed."""
    names = sorted(allowed)
    nearest = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    return UnmaskError(f"Unknown {kind} '{given}'.{hint} Allowed: {', '.join(names)}.")


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turn what pydantic says of a wrong option into an UnmaskError of one sentence: which option, what it was, what is allowed."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        reason = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input should be ").rstrip(".")
        said = f"{name} should be {reason}, not {problem['input']!r}." if name else f"{reason[:1].upper()}{reason[1:]}."
        raise UnmaskError(said) from error
