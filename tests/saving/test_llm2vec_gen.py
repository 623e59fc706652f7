"""A folder of the form that the package llm2vec-gen publishes loads by itself, and gives the vectors of its formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.conftest import TEXTS
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.bundled import write_pico

TOKENS = [f"<question{number}>" for number in range(1, 6)]
READ, DIM = 3, 7


def publish(tmp_path: Path) -> tuple[Path, NDArray[np.float32]]:
    """A tiny published folder, and its vectors of TEXTS, computed one text at a time from its parts."""
    from peft import TrainableTokensConfig, get_peft_model
    from transformers import AutoModel, AutoTokenizer

    write_pico(tmp_path)
    base, folder = tmp_path / "converted", tmp_path / "published"
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS})
    decoder = AutoModel.from_pretrained(base, dtype=torch.float32)
    decoder.resize_token_embeddings(len(tokenizer))
    torch.manual_seed(0)
    with torch.no_grad():
        decoder.get_input_embeddings().weight[-len(TOKENS) :].normal_()
    model = get_peft_model(decoder, TrainableTokensConfig(token_indices=tokenizer.convert_tokens_to_ids(TOKENS))).eval()
    model.save_pretrained(folder / "encoder")
    tokenizer.save_pretrained(folder)
    hidden = decoder.config.hidden_size
    layers: dict[str, Any] = {"reconstruction": torch.nn.Linear(hidden, hidden), "alignment": torch.nn.Linear(hidden, DIM)}
    for name, layer in layers.items():
        state = {f"projection.{part}": value for part, value in layer.state_dict().items()}
        config = {
            "input_dim": hidden,
            "output_dim": len(layer.bias),
            "dtype": "torch.float32",
            "size": 1,
            "pooling_mode": "linear",
        }
        torch.save({"state_dict": state, "config": config}, folder / f"{name}_mlp")
    (folder / "encoder_decoder_config.json").write_text(json.dumps({"encoding_mode": f"last_{READ}_tokens"}))
    vectors = []
    for text in TEXTS:
        ids = tokenizer(text + "".join(TOKENS), return_tensors="pt")["input_ids"]
        states = model(input_ids=ids).last_hidden_state[0, -READ:]
        vectors.append(layers["alignment"](layers["reconstruction"](states)).mean(dim=0).detach())
    return folder, torch.stack(vectors).numpy()


def test_a_published_folder_loads_with_its_vectors_and_can_be_saved(tmp_path: Path) -> None:
    folder, expected = publish(tmp_path)
    embedder = Embedder.from_pretrained(folder, dtype="float32", device="cpu")
    assert np.allclose(embedder.encode(TEXTS), expected, atol=1e-5)
    embedder.save_pretrained(tmp_path / "saved")
    again = Embedder.from_pretrained(tmp_path / "saved", dtype="float32", device="cpu")
    assert np.array_equal(again.encode(TEXTS), embedder.encode(TEXTS))
    assert Embedder.from_pretrained(folder, "causal/plain/mean", device="cpu").dim == 32, "the base under another design"


def test_a_folder_of_another_form_is_refused(tmp_path: Path) -> None:
    folder, _ = publish(tmp_path)
    (folder / "encoder_decoder_config.json").write_text(json.dumps({"encoding_mode": "all_tokens"}))
    with pytest.raises(UnmaskError, match="reads its tokens by 'all_tokens'"):
        Embedder.from_pretrained(folder, device="cpu")
    torch.save({"state_dict": {"projection.0.weight": torch.ones(1)}, "config": {}}, folder / "alignment_mlp")
    with pytest.raises(UnmaskError, match=r"alignment_mlp' holds no linear layer"):
        Embedder.from_pretrained(folder, device="cpu")
