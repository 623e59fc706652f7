"""Losses of the vectors of one batch, computed at once or in parts by GradCache, with sentence-transformers' machinery for both.

What InfoNCE adds to sentence-transformers' MultipleNegativesRankingLoss, to which it is otherwise equal: negatives that look like
positives, to the model or to a guide, can be left out, those that the data name as positives of the anchor are left out, and the chunks
of a batch need not be its columns, so that texts of similar length go together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

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
    guide: Float[Tensor, "anchor candidate"] | None = None,
) -> Float[Tensor, ""]:
    """Mean cross-entropy of anchor i choosing candidate first + i among all candidates, by cosine over temperature.

    false_negative_margin: candidates whose cosine exceeds the positive's by more than this are left out of the sum: they are
    probably unmarked positives (NV-Retriever, arXiv 2407.15831). guide: cosines by another model, which decide this in place of the
    anchors' and candidates' own (GISTEmbed, arXiv 2402.16829). positives: candidates that are known to be positives: texts
    of the anchor's class, or its positives in other rows. They are left out too. Formula: LLM2Vec (arXiv 2404.05961), section 2.3.
    """
    cosines = normalize(anchors, dim=1) @ normalize(candidates, dim=1).T
    target = first + torch.arange(len(anchors), device=anchors.device)
    false = torch.zeros_like(cosines, dtype=torch.bool) if positives is None else positives
    if false_negative_margin is not None:
        judged = cosines.detach() if guide is None else guide
        false = false | (judged > judged.gather(1, target.unsqueeze(1)) + false_negative_margin)
    cosines = cosines.masked_fill(false.scatter(1, target.unsqueeze(1), False), float("-inf"))
    return cross_entropy(cosines / temperature, target)


def cosent(
    anchors: Float[Tensor, "pair dim"], partners: Float[Tensor, "pair dim"], scores: Float[Tensor, " pair"], temperature: float
) -> Float[Tensor, ""]:
    """CoSENT: log(1 + the sum of exp((cosine of i - cosine of j) / temperature) over pairs i with a lower score than j).

    Only the order of the scores counts. Across processes, the pairs of every process are compared. Source: kexue.fm/archives/8847;
    sentence-transformers' CoSENTLoss has the cosines of one process.
    """
    cosines = (normalize(anchors, dim=1) * normalize(partners, dim=1)).sum(dim=1)
    if torch.distributed.is_initialized():
        cosines, scores = all_gather_with_grad(cosines), all_gather(scores)
    is_lower = scores.unsqueeze(1) < scores
    differences = (cosines.unsqueeze(1) - cosines)[is_lower] / temperature
    return torch.cat([differences.new_zeros(1), differences]).logsumexp(dim=0)


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


class RankingLabels(NamedTuple):
    """What the ranking loss needs of a batch besides the vectors: entries of PairCollator's batch."""

    order: Tensor
    candidate_ids: Tensor | None = None
    positive_ids: Tensor | None = None
    scores: Tensor | None = None
    guide: Tensor | None = None
    teacher: Tensor | None = None


class RankingLoss(ChunkedLoss):
    """InfoNCE of a chunked batch, or CoSENT if its pairs have scores.

    matryoshka: the loss is the mean over these leading dimensions and all of them (arXiv 2205.13147). teacher_weight: of the divergence
    from the teacher's neighbours, which is added where a batch has the teacher's vectors. Across processes, every anchor sees the
    candidates of every process.
    """

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        cache_tokens: int,
        false_negative_margin: float | None = None,
        matryoshka: tuple[int, ...] = (),
        teacher_weight: float = 0.0,
        teacher_temperature: float = 1.0,
    ) -> None:
        super().__init__(model, temperature, cache_tokens)
        self.false_negative_margin, self.matryoshka = false_negative_margin, matryoshka
        self.teacher_weight, self.teacher_temperature = teacher_weight, teacher_temperature

    def compute(self, vectors: Float[Tensor, "text dim"], labels: RankingLabels) -> Float[Tensor, ""]:
        """The loss of vectors, in the order of the chunks."""
        sizes = sorted({*self.matryoshka, vectors.shape[1]})
        losses = self._graded(vectors, labels, sizes) if labels.scores is not None else self._ranked(vectors, labels, sizes)
        if labels.teacher is not None:
            divergences = [_divergence(vectors[:, :size], labels.teacher, self.teacher_temperature) for size in sizes]
            losses = losses + self.teacher_weight * torch.stack(divergences)
        return losses.mean()

    def _graded(self, vectors: Tensor, labels: RankingLabels, sizes: list[int]) -> Float[Tensor, " size"]:
        assert labels.scores is not None
        anchors, partners = vectors[labels.order].unbind(0)
        return torch.stack([cosent(anchors[:, :size], partners[:, :size], labels.scores, self.temperature) for size in sizes])

    def _ranked(self, vectors: Tensor, labels: RankingLabels, sizes: list[int]) -> Float[Tensor, " size"]:
        anchors, candidates, first = _anchors_and_candidates(vectors[labels.order])
        guide, positives = None, None
        if labels.guide is not None:
            queries, documents, _ = _anchors_and_candidates(labels.guide[labels.order])
            guide = normalize(queries, dim=1) @ normalize(documents, dim=1).T
        if labels.candidate_ids is not None and labels.positive_ids is not None:
            positives = _are_positives(labels.candidate_ids, labels.positive_ids)
        margin = self.false_negative_margin
        return torch.stack(
            [
                info_nce(anchors[:, :size], candidates[:, :size], first, self.temperature, margin, positives, guide)
                for size in sizes
            ]
        )


def _anchors_and_candidates(columns: Float[Tensor, "column text dim"]) -> tuple[Tensor, Tensor, int]:
    """The first column, the others of every process in one, and the row of the first anchor's positive among these."""
    anchors, *candidates = columns.unbind(0)
    if not torch.distributed.is_initialized():
        return anchors, torch.cat(candidates), 0
    return anchors, torch.cat([all_gather_with_grad(column) for column in candidates]), get_rank() * len(anchors)


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
        return _divergence(vectors, labels, self.temperature)


def _divergence(vectors: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """`neighbour_divergence` of the texts of this process among those of every process."""
    if not torch.distributed.is_initialized():
        return neighbour_divergence(vectors, vectors, teacher, teacher, 0, temperature)
    first = get_rank() * len(vectors)
    return neighbour_divergence(vectors, all_gather_with_grad(vectors), teacher, all_gather(teacher), first, temperature)
