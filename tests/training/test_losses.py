"""InfoNCE is sentence-transformers' own, in value and gradients, however a batch was cut; all other losses are computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from tests.training.test_collate import LENGTHS, rows_of, text_of
from unmask.encoding.batching import collate
from unmask.encoding.tokenization import PromptTokenizer
from unmask.training.collate import PairCollator
from unmask.training.losses import NeighbourLoss, RankingLabels, RankingLoss, cosent, info_nce, neighbour_divergence
from unmask.training.text_keys import several_positives

BUDGETS = [1, 150]


class Toy(nn.Module):
    """A mean of token vectors after dropout, then a linear layer; it counts its passes."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.vectors, self.linear, self.dropout = nn.Embedding(512, 16), nn.Linear(16, 16), nn.Dropout(rate)
        self.passes = 0

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        self.passes += 1
        mask = features["pooling_mask"].unsqueeze(-1).float()
        states = self.dropout(self.vectors(features["input_ids"])) * mask
        return {**features, "sentence_embedding": self.linear(states.sum(dim=1) / mask.sum(dim=1))}


def texts_of(columns: int, rows: int = 6) -> list[list[str]]:
    return [
        [text_of(LENGTHS[(3 * column + row) % len(LENGTHS)], seed=10 * column + row) for row in range(rows)]
        for column in range(columns)
    ]


def batch_of(tokenizer: Any, texts: list[list[str]], budget: int) -> dict[str, Any]:
    return PairCollator(PromptTokenizer(tokenizer, "plain", 64), budget)(rows_of(zip(*texts, strict=True)))


