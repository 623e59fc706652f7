"""Masked prediction: how well a language model predicts masked tokens from the position before them, as MNTP trains it to.

Some tokens of a text are replaced by a mask token. The language-model head predicts token i at position i-1 (LLM2Vec, arXiv 2404.05961,
section 3.1). Under causal attention that is next-token prediction with gaps in the past. Under bidirectional attention the model also
sees what follows, but can use it only after training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.encoding.batching import collate, plan
from unmask.encoding.encoder import Encoder
from unmask.encoding.tokenization import TokenizedText, mask_id, tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.terminal import progress_bar
from unmask.models.provenance import fingerprint_of
from unmask.probing.inputs import ProbeResult
from unmask.statistics.ratios import Ratio

MASK, RATE = "_", 0.2
_LOGITS_AT_ONCE = 2**26  # 256 MB in fp32: logits of a batch need more memory than its states


@dataclass(frozen=True)
class MaskedText:
    """Token ids with the mask token at the masked positions, and the tokens that it replaced (targets)."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class MaskedAccuracy(ProbeResult):
    """How well masked tokens were predicted.

    accuracy_at_1, accuracy_at_5: the share of masked tokens that are the likeliest token, or among the five likeliest; cross_entropy:
    mean, in nats; intervals: 95 % by bootstrap over texts; tokens: all that were masked; skipped: texts without a token that can be
    masked (position 0 and special tokens cannot); truncated: texts cut to max_length.
    """

    accuracy_at_1: float
    accuracy_at_1_interval: tuple[float, float] | None
    accuracy_at_5: float
    accuracy_at_5_interval: tuple[float, float] | None
    cross_entropy: float
    cross_entropy_interval: tuple[float, float] | None
    tokens: int
    texts: int
    skipped: int
    truncated: int
    rate: float
    mask_token: str
    max_length: int
    seed: int
    data: str
    provenance: dict[str, Any]


def probe_masked(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    rate: float = RATE,
    mask_token: str = MASK,
    seed: int = 0,
) -> MaskedAccuracy:
    """Mask a share of each text's tokens and let the model predict them. `encoder` has its language model (`load_encoder(predicts=True)`).

    Which tokens are masked depends on the seed, the rate and the text alone, not on other texts. Raises UnmaskError for a rate outside
    0..1, a mask token that is not a single token, and texts without a token that can be masked.
    """
    limit = encoder.token_limit
    mask = mask_id(encoder.tokenizer, mask_token)
    tokenized = [tokenize_bare(encoder.tokenizer, text) for text in texts]
    masked = [mask_text(text.ids[:limit], text.special[:limit], rate, mask, seed) for text in tokenized]
    usable = [text for text in masked if text.positions]
    if not usable:
        raise UnmaskError("None of these texts has a token that can be masked: a text needs at least 2 tokens.")
    vocabulary = encoder.language_model.get_output_embeddings().weight.shape[0]
    budget = min(encoder.batch_tokens, max(1, _LOGITS_AT_ONCE // vocabulary))
    sums = np.zeros((len(usable), 4))
    with progress_bar("filling gaps", len(usable)) as advance:
        for batch in plan([len(text.ids) for text in usable], budget):
            sums[batch] = _predict(encoder, [usable[index] for index in batch])
            advance(len(batch))
    first, fifth = (Ratio(sums[:, column], sums[:, 3], share=True) for column in range(2))
    entropy = Ratio(sums[:, 2], sums[:, 3])
    return MaskedAccuracy(
        accuracy_at_1=first.value,
        accuracy_at_1_interval=first.interval(),
        accuracy_at_5=fifth.value,
        accuracy_at_5_interval=fifth.interval(),
        cross_entropy=entropy.value,
        cross_entropy_interval=entropy.interval(),
        tokens=int(sums[:, 3].sum()),
        texts=len(usable),
        skipped=len(masked) - len(usable),
        truncated=sum(len(text.ids) > limit for text in tokenized),
        rate=rate,
        mask_token=mask_token,
        max_length=limit,
        seed=seed,
        data=fingerprint_of(texts),
        provenance=encoder.provenance | {"attention": encoder.backbone.attention},
    )


def mask_text(ids: Sequence[int], special: Sequence[int], rate: float, mask: int, seed: int) -> MaskedText:
    """Mask round(rate x n) of the n tokens that can be masked, at least one.

    Position 0 cannot be masked, since no position before it could predict it; special tokens cannot, since they are not text. Raises
    UnmaskError unless 0 < rate <= 1.
    """
    if not 0 < rate <= 1:
        raise UnmaskError(f"The masking rate must be above 0 and at most 1, not {rate}.")
    free = [position for position in range(1, len(ids)) if not special[position]]
    # the text is part of the seed, so that neither the order nor other texts change what is masked
    digest = hashlib.sha256(np.asarray(ids, np.int64).tobytes()).digest()
    random = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
    count = max(1, round(rate * len(free))) if free else 0
    positions = tuple(sorted(free[index] for index in random.permutation(len(free))[:count].tolist()))
    masked_positions = set(positions)
    return MaskedText(
        tuple(mask if position in masked_positions else int(token) for position, token in enumerate(ids)),
        positions,
        tuple(int(ids[position]) for position in positions),
    )


def score_logits(logits: Float[Tensor, "masked token"], targets: Int[Tensor, " masked"]) -> Float[Tensor, "masked 3"]:
    """For each masked token: is it the likeliest token, is it among the five likeliest, and its negative log-probability.

    Tokens with equal logits, which are frequent in bf16, are ordered by their id.
    """
    logits = logits.float()
    target_logits = logits.gather(1, targets.unsqueeze(1))
    earlier = torch.arange(logits.shape[1], device=logits.device) < targets.unsqueeze(1)
    rank = ((logits > target_logits) | ((logits == target_logits) & earlier)).sum(dim=1)
    surprise = logits.logsumexp(dim=1) - target_logits.squeeze(1)
    return torch.stack([(rank < 1).float(), (rank < 5).float(), surprise], dim=1)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _predict(encoder: Encoder, texts: Sequence[MaskedText]) -> NDArray[np.float64]:
    """Sums over each text's masked tokens, shape (text, 4): hits among the first, among the first five, cross-entropy, number."""
    device = encoder.backbone.device
    batch = collate([TokenizedText(text.ids, 0) for text in texts], pad_id=0)
    # right padding, so positions count from 0 by default
    inputs = {"input_ids": batch.ids.to(device), "attention_mask": batch.attention_mask.long().to(device)}
    with encoder.backbone.computing():
        logits = encoder.language_model(**inputs, use_cache=False).logits
    sums = []
    for row, text in enumerate(texts):
        before = torch.tensor(text.positions, device=device) - 1
        scores = score_logits(logits[row, before], torch.tensor(text.targets, device=device))
        sums.append([*scores.sum(dim=0).tolist(), float(len(text.positions))])
    return np.array(sums)
