"""Reroutings: early tokens see a summary of the whole text, in the layers that are named, whatever the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.encoding.test_backbone import DEPTH, load, padded, texts
from tests.families import EACH_KIND, FAMILIES
from unmask.designs.design import Design
from unmask.encoding.backbone import HiddenRead, TokenBatch
from unmask.encoding.pooling import POOLINGS
from unmask.errors import UnmaskError
from unmask.models.rerouting import _with_first_column

EVERY = ("causal+kv@2-3", "causal+kv@1-2:1.5", "causal+prepend@2-3", "causal+prepend@1-3:4")
OWN_ATTENTION = {"gemma2", "bloom", "gpt-oss", "falcon", "qwen3-next", "mamba"}
"""They attend by functions of their own, or not in every layer."""
FIRST = POOLINGS["first"]


def read(name: str, attention: str, batch: TokenBatch, pool: Any = POOLINGS["mean"]) -> list[Tensor]:
    reads = [HiddenRead(layer, pool) for layer in range(1, DEPTH + 1)]
    values = load(name, attention).read(batch, reads)
    return [values[item] for item in reads]


@pytest.mark.parametrize("attention", EVERY)
@pytest.mark.parametrize("name", EACH_KIND)
def test_a_rerouted_text_does_not_depend_on_its_batch(name: str, attention: str) -> None:
    tokens = texts()
    try:
        batch = read(name, attention, padded(tokens))
    except UnmaskError as error:
        assert name in OWN_ATTENTION and "kv" in attention, error
        return
    assert not (name in OWN_ATTENTION and "kv" in attention)
    left = read(name, attention, padded(tokens, "left"))
    alone = [
        torch.cat(rows)
        for rows in zip(*(read(name, attention, padded([text], longest=len(text))) for text in tokens), strict=True)
    ]
    for right, other, single in zip(batch, left, alone, strict=True):
        assert torch.allclose(right, other, atol=2e-4) and torch.allclose(right, single, atol=2e-4)


@pytest.mark.parametrize(("attention", "layer"), [("causal+kv@2-3", 2), ("causal+prepend@2-3", 2), ("causal+kv@3-3", 3)])
@pytest.mark.parametrize("name", ["llama", "olmoe", "deepseek-v3", "gemma3"])
def test_the_first_token_sees_the_last_one_from_the_first_layer_that_is_named(name: str, attention: str, layer: int) -> None:
    [text] = texts([9])
    other = torch.cat([text[:-1], (text[-1:] + 11) % 500 + 3])
    states, changed = (read(name, attention, padded([ids], longest=9), FIRST) for ids in (text, other))
    same = [torch.allclose(before, after, atol=1e-6) for before, after in zip(states, changed, strict=True)]
    assert same == [number < layer for number in range(1, DEPTH + 1)]


def test_keys_and_values_of_the_last_token_stand_before_the_others() -> None:
    """Against attention written out, for each text without its padding."""
    torch.manual_seed(0)
    [query, key, value] = torch.randn(3, 1, 2, 5, 4)
    mask = _with_first_column(None, query, 0.7)
    extended = [torch.cat([part[:, :, -1:], part], dim=2) for part in (key, value)]
    found = torch.nn.functional.scaled_dot_product_attention(query, *extended, attn_mask=mask)
    for token in range(5):
        logits = (query[:, :, token, None] * key[:, :, : token + 1]).sum(-1) / 2
        last = (query[:, :, token] * key[:, :, -1]).sum(-1, keepdim=True) / 2 + 0.7
        weights = torch.cat([last, logits], dim=2).softmax(dim=2)
        values = torch.cat([value[:, :, -1:], value[:, :, : token + 1]], dim=2)
        assert torch.allclose(found[:, :, token], (weights.unsqueeze(-1) * values).sum(dim=2), atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_block_has_a_placeholder_before_the_text_that_points_to_its_last_token(side: str) -> None:
    batch = padded(texts([9, 3]), side, longest=10)
    batch.pooling_mask[:, : 1 + batch.attention_mask[0].int().argmax()] = (
        False  # the first token of the first text is its prompt
    )
    found = batch.with_placeholders(4)
    assert found.placeholders is not None and found.pooling_mask.sum() == batch.pooling_mask.sum()
    found_at = found.placeholders
    places = zip(
        *(part.tolist() for part in (found_at.texts, found_at.positions, found_at.sources)),
        strict=True,
    )
    by_text: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for text, position, source in places:
        begin = int(found.attention_mask[text].int().argmax())
        by_text[text].append((position - begin, source - begin))
        assert found.attention_mask[text, position] and not found.pooling_mask[text, position]
    assert by_text[0] == [(1, 6), (2, 10)], "blocks of 4 and 4 tokens after one of the prompt and two placeholders"
    assert by_text[1] in ([(0, 3)], [(1, 3)]), "one block"
    for row in range(2):
        real = found.ids[row][found.attention_mask[row]].tolist()
        inserted = [position for position, _ in by_text[row]]
        kept = [token for index, token in enumerate(real) if index not in inserted]
        assert kept == batch.ids[row][batch.attention_mask[row]].tolist()


def test_without_weight_the_last_token_changes_nothing() -> None:
    tokens = texts()
    plain, none = (read("llama", attention, padded(tokens)) for attention in ("causal", "causal+kv@1-3:-10000"))
    assert all(torch.allclose(before, after, atol=1e-5) for before, after in zip(plain, none, strict=True))


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("causal+kv@2-4", "names layer 4, but this model has 3 layers"),
        ("causal+kw@2-3", "Did you mean 'kv'"),
        ("causal+kv", "has the form kv@13-17"),
        ("causal+prepend@2-3:1.5", "the length of a block in tokens"),
        ("causal+kv@3-2", "the first is not above the last"),
    ],
)
def test_a_rerouting_that_cannot_be_is_refused(attention: str, message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        load("llama", attention)
    with pytest.raises(UnmaskError, match="early tokens see the whole text already"):
        Design.parse("bidirectional+kv@1-2/plain/mean")


def test_names_read_back() -> None:
    for attention in EVERY:
        design = Design(attention, "eol", ("last", "mean"))
        assert Design.parse(design.name) == design
    assert set(EACH_KIND) <= set(FAMILIES)
