"""Prefix caching: the same vectors as without, for every family; fewer tokens; and not where a model cannot reuse the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.encoding.test_encoder import with_longrope
from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.encoding import prefix_cache
from unmask.encoding.backbone import Backbone
from unmask.encoding.prefix_cache import find_prefix
from unmask.encoding.tokenization import TokenizedText

PROMPT = '"Given a question about music, find texts that answer it. The question: {text}"'
TEXTS = [f"{'who plays ' * (place % 4)}text {place}?" for place in range(20)]
CANNOT = ("mamba", "qwen3-next")  # their layers keep a state, not keys and values


def whole(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(prefix_cache, "_MIN_TEXTS", 10_000)
        return embedder.encode(TEXTS)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the beginnings that are shared, 0 for none."""
    lengths: list[int] = []
    find = prefix_cache.find_prefix

    def noting(*given: Any) -> Any:
        found = find(*given)
        lengths.append(found.length if found else 0)
        return found

    monkeypatch.setattr("unmask.encoding.forward_pass.find_prefix", noting)
    return lengths


@pytest.mark.sample(8)
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_whole_texts(family: str, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = pico(f"causal/{PROMPT}/last@all", family=family, batch_tokens=128)
    expected, lengths = whole(embedder, monkeypatch), noted(monkeypatch)
    got = embedder.encode(TEXTS)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    assert bool(lengths[0]) == (family not in CANNOT)


@pytest.mark.parametrize("pooling", ["mean/routing", "last/concat", "weighted-mean", "max/hidden/zscore"])
def test_every_pooling_and_feature_is_that_of_whole_texts(
    pooling: str, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = pico(f"causal/{PROMPT}/{pooling}", family="olmoe", batch_tokens=128)
    if embedder.design.needs_fit:
        embedder.fit([f"Reference {place}" for place in range(80)])
    expected, lengths = whole(embedder, monkeypatch), noted(monkeypatch)
    assert np.abs(embedder.encode(TEXTS) - expected).max() <= 1e-4 * np.abs(expected).max()
    assert lengths == [36]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_dimension_hides_no_wrong_keys(
    dtype: torch.dtype, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained models have a few values that are far larger than the others. Rounding beside them is no measure for the others."""
    embedder = pico(f"causal/{PROMPT}/last")
    model: Any = embedder.backbone.model
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 3], model.norm.weight[3] = 10.0, 16.0
        for layer in model.layers:  # it is the same for all tokens, so it tells nothing
            layer.self_attn.o_proj.weight[3], layer.mlp.down_proj.weight[3] = 0.0, 0.0
        for weight in model.parameters():
            weight.data = weight.data.to(dtype)
    lengths = noted(monkeypatch)
    embedder.encode(TEXTS)
    begin = Backbone.cache_prefix
    monkeypatch.setattr(Backbone, "cache_prefix", lambda self, ids: begin(self, [[own[0], *own[:-1]] for own in ids]))
    embedder.encode(TEXTS)
    assert lengths == [36, 0]


def test_texts_beyond_a_border_of_longrope_do_not_go_on_from_before_it() -> None:
    """There, all tokens of a text are rotated by other frequencies."""
    ids = tuple(torch.randint(3, 512, (1030,), generator=torch.Generator().manual_seed(0)).tolist())
    backbone, read = with_longrope().backbone, lambda texts, _: [torch.ones(len(texts), 4)]
    for longest, shared in ((1024, True), (1030, False)):
        texts = [TokenizedText(ids[: longest - place], 900) for place in range(8)]
        assert (find_prefix(backbone, texts, read) is not None) is shared


@pytest.mark.parametrize(
    ("design", "texts"),
    [
        (f"bidirectional/{PROMPT}/last", TEXTS),
        (f"causal/{PROMPT}/last", TEXTS[:7]),
        ("causal/plain/last", [f"The same words begin it, {place}" for place in range(20)]),
    ],
    ids=["tokens see what follows", "few texts", "the beginning is embedded"],
)
def test_where_it_is_wrong_or_saves_little_texts_are_computed_whole(
    design: str, texts: list[str], pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = noted(monkeypatch)
    pico(design).encode(texts)
    assert lengths == [0]


def test_hooks_of_the_user_see_all_tokens(pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, lengths = pico(f"causal/{PROMPT}/last"), noted(monkeypatch)
    with embedder.backbone.layers[0].register_forward_pre_hook(lambda *_: None):
        embedder.encode(TEXTS)
    assert lengths == [0]


def test_only_tokens_that_none_embeds_are_shared() -> None:
    texts = [TokenizedText((1, 2, 3, 4, place), start=3) for place in range(5, 15)]
    assert prefix_cache.shared_length(texts) == 3
    assert prefix_cache.shared_length([*texts, TokenizedText((1, 2, 9), start=2)]) == 2
    assert prefix_cache.shared_length([replace(text, start=0) for text in texts]) == 0