def result(model: nn.Module, loss: Tensor) -> tuple[float, list[Tensor]]:
    model.zero_grad()
    loss.backward()
    return float(loss.detach()), [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def assert_same(one: tuple[float, Sequence[Tensor]], other: tuple[float, Sequence[Tensor]], tolerance: float = 1e-6) -> None:
    assert one[0] == pytest.approx(other[0], rel=tolerance, abs=tolerance)
    assert len(one[1]) == len(other[1]) > 0
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("columns", [2, 5], ids=["pairs", "three-negatives"])
def test_it_is_sentence_transformers_loss(tokenizer: Any, columns: int, budget: int, cached: bool) -> None:
    model, texts = Toy(), texts_of(columns)
    prompt = PromptTokenizer(tokenizer, "plain", 64)
    features = []
    for column in texts:
        one = collate(list(prompt.tokenize(column)), prompt.pad_id)
        features.append({"input_ids": one.ids, "attention_mask": one.attention_mask.long(), "pooling_mask": one.pooling_mask})
    theirs = result(model, MultipleNegativesRankingLoss(model, scale=20.0)(features, torch.empty(0)))
    batch = batch_of(tokenizer, texts, budget)
    ours = result(model, RankingLoss(model, 0.05, 0 if cached else 1 << 20)(batch["chunks"], RankingLabels(batch["order"])))
    assert_same(ours, theirs)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("options", [{}, {"false_negative_margin": 0.0, "matryoshka": (4, 8)}], ids=str)
def test_cached_is_plain_under_dropout(tokenizer: Any, budget: int, options: dict[str, Any]) -> None:
    model = Toy(rate=0.3).train()
    batch = batch_of(tokenizer, texts_of(3), budget)
    results = []
    for cache_tokens, seed in ((1 << 20, 0), (0, 0), (0, 1)):
        torch.manual_seed(seed)
        results.append(
            result(model, RankingLoss(model, 0.05, cache_tokens, **options)(batch["chunks"], RankingLabels(batch["order"])))
        )
    assert_same(results[0], results[1])
    assert abs(results[1][0] - results[2][0]) > 1e-3, "another seed has to draw another dropout"


def test_grad_cache_begins_above_cache_tokens(tokenizer: Any) -> None:
    """Padded tokens count; in evaluation nothing is cached."""
    batch = batch_of(tokenizer, texts_of(2), 60)
    tokens = sum(chunk["input_ids"].numel() for chunk in batch["chunks"])
    assert tokens > sum(int(chunk["attention_mask"].sum()) for chunk in batch["chunks"])
    for cache_tokens, passes in ((tokens, 1), (tokens - 1, 2)):
        model = Toy()
        RankingLoss(model, 0.05, cache_tokens)(batch["chunks"], RankingLabels(batch["order"])).backward()
        assert model.passes == passes * len(batch["chunks"])
        with torch.no_grad():
            assert not RankingLoss(model, 0.05, cache_tokens)(batch["chunks"], RankingLabels(batch["order"])).requires_grad


def angles(*degrees: float) -> Tensor:
    radians = torch.tensor(degrees) * torch.pi / 180
    return torch.stack([radians.cos(), radians.sin()], dim=1)


@pytest.mark.parametrize(
    ("margin", "kept"),
    [
        (None, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (0.0, [[0, 1, 3], [0, 1, 2, 3]]),  # the cosine of candidate 2 with anchor 0 is 1, more than the positive's 0.5
        (0.4, [[0, 1, 3], [0, 1, 2, 3]]),
        (0.6, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (-0.2, [[0, 1, 3], [1, 2]]),  # whatever comes within 0.2 of the positive: but never the positive
    ],
)
def test_false_negatives_are_left_out(margin: float | None, kept: list[list[int]]) -> None:
    anchors, candidates = angles(0, 90), angles(60, 90, 0, 80)
    loss = info_nce(anchors, candidates, 0, 0.5, margin)
    expected = 0.0
    for row, columns in enumerate(kept):
        cosines = torch.stack([cosine_similarity(anchors[row], candidates[column], dim=0) for column in columns])
        expected -= float((cosines / 0.5).log_softmax(0)[columns.index(row)]) / 2
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_a_guide_decides_in_place_of_the_model(tokenizer: Any) -> None:
    """Its cosine of anchor 0 with candidate 1 exceeds that with the positive by 0.25; the anchors' own cosines say nothing of the kind."""
    anchors, candidates, guide = angles(0, 90), angles(0, 90, 30), torch.tensor([[0.5, 0.75, 0.25], [0.25, 0.5, 0.5]])
    for margin, left_out in ((0.0, {1}), (0.3, set()), (-0.3, {1, 2})):
        columns = [column for column in range(3) if column not in left_out]
        cosines = [cosine_similarity(anchors[0], candidates[column], dim=0) for column in columns]
        expected = -float((torch.stack(cosines) / 0.5).log_softmax(0)[0])
        assert float(info_nce(anchors[:1], candidates, 0, 0.5, margin, None, guide[:1])) == pytest.approx(expected, abs=1e-5)
    plain = float(info_nce(anchors, candidates, 0, 0.5))
    assert float(info_nce(anchors, candidates, 0, 0.5, 0.3, None, guide)) == pytest.approx(plain)


@pytest.mark.parametrize("cache_tokens", [0, 1 << 20], ids=["cached", "plain"])
def test_guide_and_teacher_of_a_chunked_batch(tokenizer: Any, cache_tokens: int) -> None:
    """The guide's vectors are in the order of the chunks; the teacher adds its divergence by its weight."""
    model, texts = Toy(), texts_of(3, rows=4)
    batch = batch_of(tokenizer, texts, 40)
    others = points(12, 5, 3)
    in_chunks = others[batch["order"].flatten().argsort()]  # row k is of the text in row k of the chunks' outputs
    cosines = torch.nn.functional.cosine_similarity(others[:4, None], others[None, 4:], dim=2)
    left_out = [{column for column in range(8) if cosines[row, column] > cosines[row, row]} for row in range(4)]
    assert any(left_out) and not all(len(columns) == 7 for columns in left_out)
    guided = RankingLoss(model, 0.5, cache_tokens, 0.0)(batch["chunks"], RankingLabels(batch["order"], guide=in_chunks))
    found = result(model, guided)
    assert_same(found, written_out(model, tokenizer, texts, left_out))
    joint = RankingLoss(model, 0.5, cache_tokens, 0.0, (), 3.0, 0.1)
    both = result(model, joint(batch["chunks"], RankingLabels(batch["order"], guide=in_chunks, teacher=in_chunks)))
    alone = result(model, NeighbourLoss(model, 0.1, cache_tokens)(batch["chunks"], in_chunks))
    assert alone[0] > 0.01
    assert_same(both, (found[0] + 3 * alone[0], [one + 3 * other for one, other in zip(found[1], alone[1], strict=True)]), 1e-5)


def test_scores_make_it_sentence_transformers_cosent(tokenizer: Any) -> None:
    model, batch = Toy(), batch_of(tokenizer, texts_of(2), 40)
    scores = torch.tensor([0.0, 2.5, 1.0, 2.5, 5.0, 0.5])
    anchors, partners = torch.cat([model(dict(chunk))["sentence_embedding"] for chunk in batch["chunks"]])[batch["order"]]
    theirs = result(model, CoSENTLoss(model, scale=20.0).compute_loss_from_embeddings([anchors, partners], scores))
    for cache_tokens in (0, 1 << 20):
        loss = RankingLoss(model, 0.05, cache_tokens)(batch["chunks"], RankingLabels(batch["order"], scores=scores))
        assert_same(result(model, loss), theirs)
    assert float(cosent(angles(0, 0), angles(0, 60), torch.tensor([2.0, 1.0]), 0.1)) == pytest.approx(np.log1p(np.exp(-5)))
    assert float(cosent(angles(0, 0), angles(0, 60), torch.tensor([1.0, 1.0]), 0.1)) == 0.0, "equal scores have no order"


def written_out(model: Toy, tokenizer: Any, texts: list[list[str]], left_out: list[set[int]]) -> tuple[float, list[Tensor]]:
    """The loss summed anchor by anchor, without these candidates."""
    batch = batch_of(tokenizer, texts, 1 << 20)
    anchors, *columns = torch.cat([model(dict(chunk))["sentence_embedding"] for chunk in batch["chunks"]])[batch["order"]]
    candidates, losses = torch.cat(columns), []
    for row, excluded in enumerate(left_out):
        others = [index for index in range(len(candidates)) if index != row and index not in excluded]
        cosines = cosine_similarity(anchors[row].unsqueeze(0), candidates[[row, *others]]) / 0.5
        losses.append(-cosines.log_softmax(0)[0])
    return result(model, torch.stack(losses).mean())


@pytest.mark.parametrize("cache_tokens", [0, 1 << 20], ids=["cached", "plain"])
def test_candidates_of_the_class_of_an_anchor_are_left_out(tokenizer: Any, cache_tokens: int) -> None:
    """A triple whose classes all differ has the loss of one without classes."""
    texts, classes = texts_of(3, rows=4), torch.tensor([[0, 1, 0, 2], [0, 1, 0, 2], [1, 0, 3, 0]])
    model, batch = Toy(), batch_of(tokenizer, texts, 40)
    loss = RankingLoss(model, 0.5, cache_tokens)
    found = result(model, loss(batch["chunks"], RankingLabels(batch["order"], classes[1:], classes[:1].T)))
    of_candidates = classes[1:].flatten().tolist()
    left_out = [{index for index, label in enumerate(of_candidates) if label == own} for own in classes[0].tolist()]
    assert_same(found, written_out(model, tokenizer, texts, left_out))
    plain = result(model, loss(batch["chunks"], RankingLabels(batch["order"])))
    assert abs(found[0] - plain[0]) > 1e-3, "classes of one batch are not those of the next"
    differing = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]])
    assert_same(result(model, loss(batch["chunks"], RankingLabels(batch["order"], differing[1:], differing[:1].T))), plain)


