"""Losses of the vectors of one batch, computed at once or in parts by GradCache, with sentence-transformers' machinery for both.

What InfoNCE adds to sentence-transformers' MultipleNegativesRankingLoss, to which it is otherwise equal: negatives that look like
positives can be left out, those that the data name as positives of the anchor are left out, and the chunks of a batch need not be its
columns, so that texts of similar length go together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.util import all_gather, all_gather_with_grad, get_rank
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, normalize


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
    probably unmarked positives (NV-Retriever, arXiv 2407.15831). positives: candidates that are known to be positives: texts
    of the anchor's class, or its positives in other rows. They are left out too. Formula: LLM2Vec (arXiv 2404.05961), section 2.3.
    """
    cosines = normalize(anchors, dim=1) @ normalize(candidates, dim=1).T
    target = first + torch.arange(len(anchors), device=anchors.device)
    false = torch.zeros_like(cosines, dtype=torch.bool) if positives is None else positives
    if false_negative_margin is not None:
        positive = cosines.detach().gather(1, target.unsqueeze(1))
        false = false | (cosines.detach() > positive + false_negative_margin)
    cosines = cosines.masked_fill(false.scatter(1, target.unsqueeze(1), False), float("-inf"))
    return cross_entropy(cosines / temperature, target)


def neighbour_divergence(
    texts: Float[Tensor, "text dim"],
    candidates: Float[Tensor, "other dim"],
    teacher: Float[Tensor, "text width"],
    teacher_candidates: Float[Tensor, "other width"],
    first: int,
    temperature: float,
) -> Float[Tensor, ""]:
    """How far the student's neighbour distribution of each text is from the teacher's: KL(teacher, student) in nats, mean over texts.

    The neighbours of text i are a distribution over every other text j: the softmax over j of cosine(i, j) / temperature, without i
    itself, which is row first + i of the candidates. The divergence is zero if all cosines are the teacher's. Formula:
    stages/distill.py.
    """

    def log_neighbours(
        vectors: Float[Tensor, "text dim"], others: Float[Tensor, "other dim"]
    ) -> Float[Tensor, "text neighbour"]:
        cosines = normalize(vectors, dim=1) @ normalize(others, dim=1).T
        positions = torch.arange(len(others), device=vectors.device)
        is_other = positions != positions[first : first + len(vectors)].unsqueeze(1)
        return (cosines[is_other].reshape(len(vectors), -1) / temperature).log_softmax(dim=1)

    student, target = log_neighbours(texts, candidates), log_neighbours(teacher, teacher_candidates)
    return kl_div(student, target, reduction="batchmean", log_target=True)


class ChunkedLoss(CachedLossMixin, nn.Module, ABC):  # type: ignore[misc]
    """A loss over the vectors of a chunked batch (see PairCollator): call it with the chunks and the labels that `compute` takes.

    model: features -> {"sentence_embedding"}; cache_tokens: with more padded tokens than this in a batch, GradCache computes chunk by
    chunk, for one more forward pass.
    """

    mini_batch_size = 1 << 30  # a chunk is never split: the collator made it of the right size

    def __init__(self, model: nn.Module, temperature: float, cache_tokens: int) -> None:
        super().__init__()
        self.model, self.temperature, self.cache_tokens = model, temperature, cache_tokens

    @abstractmethod
    def compute(self, vectors: Float[Tensor, "text dim"], labels: Any) -> Float[Tensor, ""]:
        """The loss of the vectors of a batch, in the order of the chunks."""

    def forward(self, chunks: Iterable[dict[str, Tensor]], labels: Any) -> Tensor:
        """The loss of one batch, whose backward pass reaches the model either way."""
        chunks = list(chunks)
        if sum(chunk["input_ids"].numel() for chunk in chunks) > self.cache_tokens and torch.is_grad_enabled():
            return self.forward_cached(chunks, labels)
        return self.calculate_loss([[self.model(dict(chunk))["sentence_embedding"]] for chunk in chunks], labels)

    def calculate_loss(self, reps: list[list[Tensor]], labels: Any = None, *, with_backward: bool = False) -> Tensor:
        """The loss from the chunks' vectors."""
        loss = self.compute(torch.cat([part for chunk in reps for part in chunk]), labels)
        if with_backward:
            loss.backward()
            return loss.detach()
        return loss


class RankingLoss(ChunkedLoss):
    """InfoNCE of a chunked batch. Its labels are the order, candidate ids and positive ids of collate.py; the ids may be None.

    matryoshka: the loss is the mean over these leading dimensions and all of them (arXiv 2205.13147). Across processes, every anchor
    sees the candidates of every process.
    """

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        cache_tokens: int,
        false_negative_margin: float | None = None,
        matryoshka: tuple[int, ...] = (),
    ) -> None:
        super().__init__(model, temperature, cache_tokens)
        self.false_negative_margin, self.matryoshka = false_negative_margin, matryoshka

    def compute(
        self, vectors: Float[Tensor, "text dim"], labels: tuple[Tensor, Tensor | None, Tensor | None]
    ) -> Float[Tensor, ""]:
        """The loss of vectors, by the order of their texts, the candidate ids and the ids of each anchor's positives."""
        order, candidate_ids, positive_ids = labels
        anchors, *candidates = vectors[order].unbind(0)
        first = 0
        if torch.distributed.is_initialized():
            candidates = [all_gather_with_grad(column) for column in candidates]
            first = get_rank() * len(anchors)
        everything = torch.cat(candidates)
        positives = None if candidate_ids is None or positive_ids is None else _are_positives(candidate_ids, positive_ids)
        losses = [
            info_nce(anchors[:, :size], everything[:, :size], first, self.temperature, self.false_negative_margin, positives)
            for size in sorted({*self.matryoshka, anchors.shape[1]})
        ]
        return torch.stack(losses).mean()


def _are_positives(candidate_ids: Tensor, positive_ids: Tensor) -> Bool[Tensor, "anchor candidate"]:
    """Which candidates are known positives of an anchor, other processes included."""
    columns = list(candidate_ids.unbind(0))
    if torch.distributed.is_initialized():
        columns = [all_gather(column.contiguous()) for column in columns]
    candidates = torch.cat(columns)
    is_positive = torch.zeros(len(positive_ids), len(candidates), dtype=torch.bool, device=candidates.device)
    for ids in positive_ids.unbind(1):  # not all at once: an anchor may have hundreds
        is_positive |= ids.unsqueeze(1) == candidates
    return is_positive


class NeighbourLoss(ChunkedLoss):
    """Divergence of a chunked batch's neighbours from a teacher's. Across processes, they include the texts of every process."""

    def compute(self, vectors: Float[Tensor, "text dim"], labels: Float[Tensor, "text width"]) -> Float[Tensor, ""]:
        """The loss of vectors against the teacher's vectors of the same texts, in the same order."""
        candidates, teacher_candidates, first = vectors, labels, 0
        if torch.distributed.is_initialized():
            candidates, teacher_candidates = all_gather_with_grad(vectors), all_gather(labels)
            first = get_rank() * len(vectors)
        return neighbour_divergence(vectors, candidates, labels, teacher_candidates, first, self.temperature)
