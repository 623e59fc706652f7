"""State change: how much does a token's state change when attention becomes bidirectional?

The same tokens go through the model under causal and under bidirectional attention. The cosine of a token's two states is averaged by
layer and by position. LLM2Vec (arXiv 2404.05961, section 4.2 and figure 5) finds it near 1 in all layers of Mistral, which works
bidirectionally without training, and falling with depth in Llama, which does not. Two facts hold by construction. The last token of a text
sees all others under both attentions, so its states after layer 1 are equal. And states share a large common part, so even unrelated
tokens have a cosine above 0; it is reported too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.encoding.backbone import Backbone, HiddenRead, TokenBatch
from unmask.encoding.batching import collate, plan
from unmask.encoding.encoder import Encoder
from unmask.encoding.tokenization import TokenizedText, tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.terminal import progress_bar
from unmask.models.provenance import fingerprint_of
from unmask.probing.inputs import ProbeResult
from unmask.statistics.intervals import Bounds, Estimate, jackknife_interval, ratio_left_out
from unmask.statistics.ratios import Ratio

_GROUPS = 40  # of texts, whose sums of states are in memory
_STATES_AT_ONCE = 2**26  # numbers of the causal pass that are kept for the bidirectional pass: 256 MB in fp32


@dataclass(frozen=True)
class StateChange(ProbeResult):
    """Mean cosine of a token's causal and bidirectional state.

    cosine: by layer (1..L, the last one after the final norm) and bin of positions; bins: first and last position of each bin, from 0;
    tokens: their number in each bin; mean: of each layer over all tokens, with a 95 % interval by bootstrap over texts; unrelated: for
    each layer, the mean cosine of any token's causal state with any token's bidirectional state. The intervals of `cosine` and
    `unrelated` are 95 % by jackknife over texts (of `unrelated`: over 40 groups of texts at most), None for fewer than five texts.
    """

    cosine: tuple[tuple[float, ...], ...]
    cosine_intervals: tuple[tuple[Bounds | None, ...], ...]
    bins: tuple[tuple[int, int], ...]
    tokens: tuple[int, ...]
    mean: tuple[Estimate, ...]
    unrelated: tuple[float, ...]
    unrelated_intervals: tuple[Bounds | None, ...]
    texts: int
    truncated: int
    max_length: int
    data: str
    provenance: dict[str, Any]


def position_bins(longest: int) -> list[tuple[int, int]]:
    """First and last position of bins that double in width, up to the last position of the longest text: 0, 1, 2-3, 4-7, ..."""
    edges = [0, *(2**power for power in range(max(longest - 1, 0).bit_length())), longest]
    return [(first, stop - 1) for first, stop in pairwise(edges) if stop > first]


@dataclass
class _Sums:
    """Sums over tokens: cosines by text, layer and bin; unit states by layer and group of texts under both attentions."""

    cosine: Float[NDArray[np.float64], "text layer bin"]
    tokens: Float[NDArray[np.float64], "text bin"]
    causal: list[Tensor]
    bidirectional: list[Tensor]


def probe_states(encoder: Encoder, texts: Sequence[str]) -> StateChange:
    """Compare the two states of every token of some texts, without a prompt and without padding.

    Memory holds the states of one batch only. Raises AttentionError for a model that cannot attend both ways, and UnmaskError for fewer
    than two texts of at least two tokens.
    """
    backbone, limit = encoder.backbone, encoder.token_limit
    tokenized = [tokenize_bare(encoder.tokenizer, text).ids for text in dict.fromkeys(texts)]
    usable = [TokenizedText(ids[:limit], 0) for ids in tokenized if len(ids) > 1]
    if len(usable) < 2:
        raise UnmaskError("Comparing states needs at least 2 different texts of at least 2 tokens.")
    bidirectional, causal = encoder.under("bidirectional").backbone, encoder.under("causal").backbone
    bins = position_bins(max(len(text.ids) for text in usable))
    sums = _sum_up((causal, bidirectional), usable, bins, encoder.batch_tokens)
    total, counts = sums.cosine.sum(axis=0), sums.tokens.sum(axis=0)
    by_layer = [Ratio(sums.cosine[:, layer].sum(axis=1), sums.tokens.sum(axis=1)) for layer in range(backbone.depth)]
    groups = np.bincount(np.arange(len(usable)) % _GROUPS, sums.tokens.sum(axis=1)).astype(np.float64)
    unrelated = []
    for causal_sums, bidirectional_sums in zip(sums.causal, sums.bidirectional, strict=True):
        before, after = causal_sums.numpy(), bidirectional_sums.numpy()
        value = float(before.sum(axis=0) @ after.sum(axis=0) / groups.sum() ** 2)
        rest = ((before.sum(axis=0) - before) * (after.sum(axis=0) - after)).sum(axis=1)
        unrelated.append((value, jackknife_interval(value, rest / (groups.sum() - groups) ** 2, most=1.0)))

    def bin_interval(layer: int, index: int) -> Bounds | None:
        """Over the texts that reach the bin."""
        reach = sums.tokens[:, index] > 0
        cosines, tokens = sums.cosine[reach, layer, index], sums.tokens[reach, index]
        return jackknife_interval(float(cosines.sum() / tokens.sum()), ratio_left_out(cosines, tokens), most=1.0)

    return StateChange(
        cosine=tuple(tuple(row) for row in (total / counts).tolist()),
        cosine_intervals=tuple(
            tuple(bin_interval(layer, index) for index in range(len(bins))) for layer in range(backbone.depth)
        ),
        bins=tuple(bins),
        tokens=tuple(int(count) for count in counts),
        mean=tuple(Estimate(layer.value, layer.interval() or (layer.value, layer.value)) for layer in by_layer),
        unrelated=tuple(value for value, _ in unrelated),
        unrelated_intervals=tuple(bounds for _, bounds in unrelated),
        texts=len(usable),
        truncated=sum(len(ids) > limit for ids in tokenized),
        max_length=limit,
        data=fingerprint_of(texts),
        provenance=encoder.provenance
        | {"attention": "causal and bidirectional", "proof": f"{bidirectional.proof.summary}; {causal.proof.summary}"},
    )


def name_of(bounds: tuple[int, int]) -> str:
    """The name of a bin of positions, such as `4-7`."""
    first, last = bounds
    return str(first) if first == last else f"{first}-{last}"


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _sum_up(
    backbones: tuple[Backbone, Backbone],
    texts: Sequence[TokenizedText],
    bins: Sequence[tuple[int, int]],
    batch_tokens: int,
) -> _Sums:
    backbone = backbones[0]
    width, depth = int(backbone.model.config.get_text_config(decoder=True).hidden_size), backbone.depth
    sums = _Sums(
        np.zeros((len(texts), depth, len(bins))),
        np.zeros((len(texts), len(bins))),
        *([torch.zeros(min(_GROUPS, len(texts)), width, dtype=torch.float64) for _ in range(depth)] for _ in range(2)),
    )
    starts = np.array([first for first, _ in bins])
    budget = min(batch_tokens, max(1, _STATES_AT_ONCE // (width * depth)))
    with progress_bar("reading texts", len(texts)) as advance:
        for members in plan([len(text.ids) for text in texts], budget):
            batch = collate([texts[index] for index in members], pad_id=0)
            rows, positions = (indices.numpy() for indices in batch.attention_mask.nonzero(as_tuple=True))
            cells = np.array(members)[rows], np.searchsorted(starts, positions, side="right") - 1
            np.add.at(sums.tokens, cells, 1)
            for layer, cosine in enumerate(_compare_attentions(*backbones, batch, sums, torch.from_numpy(cells[0] % _GROUPS))):
                np.add.at(sums.cosine[:, layer], cells, cosine)
            advance(len(members))
    return sums


def _compare_attentions(
    causal: Backbone, bidirectional: Backbone, batch: TokenBatch, sums: _Sums, groups: Tensor
) -> list[NDArray[np.float64]]:
    """Cosine of each token's two states, layer by layer. Tokens are in the order of texts and positions.

    groups: the group of each token's text.
    """
    layers = range(1, causal.depth + 1)
    causal_reads = [HiddenRead(layer, _token_states) for layer in layers]
    causal_states = causal.read(batch, causal_reads)

    def against(layer: int) -> HiddenRead:
        def compare(hidden: Tensor, mask: Tensor) -> Tensor:
            # each layer's causal states are dropped as soon as they have been compared
            states = (causal_states.pop(causal_reads[layer - 1]), _token_states(hidden, mask))
            before, after = (torch.nn.functional.normalize(tokens.float(), dim=1) for tokens in states)
            sums.causal[layer - 1].index_add_(0, groups, before.double().cpu())
            sums.bidirectional[layer - 1].index_add_(0, groups, after.double().cpu())
            return (before * after).sum(dim=1, keepdim=True)

        return HiddenRead(layer, compare)

    cosines = bidirectional.read(batch, reads := [against(layer) for layer in layers])
    return [cosines[hidden_read][:, 0].double().cpu().numpy() for hidden_read in reads]


def _token_states(hidden: Tensor, mask: Tensor) -> Tensor:
    """States of the tokens, without padding."""
    return hidden[mask]
