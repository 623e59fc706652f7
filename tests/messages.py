"""What the code under test tells while it works."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heard() -> Iterator[list[str]]:
    """The messages of the package, in order."""
    logger, messages = logging.getLogger("unmask"), list[str]()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    ear, level = Ear(), logger.level
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
