"""Layer attribution: which layers a trained head over layers reads.

Source: Pooling and Attention (arXiv 2409.02727), section 3: the attention weights over layers say which layers matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.embedder import Embedder
from unmask.encoding.heads import LayerAttention
from unmask.errors import UnmaskError
from unmask.models.provenance import fingerprint_of
from unmask.probing.inputs import ProbeResult
from unmask.statistics.intervals import Bounds, jackknife_interval, ratio_left_out


@dataclass(frozen=True)
class Attribution(ProbeResult):
    """The attention of a head over layers 1..L.

    shares: its mean over texts, heads and latents, which sums to 1; intervals: of these means, 95 % over texts, None for fewer than five;
    low, high: the 10th and 90th percentile over texts.
    """

    shares: tuple[float, ...]
    intervals: tuple[Bounds | None, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    texts: int
    data: str
    provenance: dict[str, Any]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def attribute_layers(embedder: Embedder, texts: Sequence[str]) -> Attribution:
    """Attention over layers of a trained layer-attention head. Raises UnmaskError for an embedder that has no such head."""
    head = embedder.backbone.head
    if not isinstance(head, LayerAttention):
        raise UnmaskError(f"'{embedder.design.name}' has no head over layers. Train a design with 'layer-attention'.")
    if head.options.conditioned:
        raise UnmaskError(
            "This head reads other layers for each instruction, so it has no fixed attribution. Train one that is not conditioned."
        )
    states = embedder.encoder.layer_states(texts, embedder.design.prompt)
    mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    attention = head.attention(states, mask).mean(dim=(1, 2)).cpu().numpy()
    attention = np.asarray(attention, np.float64)
    shares, without = attention.mean(axis=0), ratio_left_out(attention, np.ones_like(attention))
    low, high = np.percentile(attention, [10, 90], axis=0)
    return Attribution(
        shares=tuple(shares.tolist()),
        intervals=tuple(
            jackknife_interval(float(share), left_out, most=1.0) for share, left_out in zip(shares, without.T, strict=True)
        ),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        texts=len(texts),
        data=fingerprint_of(texts),
        provenance=embedder.encoder.provenance | {"design": embedder.design.name},
    )
