"""Provenance: what computed a result, to be kept beside it."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import torch


def hardware(device: torch.device) -> str:
    """What computed: the GPU's name, or the processor's architecture and its cores."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type} ({platform.machine()}, {os.cpu_count()} cores)"


def versions() -> dict[str, str]:
    """Versions of the libraries that vectors and scores depend on."""
    names = ("unmask", "torch", "transformers", "tokenizers", "peft", "sentence-transformers", "mteb", "scikit-learn")
    return {name: metadata.version(name) for name in names}
