"""Shapes: every module of the package that writes shapes in its annotations has them checked at each call, by beartype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

Function = TypeVar("Function", bound=Callable[..., Any])
PACKAGE = Path(__file__).parents[1] / "unmask"


def modules_with_shapes() -> list[str]:
    """Modules that import jaxtyping."""
    files = [file for file in PACKAGE.rglob("*.py") if "from jaxtyping import" in file.read_text(encoding="utf-8")]
    return sorted(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files)


def check_shapes() -> None:
    """Check the shapes of every module that is imported from now on."""
    install_import_hook(modules_with_shapes(), f"{__name__}.checked")


def checked(function: Function) -> Function:
    """The function with those of its annotations checked that hold a shape, and no others: mypy checks the rest.

    Functions inside functions are left out. beartype writes new code for each function that it is given, and a hook that is made for
    every forward pass would be written anew for every pass: a fifth of the time of the tests of encoding.
    """
    if "<locals>" in function.__qualname__:
        return function
    shapes = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    if not shapes:
        return function
    function.__annotations__ = {name: shapes.get(name, Any) for name in function.__annotations__}
    return beartype(function)


def _has_shape(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(_has_shape(part) for part in get_args(hint))
