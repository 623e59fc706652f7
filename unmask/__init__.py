"""unmask: the text embedder inside any decoder LLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.designs.design import Design
    from unmask.embedder import Embedder
    from unmask.errors import AttentionError, UnmaskError
    from unmask.mixture.folder import Mixture

__all__ = ["AttentionError", "Design", "Embedder", "Mixture", "UnmaskError"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import unmask` loads no torch."""
    from importlib import import_module

    homes = {
        "Design": "designs.design",
        "Embedder": "embedder",
        "Mixture": "mixture.folder",
        "AttentionError": "errors",
        "UnmaskError": "errors",
    }
    if name not in homes:
        raise AttributeError(f"module 'unmask' has no attribute '{name}'")
    return getattr(import_module(f"unmask.{homes[name]}"), name)
