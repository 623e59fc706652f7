"""Features: MoEE's sum is one vector, and what is fitted is what a hand would compute."""

import weakref
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from torch.utils._python_dispatch import TorchDispatchMode

from unmask.designs.design import Design
from unmask.encoding.features import Fit, Raw, balanced_alpha, fit, mean_of, vectors, weighted_sum
from unmask.errors import UnmaskError

CONCAT = Design(features="concat")
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


@given(pairs(5), pairs(3), st.floats(1e-2, 1e2))
def test_so_it_is_in_fp32_through_a_design(hidden: Tensor, routing: Tensor, alpha: float) -> None:
    found = vectors(Design(features="sum", alpha=alpha), Raw(hidden.float(), routing.float()), Fit())
    assert found.dtype == torch.float32
    assert cosine(found) == pytest.approx((cosine(hidden) + alpha * cosine(routing)) / (1 + alpha), abs=1e-5)


def test_sum_by_hand() -> None:
    found = weighted_sum(table([3.0, 4.0]), table([0.0, 2.0]), 4.0)
    assert torch.allclose(found, table([0.6, 0.8, 0.0, 2.0]))


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


def test_alpha_is_one_by_default_and_the_fitted_one_where_it_is_auto() -> None:
    hidden, routing = torch.randn(4, 5), torch.randn(4, 3)
    raw = Raw(hidden, routing)
    assert torch.equal(vectors(Design(features="sum"), raw, Fit()), weighted_sum(hidden, routing, 1.0))
    assert torch.equal(vectors(Design(features="sum", alpha=2.5), raw, Fit()), weighted_sum(hidden, routing, 2.5))
    assert torch.equal(vectors(Design(features="sum", alpha="auto"), raw, Fit(alpha=2.5)), weighted_sum(hidden, routing, 2.5))


def test_standardisation_by_hand() -> None:
    """Mean and sample deviation of [1, 3, 5] are 3 and 2, of [0, 6, 6] 4 and the root of 12."""
    raw = Raw(table([1.0], [3.0], [5.0]), table([0.0], [6.0], [6.0]))
    design = Design(features="concat", zscore=True)
    fitted = fit(design, raw)
    assert (fitted.hidden_mean, fitted.hidden_std, fitted.alpha) == (table([3.0])[0], table([2.0])[0], None)
    new = vectors(design, Raw(table([7.0], [3.0]), table([10.0], [4.0])), fitted)
    assert torch.allclose(new, table([2.0, 6 / 12**0.5], [0.0, 0.0]))


def correlated(texts: int, dim: int) -> Tensor:
    """Rows with a mean far from zero, of dimensions that go together and differ in size."""
    return torch.randn(texts, dim) @ torch.randn(dim, dim) * torch.logspace(0, 1, dim) + 50


def test_whitening_by_hand() -> None:
    """Mean (3, 1); variances 32/3 along (1, 0) and 8/3 along (0, 1), none between: each is divided by its root."""
    corpus = table([7.0, 1.0], [-1.0, 1.0], [3.0, 3.0], [3.0, -1.0])
    design = Design(whiten="all")
    fitted = fit(design, Raw(corpus))
    assert torch.equal(fitted.hidden_mean, table([3.0, 1.0])[0]) and fitted.hidden_std is None  # type: ignore[arg-type]
    found = vectors(design, Raw(table([7.0, 1.0], [3.0, 3.0])), fitted)
    assert torch.allclose(found.abs(), table([4 / (32 / 3) ** 0.5, 0], [0, 2 / (8 / 3) ** 0.5]), atol=1e-5)


@pytest.mark.parametrize("keep", ["all", 3])
def test_a_whitened_corpus_is_uncorrelated_and_of_variance_one(keep: int | Literal["all"]) -> None:
    corpus, design = correlated(40, 6), Design(whiten=keep)
    found = vectors(design, Raw(corpus), fit(design, Raw(corpus)))
    assert found.shape == (40, 6 if keep == "all" else 3) and found.dtype == torch.float32
    assert torch.allclose(found.mean(dim=0), torch.zeros(found.shape[1]), atol=1e-4)
    assert torch.allclose(found.T.cov(), torch.eye(found.shape[1]), atol=1e-3)


def test_whitening_keeps_the_directions_of_most_variance() -> None:
    loud, quiet = 100 * torch.randn(60, 1), torch.randn(60, 3)
    corpus, design = torch.cat([quiet[:, :1], loud, quiet[:, 1:]], dim=1), Design(whiten=1)
    found = vectors(design, Raw(corpus), fit(design, Raw(corpus)))[:, 0]
    assert abs(torch.corrcoef(torch.stack([found, loud[:, 0]]))[0, 1]) > 0.999


def test_whitening_undoes_any_scale_and_rotation() -> None:
    """Which is why zscore before it is refused."""
    corpus, new, mixed = correlated(50, 5), torch.randn(4, 5), torch.randn(5, 5)
    design = Design(whiten="all")
    plain, moved = (vectors(design, Raw(new @ by), fit(design, Raw(corpus @ by))) for by in (torch.eye(5), mixed))
    assert torch.allclose(plain @ plain.T, moved @ moved.T, rtol=1e-2, atol=1e-2)


