"""The embedders of one loaded model, by design."""

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


@dataclass(frozen=True)
class EmbeddedTexts:
    """Texts under one design."""

    name: str
    design: Design
    vectors: Float[NDArray[np.float32], "text dim"]
    """At unit length."""
    truncated: tuple[int, ...]
    """Indices of the truncated texts."""


class Embedders:
    """A loaded model and its embedders. Not thread-safe.

    designs: by label, as on the command line.
    """

    def __init__(self, base: Embedder, designs: Mapping[str, Design]) -> None:
        self.base, self.designs = base, dict(designs)
        self._cache: dict[Design, Embedder] = {base.design: base}  # they share the model and hold only what was fitted
        for name in designs:
            self.embedder(name)

    def design(self, name: str) -> Design:
        """The design of a label, a preset or a readable name."""
        name = name.strip()
        return self.designs[name] if name in self.designs else Design.parse(name)

    def embedder(self, name: str) -> Embedder:
        """The embedder of a design. Raises UnmaskError for a design that the model does not support."""
        design = self.design(name)
        design.require_dense("The page")
        if design not in self._cache:
            self._cache[design] = self.base.with_design(design)
        return self._cache[design]

    def embed(self, names: Sequence[str], texts: Sequence[str], progress: Progress) -> list[EmbeddedTexts]:
        """Embed texts under each design; designs that share a forward pass share its cost.

        progress: called after each batch; what it raises ends the work.
        """
        embedders = {embedder.design: embedder for embedder in map(self.embedder, names)}
        results: dict[Design, tuple[Any, tuple[int, ...]]] = {}
        for group in group_by_pass(embedders).values():
            first, tally = embedders[group[0]], Tally()
            fits = {design: embedders[design].fitted for design in group}
            progress(0)
            computed = first.encoder.encode(texts, fits, tally=tally, progress=progress)
            results |= {design: (normalized(vectors), tuple(tally.cut)) for design, vectors in computed.items()}
        return [EmbeddedTexts(name, self.design(name), *results[self.design(name)]) for name in names]

    @cached_property
    def about(self) -> dict[str, Any]:
        """The model and the designs that the page offers, as JSON."""
        base = self.base
        own_designs = {name: design for name, design in self.designs.items() if name not in PRESETS}
        return {
            "model": base.source.model,
            "layers": base.backbone.depth,
            "dtype": dtype_name(base.backbone.model),
            "device": str(base.device),
            "max_length": base.max_length,
            "routers": len(base.backbone.routers),
            "chosen": list(self.designs),
            "designs": [
                *({"name": name, "design": design.name, "meaning": ""} for name, design in own_designs.items()),
                *(
                    {"name": name, "design": preset.design, "meaning": preset.meaning}
                    for name, preset in PRESETS.items()
                    if self._is_supported(preset.design)
                ),
            ],
        }

    def _is_supported(self, name: str) -> bool:
        try:
            self.base.backbone.check(Design.parse(name))
        except UnmaskError:
            return False
        return True
