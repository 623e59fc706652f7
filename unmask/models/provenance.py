"""Provenance: the hardware and library versions that computed a result, to be stored with it."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata

import torch


def hardware(device: torch.device) -> str:
    """What computed: the GPU's name, or the processor's architecture and its cores."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type} ({platform.machine()}, {os.cpu_count()} cores)"


@cache
def versions() -> dict[str, str]:
    """Versions of the installed libraries that vectors and scores depend on. Read from the disk once."""
    names = ("unmask", "torch", "transformers", "tokenizers", "peft", "sentence-transformers", "mteb", "scikit-learn")
    return installed_versions(names)


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {name: package.version for name in names for package in list(metadata.distributions(name=name))[:1]}


def fingerprint_of(parts: Sequence[str]) -> str:
    """A short hash of the data that a result was computed from: two results with the same one are of the same data."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()[:16]
