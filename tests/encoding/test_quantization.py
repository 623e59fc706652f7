"""Precisions: what is packed is what other libraries read, nothing senseless is written, and a loss is measured, not assumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unmask.embedder import Embedder
from unmask.encoding.quantization import (
    PRECISIONS,
    PrecisionLoss,
    Vectors,
    as_floats,
    finish,
    mean_loss,
    measure_loss,
    normalized,
)
from unmask.errors import UnmaskError

NUMBERS = st.floats(-1e4, 1e4, width=32)
SIGNED = arrays("float32", st.tuples(st.integers(1, 6), st.integers(1, 4).map(lambda bytes_: 8 * bytes_)), elements=NUMBERS)
LOSSY = [precision for precision in PRECISIONS if precision != "float32"]


def drawn(count: int, dim: int = 64, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


# --- binary ----------------------------------------------------------------------------------------------------------


@given(SIGNED)
def test_binary_is_packed_as_in_sentence_transformers(vectors: Vectors) -> None:
    from sentence_transformers.util import quantize_embeddings

    assert np.array_equal(finish(vectors, None, False, "binary"), quantize_embeddings(vectors, "ubinary"))


@given(SIGNED)
def test_the_cosine_of_binary_vectors_is_their_hamming_distance(vectors: Vectors) -> None:
    packed = np.asarray(finish(vectors, None, False, "binary"), np.uint8)
    assert np.array_equal(as_floats(packed) > 0, vectors > 0)
    assert np.allclose(Embedder.top_k(vectors, packed, 1).cosines[:, 0], Embedder.similarity(vectors, packed).max(axis=1))
    hamming = np.bitwise_count(packed[:, None] ^ packed[None]).sum(axis=2)
    np.testing.assert_allclose(Embedder.similarity(packed, packed), 1 - 2 * hamming / vectors.shape[1], atol=1e-6)
    np.testing.assert_allclose(Embedder.similarity_pairwise(packed, packed[::-1]), 1 - 2 * np.diag(hamming[:, ::-1]) / vectors.shape[1],
                               atol=1e-6)  # fmt: skip


@pytest.mark.parametrize(
    ("design", "options", "message"),
    [
        ("causal/plain/mean", {"dim": 12}, r"12 is not a multiple of 8. Use dim=8"),
        ("causal/plain/mean", {"dim": 3}, r"3 is not a multiple of 8. Use int8"),
        ("causal/plain/mean/whiten:9", {}, r"9 is not a multiple of 8. Use dim=8"),
        ("causal/plain/mean/routing", {}, r"never negative.*'/zscore'"),
        ("causal/plain/mean/concat~sigmoid", {}, r"never negative"),
    ],
)
def test_binary_that_makes_no_sense_is_refused_before_texts_are_computed(
    design: str, options: dict[str, Any], message: str, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = pico(design, "olmoe")
    monkeypatch.setattr("unmask.encoding.tokenization.PromptTokenizer._truncate", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(UnmaskError, match=message):
        embedder.encode(["long " * 2000], precision="binary", **options)


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", LOSSY)
def test_a_loss_is_that_of_the_similarities(precision: Any) -> None:
    """Against numbers computed another way: scipy's correlation, and neighbours by sets."""
    from scipy.stats import spearmanr

    vectors = drawn(60)
    loss = measure_loss(vectors, precision)
    assert measure_loss(vectors, "float32") is None and measure_loss(vectors[:2], precision) is None
    before, after = (normalized(values) for values in (vectors, as_floats(finish(vectors, None, False, precision))))
    one, other = before @ before.T, after @ after.T
    pairs = [(a, b) for a in range(60) for b in range(a)]
    expected = spearmanr([one[pair] for pair in pairs], [other[pair] for pair in pairs]).statistic
    assert loss is not None and loss.spearman == pytest.approx(expected, abs=1e-6)
    kept = []
    for row in range(60):
        others = [k for k in range(60) if k != row]
        first, second = (sorted(others, key=lambda k: (-cosines[row, k], k))[:10] for cosines in (one, other))
        kept.append(len(set(first) & set(second)) / 10)
    assert loss.neighbours == pytest.approx(np.mean(kept), abs=0.005)


def test_losses_of_shards_are_averaged_by_their_vectors() -> None:
    one, other = PrecisionLoss("int8", 30, 0.9, 0.6), PrecisionLoss("int8", 10, 0.5, 1.0)
    assert mean_loss([one, other]) == PrecisionLoss("int8", 40, pytest.approx(0.8), pytest.approx(0.7))  # type: ignore[arg-type]
    assert mean_loss([PrecisionLoss("int8", 5, None, 1.0)]) == PrecisionLoss("int8", 5, None, 1.0)
    assert mean_loss([]) is None
