"""Dropout: off while vectors are computed, also if a trainer left the model training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def no_dropout(model: nn.Module) -> Iterator[None]:
    """Where no gradient is computed, have every part of a model in evaluation mode. Parts that train do so afterwards."""
    training = [part for part in model.modules() if part.training] if torch.is_inference_mode_enabled() else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