@pytest.mark.parametrize("cache_tokens", [0, 1 << 20], ids=["cached", "plain"])
def test_positives_of_an_anchor_in_other_rows_are_left_out(tokenizer: Any, cache_tokens: int) -> None:
    """Anchor 0 has the positives 0 and 1, anchor 2 the negative of row 3 as well, in another spelling."""
    anchors, positives, negatives = texts_of(3, rows=4)
    named = [*zip(anchors, positives, strict=True), (anchors[0].upper(), positives[1] + "!"), (anchors[2], negatives[3])]
    model, rows = Toy(), rows_of(zip(anchors, positives, negatives, strict=True))
    data = replace(rows[0].data, positives=several_positives(named))
    batch = PairCollator(PromptTokenizer(tokenizer, "plain", 64), 40)([replace(row, data=data) for row in rows])
    labels = RankingLabels(batch["order"], batch["candidate_ids"], batch["positive_ids"])
    found = result(model, RankingLoss(model, 0.5, cache_tokens)(batch["chunks"], labels))
    assert_same(found, written_out(model, tokenizer, [anchors, positives, negatives], [{1}, set(), {7}, set()]))


def test_the_positive_is_found_behind_those_of_other_processes() -> None:
    anchors, candidates = angles(0, 90), angles(45, 45, 60, 90)
    assert float(info_nce(anchors, candidates, 2, 0.5)) == pytest.approx(
        float(info_nce(anchors, candidates[[2, 3, 0, 1]], 0, 0.5)), abs=1e-6
    )


