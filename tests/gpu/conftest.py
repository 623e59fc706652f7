"""Models on disk, as the tests of training have them."""

from __future__ import annotations

from tests.training.conftest import model, teacher

__all__ = ["model", "teacher"]
