"""Compression tokens: trained tokens right after a text, whatever the batch, whose last states make the vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.encoding.test_backbone import load, padded, texts
from tests.families import EACH_KIND
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.backbone import Backbone, HiddenRead
from unmask.encoding.heads import CompressionTokens, HeadOptions, build_head
from unmask.encoding.pooling import POOLINGS
from unmask.errors import UnmaskError

DESIGN = Design.parse("llm2vec-gen")
SIZES = HeadOptions(latents=4, read=2, dim=5)


def headed(name: str) -> tuple[Backbone, CompressionTokens]:
    backbone = load(name)
    head = build_head("compression-tokens", 64, 3, SIZES)
    assert isinstance(head, CompressionTokens)
    torch.nn.init.normal_(head.latents)
    return backbone.with_head(head), head


@pytest.mark.parametrize("name", EACH_KIND)
def test_a_vector_is_its_formula_alone_and_in_a_batch_padded_on_either_side(name: str) -> None:
    backbone, head = headed(name)
    tokens, model = texts(), backbone.model
    with torch.inference_mode():
        expected = []
        for ids in tokens:  # the tokens' embeddings after the text's, without any machinery
            embedded = torch.cat([model.get_input_embeddings()(ids), head.latents])[None]
            states = model(inputs_embeds=embedded, use_cache=False).last_hidden_state[0, -2:]
            expected.append(head.alignment(head.reconstruction(states).mean(dim=0)))
        for batch in (padded(tokens), padded(tokens, "left")):
            vectors = backbone.raw(batch, [DESIGN])[DESIGN].hidden
            torch.testing.assert_close(vectors, torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_other_designs_of_the_same_pass_do_not_see_the_tokens() -> None:
    backbone, _ = headed("llama")
    last, batch = Design("causal", DESIGN.prompt, "last"), padded(texts())
    with torch.inference_mode():
        together = backbone.raw(batch, [DESIGN, last])[last].hidden
        alone = load("llama").read(batch, [HiddenRead(3, POOLINGS["last"])])
    torch.testing.assert_close(together, next(iter(alone.values())), rtol=1e-5, atol=1e-5)


def test_a_text_leaves_room_for_the_tokens() -> None:
    backbone, _ = headed("llama")  # 512 positions
    assert backbone.within_positions(1000) == 508 and backbone.within_positions(100) == 100


def test_gradients_reach_every_parameter() -> None:
    backbone, head = headed("llama")
    backbone.model.requires_grad_(False)
    hidden = backbone.raw(padded(texts()), [DESIGN])[DESIGN].hidden
    assert hidden is not None
    hidden.sin().sum().backward()
    for name, weight in head.named_parameters():
        assert weight.grad is not None and (weight.grad != 0).any(dim=-1).all(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlp": 0.5}, r"mlp=0\.5 changes nothing"),
        ({"heads": 4}, "heads=4 changes nothing"),
        ({"latents": 4, "read": 5}, "1 to 4 can be read, not 5"),
        ({"latents": 0}, "latents of at least 1"),
    ],
)
def test_options_without_effect_and_sizes_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        build_head("compression-tokens", 64, 3, HeadOptions(**options))
    with pytest.raises(UnmaskError, match="read=2 changes nothing"):
        build_head("cross-attention", 64, 3, HeadOptions(read=2))


@pytest.mark.parametrize("design", ["bidirectional/plain/compression-tokens", "causal+kv@1-2/plain/compression-tokens"])
def test_attention_that_would_change_the_text_is_refused(design: str) -> None:
    with pytest.raises(UnmaskError, match="need causal attention"):
        Design.parse(design)


def test_an_export_to_onnx_keeps_the_vectors(tokenizer: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from unmask.saving.exports.export import TARGETS, export

    backbone, head = headed("llama")
    embedder = Embedder.from_model(backbone.model, tokenizer, DESIGN, head=head)
    export(embedder, TARGETS["onnx"], tmp_path / "onnx")  # it raises if the vectors differ
