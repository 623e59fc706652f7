"""Saved adapters: what comes back is the adapter that acted, over the base that it acted on; anything else is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from tests.conftest import TEXTS, make_tokenizer
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
DESIGN = "causal/eol/last"


def lora(base: Path, folder: Path, seed: int = 0, **options: Any) -> Path:
    """An adapter of a model, on disk, with weights large enough to matter."""
    import peft

    torch.manual_seed(seed)
    adapted = peft.get_peft_model(AutoModel.from_pretrained(base), peft.LoraConfig(target_modules=["q_proj"], **options))
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    adapted.save_pretrained(folder)
    return folder


@pytest.fixture
def two(base: Path, tmp_path: Path) -> tuple[Any, Any]:
    """A PEFT model with the adapters "one" (active) and "other", and its decoder."""
    import peft

    adapted = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(base), lora(base, tmp_path / "one"), "one")
    adapted.load_adapter(lora(base, tmp_path / "other", 1), "other")
    body = adapted.get_base_model()
    body.peft_config = adapted.peft_config
    return adapted, body.eval()


def embedder_of(body: Any, tokenizer: Any = None) -> Embedder:
    return Embedder.from_model(body, tokenizer or make_tokenizer(), DESIGN)


def vectors(embedder: Embedder) -> Any:
    return embedder.encode(TEXTS[:3])


def again(embedder: Embedder, folder: Path) -> Embedder:
    """An embedder that was saved and loaded."""
    embedder.save_pretrained(folder)
    return Embedder.from_pretrained(folder, **HERE)


@pytest.mark.parametrize("name", ["one", "other"])
def test_the_active_adapter_is_saved(name: str, two: tuple[Any, Any], tmp_path: Path) -> None:
    adapted, body = two
    adapted.set_adapter(name)
    embedder = embedder_of(body)
    assert np.array_equal(vectors(embedder), vectors(again(embedder, tmp_path / "saved")))


def several(adapted: Any) -> None:
    adapted.base_model.set_adapter(["one", "other"])


def scaled(adapted: Any) -> None:
    for module in adapted.modules():
        if hasattr(module, "scale_layer"):
            module.scale_layer(0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (several, "Just one adapter can be saved. Active in this model: one, other"),
        (lambda adapted: adapted.base_model.disable_adapter_layers(), "adapters of this model are disabled"),
        (lambda adapted: adapted.merge_adapter(), "are merged into its weights for now"),
        (scaled, "The scale of the adapter 'one' was changed"),
    ],
    ids=["several", "disabled", "merged", "scaled"],
)
def test_adapters_that_would_come_back_with_other_vectors_are_refused(
    change: Callable[[Any], None], message: str, two: tuple[Any, Any], tmp_path: Path
) -> None:
    adapted, body = two
    change(adapted)
    with pytest.raises(UnmaskError, match=message):
        embedder_of(body).save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    "options", [{"use_rslora": True, "alpha_pattern": {"q_proj": 3}, "rank_pattern": {"q_proj": 2}}], ids=str
)
def test_a_scale_that_the_config_says_is_saved(options: dict[str, Any], base: Path, tmp_path: Path) -> None:
    adapted = Embedder.from_pretrained(base, DESIGN, adapter=lora(base, tmp_path / "lora", **options), **HERE)
    assert np.array_equal(vectors(adapted), vectors(again(adapted, tmp_path / "saved")))


def over(body: Any, folder: Path) -> Any:
    """A decoder with an adapter over it."""
    import peft

    adapted = peft.PeftModel.from_pretrained(body, folder)
    body.peft_config = adapted.peft_config
    return body


def test_an_adapter_over_one_that_was_merged_is_refused(base: Path, tmp_path: Path) -> None:
    merged = Embedder.from_pretrained(base, DESIGN, adapter=lora(base, tmp_path / "one"), merge=True, **HERE)
    assert np.array_equal(vectors(merged), vectors(again(merged, tmp_path / "merged")))

    def adapted(embedder: Embedder) -> Embedder:
        return embedder_of(over(embedder.backbone.model, lora(base, tmp_path / "other", 1)), embedder.tokenizer)

    with pytest.raises(
        UnmaskError, match=r"\(.*one'\) was merged into the weights below this one.*Save the merged model first"
    ):
        adapted(merged).save_pretrained(tmp_path / "saved")
    whole = adapted(Embedder.from_pretrained(tmp_path / "merged", **HERE))  # as the error says
    assert np.array_equal(vectors(whole), vectors(again(whole, tmp_path / "saved")))


def test_an_adapter_over_a_base_that_was_changed_in_memory_is_refused(base: Path, tmp_path: Path) -> None:
    """Whoever merges with peft leaves no trace but in the weights."""
    import peft

    embedder = Embedder.from_pretrained(base, DESIGN, device="cpu", dtype="bfloat16")
    body = peft.PeftModel.from_pretrained(embedder.backbone.model, lora(base, tmp_path / "one")).merge_and_unload()
    assert body is embedder.backbone.model
    changed = embedder_of(over(body, lora(base, tmp_path / "other", 1)), embedder.tokenizer)
    with pytest.raises(UnmaskError, match=r"'layers.0.self_attn.q_proj.weight' of the base model .* was changed in memory"):
        changed.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_an_adapter_that_trained_biases_is_saved(pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    base = pico_folder("qwen2")
    folder = lora(base, tmp_path / "lora", bias="all")
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({name: weight + name.endswith("bias") for name, weight in tensors.items()}, folder / "adapter_model.safetensors")
    embedder = Embedder.from_pretrained(base, DESIGN, adapter=folder, **HERE)
    assert not np.allclose(vectors(embedder), vectors(Embedder.from_pretrained(base, DESIGN, **HERE)), atol=0.01)
    assert np.array_equal(vectors(embedder), vectors(again(embedder, tmp_path / "saved")))


# ---- the tokenizer ------------------------------------------------------------------------------------------------------------


def test_an_adapter_comes_back_with_its_own_tokenizer(two: tuple[Any, Any], base: Path, tmp_path: Path) -> None:
    embedder = embedder_of(two[1], make_tokenizer(add_bos=True))
    loaded = again(embedder, tmp_path / "saved")
    beside = Embedder.from_pretrained(base, adapter=tmp_path / "saved", **HERE)
    for other in (loaded, beside):
        assert np.array_equal(vectors(embedder), vectors(other))
    assert next(loaded.prompt.tokenize(["a"])).ids[0] == 1
    assert not np.array_equal(vectors(embedder), vectors(embedder_of(two[1])))  # the tokenizer makes a difference
