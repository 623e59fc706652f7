"""Soft prompts: trained vectors replace the embeddings of some tokens (prompt tuning, arXiv 2104.08691)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.errors import UnmaskError


@dataclass(frozen=True)
class SoftPrompt:
    """Vectors and the positions that they take in each text of a batch.

    vectors: the same for all texts, or of shape (text, soft, dim).
    """

    positions: Int[Tensor, "text soft"]
    vectors: Float[Tensor, "*text soft dim"]

    def to(self, device: torch.device) -> SoftPrompt:
        """The same soft prompt with its positions on a device."""
        return replace(self, positions=self.positions.to(device))

    @contextmanager
    def inside(self, model: Any) -> Iterator[None]:
        """Run a model with these vectors as embeddings. Raises UnmaskError for a model that does not embed by its input embeddings."""
        embed: nn.Module = model.get_input_embeddings()
        acted = False

        def put(_: nn.Module, __: Any, embedded: Tensor) -> Tensor:
            nonlocal acted
            acted = True
            index = self.positions.to(embedded.device)[:, :, None].expand(-1, -1, embedded.shape[2])
            return embedded.scatter(1, index, self.vectors.to(embedded).expand(index.shape))

        hook = embed.register_forward_hook(put)
        try:
            yield
        finally:
            hook.remove()
        if not acted:
            raise UnmaskError(
                f"{type(model).__name__} embeds tokens in a way of its own, so trained tokens cannot be given to it."
            )