def test_whitening_does_not_blow_up_what_cannot_vary() -> None:
    """Routing weights of a layer sum to 1: one direction has no variance but that of rounding."""
    corpus = torch.randn(80, 8).softmax(dim=1)
    design = Design(features="routing", whiten="all")
    fitted = fit(design, Raw(routing=corpus))
    new = torch.randn(5, 8).softmax(dim=1)
    apart = vectors(design, Raw(routing=new), fitted) - vectors(design, Raw(routing=new * (1 + 1e-7)), fitted)
    assert apart.abs().max() < 1e-2
    assert fitted.hidden_mean is None and fitted.hidden_whitening is None


def test_each_part_is_whitened_on_its_own() -> None:
    hidden, routing = correlated(40, 6), torch.rand(40, 4)
    design = Design(features="concat", whiten=2)
    fitted = fit(design, Raw(hidden, routing))
    found = vectors(design, Raw(hidden, routing), fitted)
    alone = [vectors(Design(whiten=2), Raw(part), fit(Design(whiten=2), Raw(part))) for part in (hidden, routing)]
    assert torch.allclose(found, torch.cat(alone, dim=1))
    assert set(fitted.tensors) == {"hidden_mean", "routing_mean", "hidden_whitening", "routing_whitening"}


@pytest.mark.parametrize(("texts", "keep", "says"), [
    (6, "all", "more than 6 reference texts, not 6"),
    (4, 4, "more than 4 reference texts, not 4"),
    (9, 7, "cannot keep 7 dimensions of vectors that have 6"),
])  # fmt: skip
def test_too_few_texts_or_dimensions_to_whiten_are_refused(texts: int, keep: int | Literal["all"], says: str) -> None:
    with pytest.raises(UnmaskError, match=says):
        fit(Design(whiten=keep), Raw(torch.randn(texts, 6)))
    assert fit(Design(whiten="all"), Raw(torch.randn(7, 6))).hidden_whitening is not None


def test_texts_that_hardly_differ_are_not_whitened() -> None:
    corpus = torch.ones(20, 6)
    corpus[:, :2] = torch.randn(20, 2)
    with pytest.raises(UnmaskError, match="fewer than half of the 6 dimensions"):
        fit(Design(whiten="all"), Raw(corpus))


