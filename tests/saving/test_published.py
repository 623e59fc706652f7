"""Published embedding models, as their folders lie on the hub, give the vectors of their authors' code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from tests.conftest import make_tokenizer
from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

TEXTS = ["a man plays a guitar.", "one\ntwo", "many words " * 6, "a 🎉 日本"]
INSTRUCTION = "Given a question, find its answer"


def states(model: Any, ids: list[int]) -> torch.Tensor:
    """What every token holds if each one sees all others."""
    tokens = torch.tensor([ids])
    with torch.inference_mode():
        return model(input_ids=tokens, attention_mask=torch.ones(1, 1, len(ids), len(ids)).bool()).last_hidden_state[0]  # type: ignore[no-any-return]


def test_gritlm_pools_the_text_after_its_mark(tmp_path: Path) -> None:
    """GritLM.encode: an instruction is always there, and its tokens, BOS among them, are masked in the mean."""
    model, tokenizer = FAMILIES["mistral"].build_language_model(), make_tokenizer(add_bos=True)
    model.save_pretrained(tmp_path / "gritlm")
    tokenizer.save_pretrained(tmp_path / "gritlm")
    embedder = Embedder.from_pretrained(tmp_path / "gritlm", "gritlm", dtype="float32", device="cpu")
    for instruction in (INSTRUCTION, None):
        prefix = f"<|user|>\n{instruction}\n<|embed|>\n" if instruction else "<|embed|>\n"
        start = len(tokenizer(prefix)["input_ids"])
        expected = [states(model.model, tokenizer(prefix + text)["input_ids"])[start:].mean(dim=0).numpy() for text in TEXTS]
        np.testing.assert_allclose(embedder.encode(TEXTS, instruction=instruction), np.stack(expected), atol=1e-5)


def nv_embed(folder: Path, **changes: Any) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """A folder of the form of nvidia/NV-Embed-v2 with random weights: its decoder, its tokenizer and the weights of its head."""
    decoder, tokenizer = FAMILIES["mistral"].build(), make_tokenizer(add_bos=True)
    sizes = {
        "latents": (6, 64),
        **{f"cross_attend_blocks.0.{name}.{part}": (64,) for name in ("norm", "norm_context") for part in ("weight", "bias")},
        "cross_attend_blocks.0.fn.to_q.weight": (4 * 64, 64),
        "cross_attend_blocks.0.fn.to_kv.weight": (2 * 4 * 64, 64),
        "cross_attend_blocks.0.fn.to_out.weight": (64, 4 * 64),
        **{f"cross_attend_blocks.1.norm.{part}": (64,) for part in ("weight", "bias")},
        "cross_attend_blocks.1.fn.net.0.weight": (2 * 4 * 64, 64),
        "cross_attend_blocks.1.fn.net.0.bias": (2 * 4 * 64,),
        "cross_attend_blocks.1.fn.net.2.weight": (64, 4 * 64),
        "cross_attend_blocks.1.fn.net.2.bias": (64,),
    }
    head = {name: torch.randn(size) * 0.3 for name, size in sizes.items()}
    tokenizer.save_pretrained(folder)
    text_config = {
        **decoder.config.to_dict(),
        "model_type": "bidir_mistral",
        "sliding_window": 4,
        "architectures": ["MistralModel"],
    }
    config = {
        "architectures": ["NVEmbedModel"],
        "auto_map": {"AutoConfig": "configuration_nvembed.NVEmbedConfig", "AutoModel": "modeling_nvembed.NVEmbedModel"},
        "hidden_size": 64,
        "is_mask_instruction": True,
        "latent_attention_config": {"model_type": "latent_attention", "num_cross_heads": 4},
        "mask_type": "b",
        "model_type": "nvembed",
        "padding_side": "right",
        "text_config": text_config,
    }
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    modules = ["Transformer", "Pooling", "Normalize"]
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 100}))
    (folder / "modules.json").write_text(
        json.dumps([{"path": "", "type": f"sentence_transformers.models.{name}"} for name in modules])
    )
    weights = {f"embedding_model.{name}": tensor for name, tensor in decoder.state_dict().items()}
    weights |= {f"latent_attention_model.{name}": tensor for name, tensor in head.items()}
    halves = {"model-1.safetensors": list(weights)[:10], "model-2.safetensors": list(weights)[10:]}
    for file, names in halves.items():
        save_file({name: weights[name].clone() for name in names}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, names in halves.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return decoder, tokenizer, head


def latent_attention(tokens: torch.Tensor, head: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the code of NV-Embed makes of the states of tokens, four heads with 64 dimensions each."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (64,), head[f"{name}.weight"], head[f"{name}.bias"])

    attend, mlp = "cross_attend_blocks.0", "cross_attend_blocks.1"
    query = norm(tokens, f"{attend}.norm") @ head[f"{attend}.fn.to_q.weight"].T
    latents = norm(head["latents"], f"{attend}.norm_context")
    key, value = (latents @ head[f"{attend}.fn.to_kv.weight"].T).chunk(2, dim=-1)
    heads = [slice(64 * k, 64 * (k + 1)) for k in range(4)]
    parts = [(query[:, part] @ key[:, part].T / 8).softmax(dim=-1) @ value[:, part] for part in heads]
    tokens = tokens + torch.cat(parts, dim=-1) @ head[f"{attend}.fn.to_out.weight"].T
    inner = norm(tokens, f"{mlp}.norm") @ head[f"{mlp}.fn.net.0.weight"].T + head[f"{mlp}.fn.net.0.bias"]
    up, gate = inner.chunk(2, dim=-1)
    return tokens + (up * functional.gelu(gate)) @ head[f"{mlp}.fn.net.2.weight"].T + head[f"{mlp}.fn.net.2.bias"]


def test_nv_embed_loads_by_itself_without_its_code(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """NVEmbedModel.encode: EOS after the text; an instruction is masked, BOS with it; without one, BOS is in the mean."""
    decoder, tokenizer, head = nv_embed(tmp_path / "nv-embed")
    embedder = Embedder.from_pretrained(
        tmp_path / "nv-embed", dtype="float32", device="cpu", instructions={"query": INSTRUCTION}
    )
    assert embedder.design.name == "bidirectional/nv-embed/latent-attention" and embedder.max_length == 100
    for encode, prefix in ((embedder.encode_query, f"Instruct: {INSTRUCTION}\nQuery: "), (embedder.encode_document, "")):
        expected = []
        for text in TEXTS:
            ids = [*tokenizer(prefix + text)["input_ids"], tokenizer.eos_token_id]
            start = len(tokenizer.tokenize(prefix))  # without BOS; its last space becomes a part of the text's first token
            expected.append(latent_attention(states(decoder, ids), head)[start:].mean(dim=0).numpy())
        np.testing.assert_allclose(encode(TEXTS), np.stack(expected), atol=2e-5)
    assert not [str(warning.message) for warning in recwarn if "Python code" in str(warning.message)]
    embedder.save_pretrained(tmp_path / "saved")
    again = Embedder.from_pretrained(tmp_path / "saved", device="cpu")
    np.testing.assert_array_equal(again.encode_query(TEXTS), embedder.encode_query(TEXTS))
    assert Embedder.from_pretrained(tmp_path / "nv-embed", "mean", device="cpu").dim == 64  # its decoder read another way


def test_a_variant_of_nv_embed_is_refused(tmp_path: Path) -> None:
    nv_embed(tmp_path / "left", padding_side="left")
    with pytest.raises(UnmaskError, match=r"pools its instruction .*name a design"):
        Embedder.from_pretrained(tmp_path / "left")
    nv_embed(tmp_path / "v3")
    index = tmp_path / "v3" / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(
        json.dumps({"metadata": {}, "weight_map": {name: file for name, file in weight_map.items() if "latent" not in name}})
    )
    with pytest.raises(UnmaskError, match="other weights than that of NV-Embed: 'latents'"):
        Embedder.from_pretrained(tmp_path / "v3")
