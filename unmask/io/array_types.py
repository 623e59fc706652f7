"""The type of an array whose shape is written in an annotation, as in `Float[NDArray[np.float32], "text dim"]`.

Since NumPy 2.5, its own `NDArray` is a type alias, and jaxtyping refuses one as soon as the annotation is evaluated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray
else:
    import numpy as np

    class NDArray:
        """An array of a kind of numbers, `NDArray[np.float32]`: to type checkers what it is in NumPy."""

        def __class_getitem__(cls, kind: Any) -> Any:
            """The array type of a kind of numbers."""
            return np.ndarray[Any, np.dtype[kind]]


__all__ = ["NDArray"]
