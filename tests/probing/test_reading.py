"""Reading: the vectors are those of an embedder, each pass is made once, and attention is switched as designs ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conftest import TEXTS
from tests.probing.models import subject
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.probing.geometry import Pair
from unmask.probing.reading import cosines, passes, read_designs, read_similarities, two_designs

DESIGNS = [
    Design.parse(name)
    for name in (
        "bidirectional/plain/mean",
        "causal/eol/last",
        "causal/eol/last/sum:auto/zscore",
        "causal/plain/last@1",
        "causal/eol/mean/routing",
    )
]


def test_vectors_are_those_of_an_embedder(tokenizer: Any, pico: Callable[..., Embedder]) -> None:
    found = read_designs(subject(tokenizer, "causal", "olmoe"), DESIGNS, TEXTS, max_length=30)
    for design in DESIGNS:
        with pytest.warns(UserWarning, match="cut to 30"):
            expected = pico(design.name, family="olmoe", max_length=30).encode(TEXTS)
        np.testing.assert_allclose(found[design], expected, atol=2e-5)


def test_designs_share_passes_and_attention_is_switched_once() -> None:
    groups = passes(DESIGNS)
    assert [(attention, prompt, len(some)) for (attention, prompt), some in groups.items()] == [
        ("causal", "eol", 3),
        ("causal", "plain", 1),
        ("bidirectional", "plain", 1),
    ]


def test_progress_is_told_once_a_text_and_pass(tokenizer: Any) -> None:
    done: list[int] = []
    read_designs(subject(tokenizer, "causal", "olmoe"), DESIGNS, TEXTS, progress=done.append)
    assert sum(done) == 3 * len(TEXTS)


def test_similarities_are_cosines_of_the_pairs(tokenizer: Any) -> None:
    model, designs = subject(tokenizer, "causal"), DESIGNS[:2]
    pairs = [Pair(TEXTS[0], TEXTS[1]), Pair(TEXTS[1], TEXTS[4]), Pair(TEXTS[2], TEXTS[2])]
    found = read_similarities(model, designs, pairs)
    vectors = read_designs(model, designs, TEXTS)
    for place, design in enumerate(designs):
        rows = vectors[design]
        assert found[:, place] == pytest.approx(np.diag(Embedder.similarity(rows[[0, 1, 2]], rows[[1, 4, 2]])), abs=1e-5)
    assert found[2] == pytest.approx([1, 1])


def test_a_zero_vector_is_like_nothing() -> None:
    assert cosines(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [1.0, 0.0]])) == pytest.approx([24 / 25, 0])


def test_a_design_that_cannot_be_served_is_refused_before_anything_is_read(tokenizer: Any) -> None:
    done: list[int] = []
    with pytest.raises(UnmaskError, match="no router"):
        read_designs(subject(tokenizer, "causal"), [DESIGNS[1], DESIGNS[4]], TEXTS, progress=done.append)
    assert done == []
    with pytest.raises(UnmaskError, match="Two designs are compared"):
        two_designs(DESIGNS[:1])
