"""unmask: the text embedder inside any decoder LLM.

from unmask import Embedder

embedder = Embedder.from_pretrained("smollm2")
vectors = embedder.encode(["A man plays a guitar.", "Someone makes music."])
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.designs.design import Design
    from unmask.embedder import Embedder
    from unmask.errors import AttentionError, UnmaskError
    from unmask.moe.mixture.model import Mixture

    __version__: str

# on import, torchao reports the kernels of other GPUs, and torch that parts of torchao are deprecated
for _library in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_library).setLevel(logging.ERROR)

__all__ = ["AttentionError", "Design", "Embedder", "Mixture", "UnmaskError", "__version__"]
_HOMES = {
    "Design": "designs.design",
    "Embedder": "embedder",
    "Mixture": "moe.mixture.model",
    "AttentionError": "errors",
    "UnmaskError": "errors",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import unmask` loads no torch."""
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("unmask")
    if name not in _HOMES:
        raise AttributeError(f"module 'unmask' has no attribute '{name}'")
    return getattr(import_module(f"unmask.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, for `help(unmask)` and tab completion."""
    return __all__