def test_matryoshka_is_the_mean_over_dimensions(tokenizer: Any) -> None:
    model, batch = Toy(), batch_of(tokenizer, texts_of(3), 1 << 20)
    loss = RankingLoss(model, 0.05, 1 << 20, matryoshka=(4, 8, 16))(batch["chunks"], RankingLabels(batch["order"])).detach()
    vectors = torch.cat([model(dict(one))["sentence_embedding"].detach() for one in batch["chunks"]])[batch["order"]]
    by_hand = [info_nce(vectors[0][:, :size], torch.cat([*vectors[1:]])[:, :size], 0, 0.05) for size in (4, 8, 16)]
    assert float(loss) == pytest.approx(float(sum(by_hand)) / 3, abs=1e-5)
    whole = RankingLoss(model, 0.05, 1 << 20, matryoshka=(4, 8))(batch["chunks"], RankingLabels(batch["order"])).detach()
    assert float(whole) == pytest.approx(float(loss), abs=1e-6), "the whole vector is always one of the sizes"


# neighbours


def points(rows: int, dim: int, seed: int) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def divergence(student: Tensor, teacher: Tensor, temperature: float = 0.1) -> Tensor:
    return neighbour_divergence(student, student, teacher, teacher, 0, temperature)


def neighbours_of(vectors: Tensor, row: int, temperature: float) -> list[float]:
    """The probabilities that a text gives all others, one by one."""
    rows = vectors.double().numpy()
    cosines = [
        float(rows[row] @ other / np.linalg.norm(rows[row]) / np.linalg.norm(other))
        for place, other in enumerate(rows)
        if place != row
    ]
    weights = [np.exp(cosine / temperature) for cosine in cosines]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(("rows", "temperature"), [(3, 2.0), (9, 0.05)])
def test_the_divergence_of_neighbours_by_hand(rows: int, temperature: float) -> None:
    student, teacher = points(rows, 6, 1) * 5, points(rows, 11, 2) * 0.2
    expected = 0.0
    for row in range(rows):
        of_student, of_teacher = neighbours_of(student, row, temperature), neighbours_of(teacher, row, temperature)
        expected += sum(p * np.log(p / q) for p, q in zip(of_teacher, of_student, strict=True)) / rows
    assert float(divergence(student, teacher, temperature)) == pytest.approx(expected, rel=1e-4)


def test_equal_cosines_have_no_divergence_and_no_gradient() -> None:
    """The student has the teacher's cosines in more dimensions, turned and stretched text by text."""
    teacher = points(8, 5, 0)
    turn = torch.linalg.qr(points(9, 9, 1))[0][:5]
    student = (teacher @ turn * torch.arange(1, 9).unsqueeze(1)).requires_grad_()
    loss = divergence(student, teacher)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-6)
    assert student.grad is not None and float(student.grad.abs().max()) < 1e-5
    other = student.detach() + 0.1 * points(8, 9, 3)
    assert float(divergence(other, teacher)) > 1e-3, "any other cosines diverge"


def test_texts_of_other_processes_are_neighbours_too() -> None:
    """The mean over processes is the divergence of all their texts."""
    student, teacher = points(8, 6, 1), points(8, 4, 2)
    parts = [neighbour_divergence(student[at : at + 4], student, teacher[at : at + 4], teacher, at, 0.1) for at in (0, 4)]
    assert float(sum(parts)) / 2 == pytest.approx(float(divergence(student, teacher)), rel=1e-5)


@pytest.mark.parametrize("budget", BUDGETS)
def test_neighbours_are_cached_as_they_are_plain(tokenizer: Any, budget: int) -> None:
    """However the batch was cut, and under dropout: the value and the gradients are those of the uncut batch."""
    texts = texts_of(2)
    batch, whole = batch_of(tokenizer, texts, budget), batch_of(tokenizer, texts, 1 << 20)
    teacher = points(12, 4, 0)

    def of(batch: dict[str, Any], cache_tokens: int, rate: float = 0.0) -> tuple[float, list[Tensor]]:
        model = Toy(rate).train()
        torch.manual_seed(0)
        labels = teacher[batch["order"].flatten().argsort()]
        return result(model, NeighbourLoss(model, 0.1, cache_tokens)(batch["chunks"], labels))

    assert_same(of(batch, 0), of(whole, 1 << 20))
    assert_same(of(batch, 0, 0.3), of(batch, 1 << 20, 0.3))
