"""Shapes: every module of the package that writes shapes in its annotations has them checked at each call, by beartype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import jaxtyping
from beartype import beartype

Function = TypeVar("Function", bound=Callable[..., Any])
PACKAGE = Path(__file__).parents[1] / "unmask"


def modules_with_shapes() -> list[str]:
    """Modules that import jaxtyping."""
    files = [file for file in PACKAGE.rglob("*.py") if "from jaxtyping import" in file.read_text(encoding="utf-8")]
    return sorted(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files)


def check_shapes() -> None:
    """Check the shapes of every module that is imported from now on.

    The hook decorates every function of a module, and binds the arguments of each call anew. So it is kept from those without a shape.
    """
    decorator = jaxtyping.jaxtyped

    def where_shapes_are(**options: Any) -> Callable[[Any], Any]:
        decorate = decorator(**options)
        return lambda thing: decorate(thing) if isinstance(thing, type) or shapes(thing) else thing

    vars(jaxtyping)["jaxtyped"] = where_shapes_are
    jaxtyping.install_import_hook(modules_with_shapes(), f"{__name__}.checked")


def shapes(function: Callable[..., Any]) -> list[str]:
    """The parameters of a function whose annotations hold a shape; `return` is one of them.

    Functions inside functions are left out. beartype writes new code for each function that it is given, and a hook that is made for
    every forward pass would be written anew for every pass: a fifth of the time of the tests of encoding.
    """
    if "<locals>" in function.__qualname__:
        return []
    found = []
    for name, annotation in function.__annotations__.items():
        try:
            (hint,) = get_type_hints(_holder(annotation), function.__globals__, include_extras=True).values()
        except Exception:  # of types that are imported for mypy only
            continue
        if _has_shape(hint):
            found.append(name)
    return found


def checked(function: Function) -> Function:
    """The function with those of its annotations checked that hold a shape, and no others: mypy checks the rest."""
    held = shapes(function)
    if not held:
        return function
    function.__annotations__ = {name: hint if name in held else Any for name, hint in function.__annotations__.items()}
    return beartype(function)


def _holder(annotation: Any) -> Callable[..., None]:
    def holder(value: Any) -> None: ...

    holder.__annotations__ = {"value": annotation}
    return holder


def _has_shape(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)) or any(
        _has_shape(part) for part in get_args(hint)
    )