@given(arrays("float32", (6, 4), elements=st.integers(-8, 8)))
def test_a_standardised_corpus_has_mean_zero_and_deviation_one(corpus: object) -> None:
    hidden = torch.as_tensor(corpus)
    assume(bool((hidden.std(dim=0) > 0).all()))
    design = Design(zscore=True)
    found = vectors(design, Raw(hidden), fit(design, Raw(hidden)))
    assert torch.allclose(found.mean(dim=0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(found.std(dim=0), torch.ones(4), atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -1e4, 1e-20])
@pytest.mark.parametrize("texts", [2, 20, 240])
def test_a_dimension_that_never_varies_is_centred_only(value: float, texts: int) -> None:
    design = Design(zscore=True)
    fitted = fit(design, Raw(torch.full((texts, 1), value)))
    found = vectors(design, Raw(torch.tensor([[value], [value + 2]])), fitted)
    assert torch.allclose(found, table([0.0], [2.0]), atol=2e-3)


@pytest.mark.parametrize("scaling", [{"zscore": True}, {"whiten": "all"}, {"whiten": 2}])
def test_what_is_fitted_does_not_depend_on_the_texts_that_follow(scaling: dict[str, Any]) -> None:
    raw = Raw(torch.randn(9, 5), torch.rand(9, 3))
    design = Design(features="sum", alpha="auto", **scaling)
    fitted = fit(design, raw)
    hidden, routing = torch.randn(4, 5), torch.rand(4, 3)
    alone = [vectors(design, Raw(hidden[[k]], routing[[k]]), fitted) for k in range(4)]
    assert torch.allclose(torch.cat(alone), vectors(design, Raw(hidden, routing), fitted), atol=1e-6)


def test_nothing_is_fitted_that_is_not_asked_for() -> None:
    raw = Raw(torch.randn(5, 3), torch.rand(5, 2))
    assert fit(CONCAT, raw) == fit(CONCAT, Raw(torch.randn(1, 3), torch.rand(1, 2))) == Fit()
    assert fit(Design(features="sum", alpha="auto"), raw).hidden_mean is None
    assert fit(Design(features="sum", zscore=True), raw).alpha is None
    assert fit(Design(features="routing", zscore=True), Raw(routing=torch.rand(5, 2))).hidden_mean is None


def test_balanced_alpha_by_hand() -> None:
    """Cosines of the three pairs: hidden 0, 1, 0; routing 0.6, 0, 0.8; sample variances 1/3 and 0.52/3."""
    hidden = table([1.0, 0.0], [0.0, 5.0], [2.0, 0.0])
    routing = table([1.0, 0.0], [3.0, 4.0], [0.0, 2.0])
    assert balanced_alpha(hidden, routing) == pytest.approx((1 / 0.52) ** 0.5)


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_balanced_alpha_knows_angles_and_no_lengths(first: float, second: float) -> None:
    hidden, routing = torch.randn(6, 4), torch.randn(6, 3)
    assert balanced_alpha(first * hidden, second * routing) == pytest.approx(balanced_alpha(hidden, routing), rel=1e-3)
    assert balanced_alpha(routing, hidden) == pytest.approx(1 / balanced_alpha(hidden, routing), rel=1e-3)


class Largest(TorchDispatchMode):
    """The most numbers of a tensor that is made while it is on."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, result.numel() if isinstance(result, Tensor) else 0)
        return result


@pytest.mark.parametrize("at_once", [1, 500, 2**22])
def test_alpha_is_that_of_all_pairs_however_many_are_computed_at_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.encoding.features._COSINES", at_once, raising=False)
    parts = (torch.randn(61, 5) + 2, torch.rand(61, 7))
    above = torch.triu_indices(61, 61, offset=1)
    units = [normalize(part.double(), dim=1) for part in parts]
    hidden, routing = ((unit @ unit.T)[above[0], above[1]].std() for unit in units)
    assert balanced_alpha(*parts) == pytest.approx(float(hidden / routing), rel=1e-5)


def test_alpha_never_needs_the_cosines_of_all_pairs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.encoding.features._COSINES", 1000, raising=False)
    with Largest() as largest:
        balanced_alpha(torch.randn(200, 4), torch.rand(200, 3))
    assert 0 < largest.numbers < 200 * 199 / 2 / 4


@pytest.mark.parametrize("zscore", [False, True])
def test_a_balanced_alpha_makes_both_similarities_vary_alike(zscore: bool) -> None:
    hidden, routing = torch.randn(30, 8), torch.rand(30, 4)
    design = Design(features="sum", alpha="auto", zscore=zscore)
    found = vectors(design, Raw(hidden, routing), fit(design, Raw(hidden, routing)))
    above = torch.triu_indices(30, 30, offset=1)
    loud = [(part @ part.T)[above[0], above[1]].std() for part in (found[:, :8], found[:, 8:])]
    assert loud[0] == pytest.approx(float(loud[1]), rel=1e-4)


@pytest.mark.parametrize("texts", [3, 20, 240])
@pytest.mark.parametrize("value", [0.1, 1 / 3])
def test_alpha_cannot_be_balanced_against_what_does_not_vary(texts: int, value: float) -> None:
    varied, alike = torch.randn(texts, 7), torch.full((texts, 7), value)
    with pytest.raises(UnmaskError, match="routing weights of all reference texts are the same"):
        balanced_alpha(varied, alike)
    with pytest.raises(UnmaskError, match="hidden states of all reference texts are the same"):
        balanced_alpha(alike, varied)


@pytest.mark.parametrize(
    ("design", "least"),
    [
        (Design(zscore=True), 2),
        (Design(features="sum", alpha="auto"), 3),
        (Design(features="sum", alpha="auto", zscore=True), 3),
    ],
)
def test_a_corpus_that_is_too_small_is_refused(design: Design, least: int) -> None:
    raw = Raw(torch.randn(least, 4), torch.rand(least, 3))
    assert fit(design, raw) != Fit()
    with pytest.raises(UnmaskError, match=f"at least {least} reference texts"):
        fit(design, Raw(torch.randn(least - 1, 4), torch.rand(least - 1, 3)))


@pytest.mark.parametrize(
    "name", ["mean/zscore", "mean/routing/zscore", "mean/sum:auto", "mean/sum:auto/zscore", "mean/whiten:2"]
)
def test_a_design_that_was_not_fitted_is_refused(name: str) -> None:
    with pytest.raises(UnmaskError, match="must be fitted"):
        vectors(Design.parse(f"causal/plain/{name}"), Raw(torch.randn(2, 4), torch.rand(2, 3)), Fit())


@pytest.mark.parametrize("features", ["routing", "concat", "sum"])
def test_routing_features_of_a_dense_model_are_refused(features: str) -> None:
    with pytest.raises(UnmaskError, match="no router"):
        vectors(Design(features=features), Raw(torch.randn(2, 4)), Fit())  # type: ignore[arg-type]


def test_a_mean_holds_one_of_its_parts_at_a_time() -> None:
    made: list[weakref.ref[Tensor]] = []

    def raw(number: int) -> Raw:
        values = torch.full((2, 3), float(number))
        made.append(weakref.ref(values))
        return Raw(values)

    def raws() -> Iterator[Raw]:
        for number in range(5):
            assert sum(values() is not None for values in made) <= 1
            yield raw(number)

    mean = mean_of(raws())
    assert mean.hidden is not None and torch.equal(mean.hidden, torch.full((2, 3), 2.0)) and mean.routing is None
