"""Views of texts: leave-one-out effects of tokens, and similarities whose numbers are those of `encode`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from tests.conftest import TEXTS
from tests.ui.conftest import HOSTILE
from unmask.designs.design import parse_designs
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.ui.embedders import Embedders
from unmask.ui.views import MAX_TOKENS, compare_rankings, neighbours, similarities, token_effects, token_spans

TEXT = "The film is long, but the end is good."


def ignore(_: int) -> None: ...


@pytest.mark.parametrize("text", [TEXT, *HOSTILE, " leading", "trailing \n", "x", "  ", "👨‍👩‍👧", "a</s>b"])
def test_spans_cover_the_text(text: str, pico: Callable[..., Embedder]) -> None:
    spans = token_spans(pico(), text)
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(stop > start for start, stop in spans)


def test_spans_are_tokens_and_characters_are_not_cut(pico: Callable[..., Embedder]) -> None:
    embedder = pico()
    assert len(token_spans(embedder, TEXT)) == len(embedder.tokenizer(TEXT)["input_ids"])
    assert any("🎉" in "a 🎉 b"[start:stop] for start, stop in token_spans(embedder, "a 🎉 b"))
    with pytest.raises(UnmaskError, match=f"at most {MAX_TOKENS}"):
        token_spans(embedder, "a b c d e f " * 40)
    with pytest.raises(UnmaskError, match="empty"):
        token_spans(embedder, "")


@pytest.mark.parametrize("design", ["causal/plain/mean", "causal/echo/mean", "bidirectional/plain/mean", "causal/plain/first"])
def test_an_effect_is_the_distance_to_the_text_without_the_token(design: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico(design)
    answer = token_effects(Embedders(embedder, {design: embedder.design}), [design], TEXT, ignore)
    (result,) = answer["designs"]
    full = embedder.encode([TEXT])
    assert "".join(answer["pieces"]) == TEXT and max(result["effects"]) > 1e-3
    for (start, stop), effect in zip(token_spans(embedder, TEXT), result["effects"], strict=True):
        shortened = embedder.encode([TEXT[:start] + TEXT[stop:]])
        assert effect == pytest.approx(1 - Embedder.similarity(full, shortened)[0, 0], abs=3e-5)


def table(*pairs: float) -> NDArray[np.float32]:
    """A symmetric table of cosines from its upper triangle."""
    size = round((1 + (1 + 8 * len(pairs)) ** 0.5) / 2)
    cosines = np.eye(size, dtype=np.float32)
    cosines[np.triu_indices(size, 1)] = pairs
    return np.maximum(cosines, cosines.T)


def test_neighbours_are_the_others_by_cosine() -> None:
    assert neighbours(table(0.1, 0.9, 0.5)) == [[2, 1], [2, 0], [0, 1]]
    assert neighbours(table(1.0, 1.0, 1.0)) == [[1, 2], [0, 2], [0, 1]]


def test_pairs_with_the_most_different_ranks_come_first() -> None:
    spearman, pairs = compare_rankings(table(0.9, 0.8, 0.7), table(0.1, 0.3, 0.2))  # ranks 1, 2, 3 and 3, 1, 2
    assert spearman == pytest.approx(-0.5)
    assert [(pair["texts"], pair["places"]) for pair in pairs] == [((0, 1), (1, 3)), ((0, 2), (2, 1)), ((1, 2), (3, 2))]
    spearman, pairs = compare_rankings(table(0.5, 0.5, 0.1), table(0.9, 0.2, 0.1))
    assert {pair["texts"]: pair["places"] for pair in pairs} == {(0, 1): (1.5, 1), (0, 2): (1.5, 2)}
    assert spearman == pytest.approx(spearmanr([2.5, 2.5, 1], [3, 2, 1]).statistic)
    spearman, pairs = compare_rankings(table(0.5, 0.5 + 1e-7, 0.5 - 1e-7), table(0.3, 0.2, 0.1))
    assert spearman is None and {pair["places"][0] for pair in pairs} == {2}, "rounding errors are ties"
    assert compare_rankings(table(0.9), table(0.1)) == (None, [])


def test_the_numbers_are_those_of_encode(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/mean")
    embedders = Embedders(embedder, parse_designs("mean"))
    answer = similarities(embedders.embed(["mean", "causal/eol/last@1"], TEXTS, ignore))
    for design in answer["designs"]:
        vectors = embedder.with_design(design["design"]).encode(TEXTS)
        assert np.allclose(design["cosines"], Embedder.similarity(vectors, vectors), atol=1e-4)
        assert design["neighbours"] == neighbours(Embedder.similarity(vectors, vectors))
    with pytest.raises(UnmaskError, match="needs a trained head"):
        embedders.embedder("nv-embed")
