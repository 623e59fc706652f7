"""InfoNCE over one batch, computed at once or in parts by GradCache, with sentence-transformers' machinery for both.

What is added to sentence-transformers' MultipleNegativesRankingLoss, to which it is otherwise equal: negatives that look like
positives can be left out, those of the anchor's class are left out, and the chunks of a batch need not be its columns, so that texts of
similar length go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Bool, Float
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.util import all_gather, all_gather_with_grad, get_rank
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from unmask.errors import UnmaskError


def info_nce(
    anchors: Float[Tensor, "anchor dim"],
    candidates: Float[Tensor, "candidate dim"],
    first: int,
    temperature: float,
    false_negative_margin: float | None = None,
    positives: Bool[Tensor, "anchor candidate"] | None = None,
) -> Float[Tensor, ""]:
    """Mean cross-entropy of anchor i choosing candidate first + i among all candidates, by cosine over temperature.

    false_negative_margin: candidates whose cosine exceeds the positive's by more than this are left out of the sum: they are
    probably positives that nobody marked (NV-Retriever, arXiv 2407.15831). positives: candidates that are known to be positives, such
    as texts of the anchor's class; they are left out too. Formula: LLM2Vec (arXiv 2404.05961), section 2.3.
    """
    cosines = normalize(anchors, dim=1) @ normalize(candidates, dim=1).T
    target = first + torch.arange(len(anchors), device=anchors.device)
    false = torch.zeros_like(cosines, dtype=torch.bool) if positives is None else positives
    if false_negative_margin is not None:
        positive = cosines.detach().gather(1, target.unsqueeze(1))
        false = false | (cosines.detach() > positive + false_negative_margin)
    cosines = cosines.masked_fill(false.scatter(1, target.unsqueeze(1), False), float("-inf"))
    return cross_entropy(cosines / temperature, target)


class RankingLoss(CachedLossMixin, nn.Module):  # type: ignore[misc]
    """InfoNCE of a chunked batch (see PairCollator): call it with the chunks, their order and the classes of the texts, if known.

    model: features -> {"sentence_embedding"}; cache_tokens: with more padded tokens than this in a batch, GradCache computes chunk by
    chunk, for one more forward pass; matryoshka: the loss is the mean over these leading dimensions and all of them (arXiv 2205.13147);
    across processes, every anchor sees the candidates of all of them. agree: makes the chunks, and whether GradCache computes them,
    the same in all processes, where they must make equally many passes (sharding.py).
    """

    mini_batch_size = 1 << 30  # a chunk is never split: the collator made it of the right size

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        cache_tokens: int,
        false_negative_margin: float | None = None,
        matryoshka: tuple[int, ...] = (),
        agree: Callable[[Sequence[dict[str, Tensor]], bool], tuple[list[dict[str, Tensor]], bool]] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.temperature, self.cache_tokens = model, temperature, cache_tokens
        self.false_negative_margin, self.matryoshka, self.agree = false_negative_margin, matryoshka, agree
        self.classes: Tensor | None = None

    def forward(self, chunks: Iterable[dict[str, Tensor]], order: Tensor, classes: Tensor | None = None) -> Tensor:
        """The loss of one batch, whose backward pass reaches the model either way."""
        chunks, self.classes = list(chunks), classes  # kept here: the machinery of GradCache hands on the order alone
        cached = sum(chunk["input_ids"].numel() for chunk in chunks) > self.cache_tokens
        if self.agree is not None:
            chunks, cached = self.agree(chunks, cached)
        if cached and torch.is_grad_enabled():
            return self.forward_cached(chunks, order)
        return self.calculate_loss([[self.model(dict(chunk))["sentence_embedding"]] for chunk in chunks], order)

    def calculate_loss(self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False) -> Tensor:
        """The loss from the chunks' vectors; `labels` is their order."""
        assert labels is not None
        vectors = torch.cat([part for chunk in reps for part in chunk])
        anchors, *candidates = vectors[labels].unbind(0)
        first = 0
        if torch.distributed.is_initialized():
            candidates = [all_gather_with_grad(column) for column in candidates]
            first = get_rank() * len(anchors)
        together, positives = torch.cat(candidates), self._positives()
        sizes = {*self.matryoshka, anchors.shape[1]}
        if max(sizes) > anchors.shape[1]:
            raise UnmaskError(f"matryoshka asks for {max(sizes)} dimensions, and a vector has {anchors.shape[1]}.")
        losses = [
            info_nce(anchors[:, :size], together[:, :size], first, self.temperature, self.false_negative_margin, positives)
            for size in sorted(sizes)
        ]
        loss = torch.stack(losses).mean()
        if with_backward:
            loss.backward()
            return loss.detach()
        return loss

    def _positives(self) -> Bool[Tensor, "anchor candidate"] | None:
        """Which candidates have the class of an anchor; None without classes."""
        if self.classes is None:
            return None
        anchors, *candidates = self.classes.unbind(0)
        if torch.distributed.is_initialized():
            candidates = [all_gather(column.contiguous()) for column in candidates]
        return anchors.unsqueeze(1) == torch.cat(candidates)
