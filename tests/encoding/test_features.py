"""Features: MoEE's sum is one vector, and what is fitted is what a hand would compute."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from unmask.designs.design import Design
from unmask.encoding.features import Fit, Raw, balanced_alpha, fit, vectors, weighted_sum
from unmask.errors import UnmaskError

NUMBERS = st.floats(-100, 100, allow_subnormal=False)
ALPHAS = st.floats(1e-6, 1e6)


def pairs(dim: int) -> st.SearchStrategy[Tensor]:
    return (
        arrays("float64", (2, dim), elements=NUMBERS).map(torch.from_numpy).filter(lambda x: bool((x.norm(dim=1) > 1e-3).all()))
    )


def table(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def cosine(pair: Tensor) -> float:
    return float(cosine_similarity(pair[0], pair[1], dim=0))


@given(pairs(5), pairs(3), ALPHAS)
def test_the_cosine_of_sum_is_the_weighted_mean_of_the_cosines(hidden: Tensor, routing: Tensor, alpha: float) -> None:
    both = weighted_sum(hidden, routing, alpha)
    assert cosine(both) == pytest.approx((cosine(hidden) + alpha * cosine(routing)) / (1 + alpha), abs=1e-6)
    assert torch.allclose(both.square().sum(dim=1), torch.tensor(1 + alpha, dtype=torch.float64))


def test_each_kind_of_features_by_hand() -> None:
    raw = Raw(table([3.0, 4.0]), table([0.0, 2.0]))
    expected = {
        "hidden": [3.0, 4.0],
        "routing": [0.0, 2.0],
        "concat": [3.0, 4.0, 0.0, 2.0],
        "sum": [0.6, 0.8, 0.0, 1.0],
    }
    for features, row in expected.items():
        assert torch.allclose(vectors(Design(features=features), raw, Fit()), table(row))  # type: ignore[arg-type]
    for design, fitted in ((Design(features="sum", alpha=4), Fit()), (Design(features="sum", alpha="auto"), Fit(alpha=4.0))):
        assert torch.allclose(vectors(design, raw, fitted), table([0.6, 0.8, 0.0, 2.0]))


def test_standardisation_by_hand() -> None:
    """Mean and sample deviation of [1, 3, 5] are 3 and 2, of [0, 6, 6] 4 and the root of 12."""
    raw = Raw(table([1.0], [3.0], [5.0]), table([0.0], [6.0], [6.0]))
    design = Design(features="concat", transforms=("zscore",))
    fitted = fit(design, raw)
    assert (fitted.hidden_mean, fitted.hidden_std, fitted.alpha) == (table([3.0])[0], table([2.0])[0], None)
    new = vectors(design, Raw(table([7.0], [3.0]), table([10.0], [4.0])), fitted)
    assert torch.allclose(new, table([2.0, 6 / 12**0.5], [0.0, 0.0]))


def test_states_that_are_added_are_transformed_and_scaled_first() -> None:
    design = Design(pooling=("last", "mean"), weights=(1, 0.5), transforms=("zscore", "filter:4"))
    raw, weights = Raw(correlated(30, 12)), torch.randn(50, 6)
    fitted = fit(design, raw, weights)
    alone = [
        normalize(vectors(one, part, fit(one, part, weights)))
        for one in (Design(transforms=design.transforms),)
        for part in (Raw(raw.hidden[:, :6]), Raw(raw.hidden[:, 6:]))  # type: ignore[index]
    ]
    assert torch.allclose(vectors(design, raw, fitted), alone[0] + 0.5 * alone[1], atol=1e-5)


def test_the_filter_keeps_the_middle_of_the_spectrum_of_the_output_layer() -> None:
    weights, states = torch.randn(300, 10) * torch.logspace(0, 1, 10), torch.randn(4, 10)
    design = Design(transforms=("filter:4",))
    fitted = fit(design, Raw(states), weights)
    middle = torch.linalg.svd(weights, full_matrices=False).Vh[3:7]
    # a singular vector has no sign
    assert torch.allclose(vectors(design, Raw(states), fitted).abs(), (states @ middle.T).abs(), atol=1e-4)
    assert vectors(
        Design(transforms=("filter",)), Raw(states), fit(Design(transforms=("filter",)), Raw(states), weights)
    ).shape == (4, 5)
    with pytest.raises(UnmaskError, match="cannot keep 11 dimensions of states that have 10"):
        fit(Design(transforms=("filter:11",)), Raw(states), weights)


def correlated(texts: int, dim: int) -> Tensor:
    """Rows with a mean far from zero, of dimensions that go together and differ in size."""
    return torch.randn(texts, dim) @ torch.randn(dim, dim) * torch.logspace(0, 1, dim) + 50


@pytest.mark.parametrize("keep", [6, 3])
def test_a_whitened_corpus_is_uncorrelated_and_of_variance_one(keep: int) -> None:
    corpus, design = correlated(40, 6), Design(transforms=(f"whiten:{keep}",))
    found = vectors(design, Raw(corpus), fit(design, Raw(corpus)))
    assert found.shape == (40, keep) and found.dtype == torch.float32
    norms = fit(design, Raw(corpus)).hidden_whitening.norm(dim=0)  # type: ignore[union-attr]
    assert (norms.diff() > 0).all(), "the directions with the most variance come first"
    assert torch.allclose(found.mean(dim=0), torch.zeros(found.shape[1]), atol=1e-4)
    assert torch.allclose(found.T.cov(), torch.eye(found.shape[1]), atol=1e-3)


def test_whitening_does_not_blow_up_what_cannot_vary() -> None:
    """Routing weights of a layer sum to 1: one direction has no variance but that of rounding."""
    corpus = torch.randn(80, 8).softmax(dim=1)
    design = Design(features="routing", transforms=("whiten",))
    fitted = fit(design, Raw(routing=corpus))
    new = torch.randn(5, 8).softmax(dim=1)
    apart = vectors(design, Raw(routing=new), fitted) - vectors(design, Raw(routing=new * (1 + 1e-7)), fitted)
    assert apart.abs().max() < 1e-2
    assert fitted.hidden_mean is None and fitted.hidden_whitening is None


@pytest.mark.parametrize("at_once", [1, 500, 2**22])
def test_alpha_is_that_of_all_pairs_however_many_are_computed_at_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.encoding.features._COSINES", at_once, raising=False)
    parts = (torch.randn(61, 5) + 2, torch.rand(61, 7))
    above = torch.triu_indices(61, 61, offset=1)
    units = [normalize(part.double(), dim=1) for part in parts]
    hidden, routing = ((unit @ unit.T)[above[0], above[1]].std() for unit in units)
    assert balanced_alpha(*parts) == pytest.approx(float(hidden / routing), rel=1e-5)


def test_what_does_not_vary_is_centred_only_and_cannot_balance_alpha() -> None:
    for value, texts in ((0.0, 2), (0.1, 20), (1 / 3, 240), (-1e4, 20), (1e-20, 20)):
        alike = torch.full((texts, 7), value)
        fitted = fit(Design(transforms=("zscore",)), Raw(alike))
        found = vectors(Design(transforms=("zscore",)), Raw(torch.stack([alike[0], alike[0] + 2])), fitted)
        assert torch.allclose(found, table([0.0] * 7, [2.0] * 7), atol=2e-3)
        with pytest.raises(UnmaskError, match="routing weights of all reference texts are the same"):
            balanced_alpha(torch.randn(texts + 1, 7), torch.full((texts + 1, 7), value))


@pytest.mark.parametrize(
    ("end", "texts", "message"),
    [
        ("mean/zscore", 1, "at least 2 reference texts"),
        ("mean/sum:auto/zscore", 2, "at least 3 reference texts"),
        ("mean/whiten", 6, "more than 6 reference texts, not 6"),
        ("mean/whiten:4", 4, "more than 4 reference texts, not 4"),
        ("mean/whiten:7", 9, "cannot keep 7 dimensions of vectors that have 6"),
    ],
)
def test_a_corpus_that_is_too_small_is_refused_and_a_design_that_was_not_fitted(end: str, texts: int, message: str) -> None:
    design, raw = Design.parse(f"causal/plain/{end}"), Raw(torch.randn(texts, 6), torch.rand(texts, 3))
    with pytest.raises(UnmaskError, match=message):
        fit(design, raw)
    with pytest.raises(UnmaskError, match="must be fitted"):
        vectors(design, raw, Fit())
