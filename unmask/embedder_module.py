"""An embedder as a torch module: what training and sentence-transformers call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Self

import torch
from torch import Tensor, nn

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.backbone import TokenBatch
from unmask.encoding.batching import steps_of
from unmask.encoding.features import Raw, joined, mean_of, vectors
from unmask.models.decoder import restore_rotary, rotary_border


class EmbedderModule(nn.Module):
    """Tokens of a batch in, `sentence_embedding` out, differentiable."""

    def __init__(self, embedder: Embedder) -> None:
        """Wrap an embedder; its model becomes a submodule, so that `.to(device)` moves it."""
        super().__init__()
        self.embedder = embedder
        self.model = embedder.backbone.model
        self.head = embedder.backbone.head

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast the module: what `.to()`, `.bfloat16()` and `.half()` call. Rotary frequencies stay in fp32."""
        super()._apply(fn, recurse)
        restore_rotary(self.model)
        return self

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add `sentence_embedding` of shape (text, dim), float32."""
        embedder = self.embedder
        batch = TokenBatch(features["input_ids"], features["attention_mask"].bool(), features["pooling_mask"].bool())
        design, prompts = embedder.design, embedder.design.prompts
        # the prompt is in the tokens, so prompts with the same pooling are read together
        readings = [replace(design.under(prompt), prompt=prompts[0]) for prompt in prompts]
        raws, texts = self._read(batch, list(dict.fromkeys(readings))), len(batch.ids) // len(prompts)
        parts = [raws[reading].select(slice(index * texts, (index + 1) * texts)) for index, reading in enumerate(readings)]
        features["sentence_embedding"] = vectors(design, mean_of(parts), embedder.fitted)
        return features

    def _read(self, batch: TokenBatch, designs: Sequence[Design]) -> dict[Design, Raw]:
        """The features of each row. Rows that would change each other's features (`steps_of`) have a forward pass of their own."""
        backbone = self.embedder.backbone
        if rotary_border(backbone.model) == inf:
            return backbone.raw(batch, designs)
        rows_by_step: dict[tuple[int, ...], list[int]] = {}
        for row, length in enumerate(batch.attention_mask.sum(dim=1).tolist()):
            rows_by_step.setdefault(steps_of([length + backbone.appended]), []).append(row)
        raws = []
        for rows in rows_by_step.values():
            used = batch.attention_mask[rows].any(dim=0)  # without the columns that are padding in all of these rows
            ids, attention_mask, pooling_mask = (
                part[rows][:, used] for part in (batch.ids, batch.attention_mask, batch.pooling_mask)
            )
            raws.append(backbone.raw(TokenBatch(ids, attention_mask, pooling_mask), designs))
        order = torch.tensor([row for rows in rows_by_step.values() for row in rows]).argsort()
        return {design: joined([raw[design] for raw in raws]).select(order) for design in designs}
