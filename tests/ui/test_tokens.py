"""Leave-one-out: pieces cover the text, an effect is the distance to the text without the piece, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conftest import make_tokenizer
from tests.ui.conftest import HOSTILE
from unmask.designs.design import parse_designs
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.ui.tokens import MOST_TOKENS, as_json, leave_one_out, pieces
from unmask.ui.workbench import Workbench

TEXT = "The film is long, but the end is good."


def bench(embedder: Embedder) -> Workbench:
    return Workbench(embedder, {embedder.design.name: embedder.design})


def go_on(_: int) -> None: ...


@pytest.mark.parametrize("text", [TEXT, *HOSTILE, " leading", "trailing \n", "x", "  ", "👨‍👩‍👧", "a</s>b"])
def test_pieces_cover_the_text(text: str, pico: Callable[..., Embedder]) -> None:
    spans = pieces(pico(), text)
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(stop > start for start, stop in spans)


def test_pieces_are_tokens_and_a_character_is_never_cut(pico: Callable[..., Embedder]) -> None:
    embedder = pico()
    spans = pieces(embedder, TEXT)
    assert len(spans) == len(embedder.tokenizer(TEXT)["input_ids"])
    assert len(embedder.tokenizer("a 🎉 b")["input_ids"]) > len(pieces(embedder, "a 🎉 b"))
    assert any("🎉" in "a 🎉 b"[start:stop] for start, stop in pieces(embedder, "a 🎉 b"))


def test_special_tokens_are_no_pieces(pico: Callable[..., Embedder]) -> None:
    embedder = pico()
    plain = pieces(embedder, TEXT)
    embedder.encoder = replace(embedder.encoder, tokenizer=make_tokenizer(add_bos=True), _tokenizers={})
    assert pieces(embedder, TEXT) == plain


@pytest.mark.parametrize("design", ["causal/plain/mean", "causal/eol/last", "causal/echo/mean", "bidirectional/plain/mean"])
def test_an_effect_is_the_distance_to_the_text_without_the_piece(design: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico(design)
    spans, (found,) = leave_one_out(bench(embedder), [design], TEXT, go_on)
    whole = embedder.encode([TEXT])
    for (start, stop), effect in zip(spans, found.effects, strict=True):
        without = embedder.encode([TEXT[:start] + TEXT[stop:]])
        assert effect == pytest.approx(1 - Embedder.similarity(whole, without)[0, 0], abs=2e-5)
    assert found.effects.max() > 0.01


def test_only_the_first_token_matters_to_a_design_that_reads_it(pico: Callable[..., Embedder]) -> None:
    """Under causal attention, the first token has seen nothing else."""
    _, (found,) = leave_one_out(bench(pico("causal/plain/first")), ["causal/plain/first"], TEXT, go_on)
    assert found.effects[0] > 1e-3
    assert np.allclose(found.effects[1:], 0, atol=1e-5)


def test_one_piece_leaves_the_empty_text(pico: Callable[..., Embedder]) -> None:
    embedder = pico()
    spans, (found,) = leave_one_out(bench(embedder), ["mean"], "x", go_on)
    assert spans == [(0, 1)]
    assert found.effects[0] == pytest.approx(1 - float(Embedder.similarity(*embedder.encode(["x", ""]))), abs=2e-5)


def test_a_text_that_is_too_long_or_empty_is_refused(pico: Callable[..., Embedder]) -> None:
    with pytest.raises(UnmaskError, match=f"at most {MOST_TOKENS}"):
        pieces(pico(), "a b c d e f " * 40)
    with pytest.raises(UnmaskError, match="empty"):
        pieces(pico(), "")


def test_two_designs_and_a_cut(pico: Callable[..., Embedder]) -> None:
    workbench = Workbench(pico("causal/plain/mean", max_length=6), parse_designs("mean,last"))
    spans, found = leave_one_out(workbench, ["mean", "last"], TEXT, go_on)
    answer: dict[str, Any] = as_json(TEXT, spans, found)
    assert "".join(answer["pieces"]) == TEXT
    assert [(one["name"], one["cut"], len(one["effects"])) for one in answer["designs"]] == [
        ("mean", True, len(spans)),
        ("last", True, len(spans)),
    ]
