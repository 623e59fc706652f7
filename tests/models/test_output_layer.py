"""Output layer: its logits are those of the whole language model, or there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.families import FAMILIES, Family
from unmask.errors import UnmaskError
from unmask.models.loading import HeadMissing, Source, load_decoder
from unmask.models.output_layer import find_output_layer
from unmask.models.source import as_adapters

MakeFolder = Callable[..., Path]
IDS = torch.tensor([[5, 9, 77, 300, 21]])
TOKENS = [511, 3, 77, 300]
COHERE = Family("cohere", "cohere", {"logit_scale": 0.0625})
UNUSUAL = {
    "scaled down": replace(FAMILIES["granite"], changes={"logits_scaling": 8.0}),
    "scaled": COHERE,
    "tied": replace(FAMILIES["llama"], changes={"tie_word_embeddings": True}),
    "not tied": replace(FAMILIES["gpt2"], changes={"tie_word_embeddings": False}),
    "bounded": replace(FAMILIES["gemma2"], changes={**FAMILIES["gemma2"].changes, "final_logit_softcapping": 3.0}),
    "with a bias": replace(FAMILIES["phimoe"], changes={**FAMILIES["phimoe"].changes, "lm_head_bias": True}),
}


@pytest.fixture
def folder_of(tokenizer: Any, tmp_path: Path) -> MakeFolder:
    def make(family: Family) -> Path:
        model = family.build_language_model()
        head = model.get_output_embeddings()
        if getattr(head, "bias", None) is not None:
            nn.init.normal_(head.bias)
        model.save_pretrained(tmp_path / family.name)
        tokenizer.save_pretrained(tmp_path / family.name)
        return tmp_path / family.name

    return make


def loaded(folder: Path, adapter: str | None = None, **options: Any) -> Any:
    return load_decoder(Source(str(folder), adapters=as_adapters(adapter), **{"dtype": "float32", "device": "cpu", **options}))[
        0
    ].eval()


@torch.inference_mode()  # type: ignore[untyped-decorator]
def expected(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=IDS).logits[0, -1, TOKENS].float()  # type: ignore[no-any-return]


def language_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def computed(body: Any) -> torch.Tensor:
    return find_output_layer(body).logits(body(input_ids=IDS).last_hidden_state[0, -1], TOKENS)


@pytest.mark.parametrize("way", UNUSUAL)
def test_scale_bound_bias_and_ties_are_as_the_model_has_them(folder_of: MakeFolder, way: str) -> None:
    folder = folder_of(UNUSUAL[way])
    body, whole = loaded(folder), language_model(folder)
    assert torch.allclose(computed(body), expected(whole), atol=1e-4)
    layer = find_output_layer(body)
    assert layer.tied == (way in ("tied", "scaled", "bounded"))
    assert layer.scale == pytest.approx({"scaled down": 1 / 8, "scaled": 1 / 16}.get(way, 1.0))
    assert layer.bound == (pytest.approx(3.0) if way == "bounded" else None)
    assert (layer.bias is not None) == (way == "with a bias")


def test_an_adapter_that_changes_the_head_counts_if_it_is_merged(folder_of: MakeFolder, tmp_path: Path) -> None:
    folder = folder_of(FAMILIES["llama"])
    whole = adapter_on(folder, tmp_path / "adapter", ["q_proj", "lm_head"])
    body = loaded(folder, adapter=str(tmp_path / "adapter"), merge=True)
    assert torch.allclose(computed(body), expected(whole), atol=1e-4)
    with pytest.raises(UnmaskError, match="merge=True"):
        find_output_layer(loaded(folder, adapter=str(tmp_path / "adapter")))


def adapter_on(folder: Path, to: Path, modules: list[str]) -> Any:
    """Save an adapter on these modules, and return the model with it."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(language_model(folder), LoraConfig(r=4, target_modules=modules))
    for name, weight in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(weight, std=0.2)
    model.save_pretrained(to)
    return model


def test_a_model_without_its_head_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    FAMILIES["llama"].build().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(HeadMissing, match="without its language-model head"):
        find_output_layer(loaded(tmp_path))
    with pytest.raises(UnmaskError, match="was given without its language-model head"):
        find_output_layer(FAMILIES["llama"].build())


def test_logits_that_are_made_in_another_way_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GemmaForCausalLM

    plain = GemmaForCausalLM.forward

    def forward(self: Any, **inputs: Any) -> Any:
        output = plain(self, **inputs)
        output.logits = output.logits + 1.0
        return output

    monkeypatch.setattr(GemmaForCausalLM, "forward", forward)
    with pytest.raises(UnmaskError, match="in a way that unmask does not know"):
        find_output_layer(FAMILIES["gemma"].build())
