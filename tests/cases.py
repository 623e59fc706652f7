"""Many small cases in one test: collecting a parametrised test costs more than running such a case."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def cases(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for each of the values, as `pytest.mark.parametrize` does, but as one test.

    For cases that take milliseconds and share their fixtures. A failure names its case.
    """
    keys = [name.strip() for name in names.split(",")]
    rows = [value if len(keys) > 1 else (value,) for value in values]
    assert rows, "a test without cases would pass"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @wraps(test)
        def run(**fixtures: Any) -> None:
            for row in rows:
                case = dict(zip(keys, row, strict=True))
                try:
                    test(**fixtures, **case)
                except BaseException as error:
                    error.add_note(f"case: {case}")
                    raise

        fixtures = [parameter for parameter in signature.parameters.values() if parameter.name not in keys]
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return decorate
