"""Workbench: one loaded model, read by the designs that a user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.designs.design import Design
from unmask.designs.presets import PRESETS
from unmask.embedder import Embedder
from unmask.encoding.encoder import Tally
from unmask.encoding.forward_pass import group_by_pass
from unmask.encoding.quantization import normalized
from unmask.encoding.shared_prefix import Progress
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.models.loading import dtype_name

_KEPT = 8
"""Designs whose embedders are kept. Each holds only what was fitted: all share the model."""


@dataclass(frozen=True)
class Embedded:
    """Texts under one design. vectors: at unit length. cut: places of the texts that were cut to the limit."""

    name: str
    design: Design
    vectors: Float[NDArray[np.float32], "text dim"]
    cut: tuple[int, ...]


class Workbench:
    """A loaded model and its embedders by design. One thread at a time may use it.

    designs: by label, as given on the command line.
    """

    def __init__(self, embedder: Embedder, designs: Mapping[str, Design]) -> None:
        """Keep a loaded embedder. Raises UnmaskError for a design that the model cannot serve."""
        self.base, self.designs = embedder, dict(designs)
        self._embedders: dict[Design, Embedder] = {embedder.design: embedder}
        for name in designs:
            self.embedder(name)

    def design(self, name: str) -> Design:
        """The design of a label of the command line, a preset or a readable name. Raises UnmaskError."""
        name = name.strip()
        return self.designs[name] if name in self.designs else Design.parse(name)

    def embedder(self, name: str) -> Embedder:
        """The model under a design. Raises UnmaskError for a name that is no design, or one that the model cannot serve."""
        design = self.design(name)
        design.require_dense("The page")
        found = self._embedders.pop(design, None) or self.base.with_design(design)
        self._embedders[design] = found  # the last ones used stay
        for old in list(self._embedders)[:-_KEPT]:
            if old != self.base.design:
                del self._embedders[old]
        return found

    def embed(self, names: Sequence[str], texts: Sequence[str], progress: Progress) -> list[Embedded]:
        """The texts under each design, in the order of the names. Designs that share a forward pass share its cost.

        progress: called after each batch; what it raises ends the work. Raises UnmaskError.
        """
        embedders = {embedder.design: embedder for embedder in map(self.embedder, names)}
        found: dict[Design, tuple[Any, tuple[int, ...]]] = {}
        for group in group_by_pass(embedders).values():
            first, tally = embedders[group[0]], Tally()
            fits = {design: embedders[design].fitted for design in group}
            progress(0)
            computed = first.encoder.encode(texts, fits, tally=tally, progress=progress, share_text=False)
            found |= {design: (normalized(vectors), tuple(tally.cut)) for design, vectors in computed.items()}
        return [Embedded(name, self.design(name), *found[self.design(name)]) for name in names]

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the page says of the model, and the designs that it offers, as JSON."""
        base = self.base
        return {
            "model": base.source.model,
            "layers": base.backbone.depth,
            "dtype": dtype_name(base.backbone.model),
            "device": str(base.device),
            "max_length": base.max_length,
            "routers": len(base.backbone.routers),
            "chosen": list(self.designs),
            "designs": [
                *(
                    {"name": name, "design": design.name, "meaning": ""}
                    for name, design in self.designs.items()
                    if name not in PRESETS
                ),
                *(
                    {"name": name, "design": preset.design, "meaning": preset.meaning}
                    for name, preset in PRESETS.items()
                    if self._can_serve(preset.design)
                ),
            ],
        }

    def _can_serve(self, name: str) -> bool:
        try:
            self.base.backbone.check(Design.parse(name))
        except UnmaskError:
            return False
        return True
