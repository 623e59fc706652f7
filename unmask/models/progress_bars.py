"""Progress bars of libraries: "Loading weights" of transformers would interrupt whatever a program prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Hide the loading bars of transformers; download bars of the hub stay visible."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    enabled, downloads_enabled = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads_enabled:
        enable_progress_bars()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
        if enabled and not downloads_enabled:
            disable_progress_bars()
