"""Models that are unlike other decoders: read as they are, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS, make_tokenizer
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

SIZES: dict[str, dict[str, Any]] = {
    "ctrl": {"vocab_size": 512, "n_embd": 64, "dff": 96, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "modernbert-decoder": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
    },
    "xglm": {"vocab_size": 512, "d_model": 64, "ffn_dim": 96, "num_layers": 3, "attention_heads": 4},
}  # fmt: skip


def config_of(kind: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **SIZES[kind])


def language_model(kind: str, folder: Path) -> Any:
    """A language model with a tokenizer, in a folder too. Its biases are not 0."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config_of(kind)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_()
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


def test_a_bias_beside_tied_weights_is_read(tmp_path: Path) -> None:
    whole = language_model("ctrl", tmp_path)
    assert whole.get_output_embeddings().bias is not None and whole.config.tie_word_embeddings
    embedder = Embedder.from_pretrained(str(tmp_path), "causal/plain/last/lexical", dtype="float32")
    layer = embedder.backbone.output_layer
    state = torch.randn(64)
    expected = whole.get_output_embeddings()(state)
    torch.testing.assert_close(layer.logits(state, range(512)), expected.detach(), atol=1e-4, rtol=1e-4)
    with pytest.raises(UnmaskError, match="holds no language-model head"):
        embedder.save_pretrained(tmp_path / "saved")


def test_a_head_of_several_layers_is_refused(tmp_path: Path) -> None:
    language_model("modernbert-decoder", tmp_path)
    embedder = Embedder.from_pretrained(str(tmp_path), "causal/plain/last", dtype="float32")
    assert np.isfinite(embedder.encode(TEXTS)).all()
    with pytest.raises(UnmaskError, match="further layers between its states and its logits"):
        Embedder.from_pretrained(str(tmp_path), "causal/plain/last/lexical", dtype="float32").encode_sparse(TEXTS)


def test_a_table_of_positions_stays_in_the_precision_of_the_model(tmp_path: Path) -> None:
    from transformers import AutoModel

    torch.manual_seed(1)
    model = AutoModel.from_config(config_of("xglm")).to(torch.bfloat16)
    embedder = Embedder.from_model(model, make_tokenizer(), "causal/plain/mean")
    embedder.save_pretrained(tmp_path / "saved")
    assert np.array_equal(Embedder.from_pretrained(tmp_path / "saved", dtype="bfloat16").encode(TEXTS), embedder.encode(TEXTS))
