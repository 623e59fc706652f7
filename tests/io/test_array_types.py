"""Arrays with shapes can be written in annotations with every NumPy, also where `NDArray` is a type alias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from beartype import beartype
from jaxtyping import Float, jaxtyped

from tests.shapes import PACKAGE, modules_with_shapes
from unmask.io.array_types import NDArray


@jaxtyped(typechecker=beartype)
def rows(vectors: Float[NDArray[np.float32], "text dim"]) -> int:
    return len(vectors)


def test_shape_and_numbers_of_an_array_are_checked() -> None:
    assert rows(np.zeros((2, 3), np.float32)) == 2
    for other in (np.zeros(3, np.float32), np.zeros((2, 3), int)):
        with pytest.raises(Exception, match="vectors"):
            rows(other)


def test_no_shape_is_written_with_the_alias_of_numpy() -> None:
    """NumPy 2.5 needs Python 3.12, so other tests do not meet it on an older Python."""
    files = [PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py") for module in modules_with_shapes()]
    assert files and not [str(file) for file in files if "numpy.typing" in Path(file).read_text(encoding="utf-8")]
