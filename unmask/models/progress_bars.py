"""Progress bars of libraries: "Loading weights" of transformers would interrupt whatever a program prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Hide the bars of transformers while a model is loaded. Those of downloads from the hub stay as they are."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    shown, downloads_shown = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads_shown:
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
        if shown and not downloads_shown:
            disable_progress_bars()
