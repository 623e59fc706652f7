"""Loading: what comes out of a folder is the decoder that was asked for, or the error says why there is none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.families import FAMILIES
from unmask.errors import UnmaskError
from unmask.models.loading import Source, dtype_name, load_decoder, pick_dtype
from unmask.models.source import as_adapters

CPU = torch.device("cpu")
MakeFolder = Callable[..., Path]
MakeAdapter = Callable[[Path, str], Path]
adapted_families = pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "olmoe", "llama4"])
# an embedding model is trained without the head, so its adapter names the modules differently
ways_of_training = pytest.mark.parametrize("trained_on", ["AutoModelForCausalLM", "AutoModel"])


@pytest.fixture(scope="module")
def causal_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """A checkpoint with a language-model head, as language models are published. Each is made once: change a copy (`own_copy`)."""

    @cache
    def make(name: str = "llama", **changes: Any) -> Path:
        from transformers import AutoModelForCausalLM

        family, folder = FAMILIES[name], tmp_path_factory.mktemp(name)
        decoder = replace(family, changes={**family.changes, **changes}).build()
        model = AutoModelForCausalLM.from_config(decoder.config)
        next(model.children()).load_state_dict(decoder.state_dict())
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> MakeAdapter:
    """A LoRA adapter of random weights for the checkpoint in a folder. Each is made once, and no test changes it."""

    @cache
    def make(base: Path, trained_on: str = "AutoModelForCausalLM") -> Path:
        import peft
        import transformers

        torch.manual_seed(3)
        folder = tmp_path_factory.mktemp("adapter")
        config = peft.LoraConfig(r=4, target_modules=r".*(attn\.\w+_proj|c_attn|c_proj|down_proj)", init_lora_weights=False)
        peft.get_peft_model(getattr(transformers, trained_on).from_pretrained(base), config).save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def own_copy(causal_folder: MakeFolder, tmp_path: Path) -> Path:
    """A checkpoint that a test may damage."""
    return Path(shutil.copytree(causal_folder(), tmp_path / "own copy"))


def decoder_of(model: Path, adapter: str | None = None, **options: Any) -> Any:
    return load_decoder(Source(str(model), adapters=as_adapters(adapter), **{"dtype": "float32", "device": "cpu", **options}))[
        0
    ]


def states(model: Any) -> Tensor:
    tokens = torch.arange(3, 27).reshape(2, 12)
    with torch.inference_mode():
        return model.eval()(input_ids=tokens, use_cache=False).last_hidden_state  # type: ignore[no-any-return]


def edited(folder: Path, to: Path, file: str, **changes: Any) -> Path:
    """A copy of a folder with changes in one of its JSON files."""
    shutil.copytree(folder, to)
    (to / file).write_text(json.dumps({**json.loads((to / file).read_text()), **changes}))
    return to


# ---- checkpoints --------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_language_model_loads_without_its_head(name: str, causal_folder: MakeFolder) -> None:
    decoder = decoder_of(causal_folder(name))
    assert torch.equal(states(decoder), states(FAMILIES[name].build()))
    assert all(weight.data_ptr() % 64 == 0 for weight in decoder.parameters())  # else bits may differ between two files
    assert decoder.get_output_embeddings() is None
    assert not any(isinstance(module, nn.Linear) and module.out_features == 512 for module in decoder.modules())


def test_weights_that_are_missing_are_refused_not_invented(own_copy: Path) -> None:
    weights = load_file(own_copy / "model.safetensors")
    gone = {name for name in weights if "layers.1.self_attn" in name}
    save_file(
        {name: weight for name, weight in weights.items() if name not in gone}, own_copy / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(UnmaskError, match=r"has no weights for layers\.1\.self_attn\.k_proj\.weight \(4 are missing in all\)"):
        decoder_of(own_copy)


def test_weights_of_another_shape_are_refused(causal_folder: MakeFolder, own_copy: Path) -> None:
    shutil.copy(causal_folder(hidden_size=32) / "model.safetensors", own_copy)
    with pytest.raises(UnmaskError, match="could not be loaded: "):
        decoder_of(own_copy)


@pytest.mark.parametrize("name", ["adapter_model.bin", "../model.safetensors"])
def test_a_config_that_names_other_weights_than_safetensors_beside_it_is_refused(
    name: str, own_copy: Path, tmp_path: Path
) -> None:
    folder = edited(own_copy, tmp_path / "model", "config.json", transformers_weights=name)
    index = {"metadata": {}, "weight_map": {"a": "adapter_model.bin"}}
    (folder / "own.safetensors.index.json").write_text(json.dumps(index))
    torch.save(load_file(own_copy / "model.safetensors"), folder / "adapter_model.bin")
    with pytest.raises(UnmaskError, match=r"as a weight file\. Only \*\.safetensors files next to its config"):
        decoder_of(folder)


def test_a_folder_without_a_config_is_no_model(pico_folder: MakeFolder, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=r"is not a model: config\.json is missing"):
        decoder_of(tmp_path)
    shutil.copytree(pico_folder("llama"), tmp_path / "model", ignore=shutil.ignore_patterns("config.json"))
    with pytest.raises(UnmaskError, match=r"is not a model: config\.json is missing"):
        decoder_of(tmp_path / "model")


# ---- names --------------------------------------------------------------------------------------------------------------------


# ---- tokenizers ---------------------------------------------------------------------------------------------------------------


# ---- precision and device -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bf16_where_the_device_computes_it(
    native: bool, pico_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.models.loading.is_native", lambda dtype, device: native)
    assert dtype_name(decoder_of(pico_folder("llama"), dtype="auto")) == ("bfloat16" if native else "float32")


@pytest.mark.parametrize("dtype", ["bf16"])
def test_an_unknown_precision_is_refused(dtype: str) -> None:
    with pytest.raises(UnmaskError, match=f"'{dtype}' is not a dtype: auto, float32, bfloat16, float16"):
        pick_dtype(dtype, CPU)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_this_machine_lacks_is_refused(device: str, pico_folder: MakeFolder) -> None:
    with pytest.raises(UnmaskError, match=f"'{device}' is not a device of this machine"):
        decoder_of(pico_folder("llama"), device=device)


# ---- code that comes with a model ---------------------------------------------------------------------------------------------


# ---- adapters -----------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@ways_of_training
@adapted_families
def test_an_adapter_gives_the_states_of_the_model_that_it_was_trained_on(
    name: str, trained_on: str, causal_folder: MakeFolder, adapter: MakeAdapter
) -> None:
    import peft
    import transformers

    base = causal_folder(name)
    lora = adapter(base, trained_on)
    model = getattr(transformers, trained_on).from_pretrained(base)
    peft.PeftModel.from_pretrained(model, lora)  # changes the model in place
    expected = states(model if trained_on == "AutoModel" else next(model.children()))
    assert torch.equal(states(decoder_of(base, adapter=str(lora))), expected)
    assert (expected - states(decoder_of(base))).abs().max() > 0.1


@pytest.mark.sample(2)
@ways_of_training
@adapted_families
def test_merging_an_adapter_changes_nothing_but_rounding(
    name: str, trained_on: str, causal_folder: MakeFolder, adapter: MakeAdapter
) -> None:
    base = causal_folder(name)
    lora = str(adapter(base, trained_on))
    apart, merged = decoder_of(base, adapter=lora), decoder_of(base, adapter=lora, merge=True)
    torch.testing.assert_close(states(merged), states(apart), rtol=1e-5, atol=1e-5)
    assert any("lora_" in name for name, _ in apart.named_parameters())
    assert not any("lora_" in name for name, _ in merged.named_parameters())


class Code:
    """It makes a folder when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = str(proof)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.proof,)


def test_the_weights_of_an_adapter_may_be_pickled_and_run_no_code(
    causal_folder: MakeFolder, adapter: MakeAdapter, tmp_path: Path
) -> None:
    base = causal_folder()
    lora, proof = Path(shutil.copytree(adapter(base, "AutoModelForCausalLM"), tmp_path / "lora")), tmp_path / "it-ran"
    weights = load_file(lora / "adapter_model.safetensors")
    expected = states(decoder_of(base, adapter=str(lora)))
    (lora / "adapter_model.safetensors").unlink()
    torch.save(weights, lora / "adapter_model.bin")
    assert torch.equal(states(decoder_of(base, adapter=str(lora))), expected)
    torch.save({**weights, "more": Code(proof)}, lora / "adapter_model.bin")
    with pytest.raises(UnmaskError, match=r"its \.bin file is damaged, or holds more than weights"):
        decoder_of(base, adapter=str(lora))
    assert not proof.exists()


def test_an_adapter_for_another_model_is_refused(causal_folder: MakeFolder, adapter: MakeAdapter) -> None:
    lora = adapter(causal_folder(), "AutoModelForCausalLM")
    with pytest.raises(UnmaskError, match="belongs to another model"):
        decoder_of(causal_folder(num_hidden_layers=2), adapter=str(lora))


def test_an_adapter_whose_vectors_would_be_random_is_refused(
    causal_folder: MakeFolder, adapter: MakeAdapter, tmp_path: Path
) -> None:
    lora = adapter(causal_folder(), "AutoModelForCausalLM")
    changed = edited(lora, tmp_path / "lora", "adapter_config.json", init_lora_weights="pissa_niter_16")
    with pytest.raises(UnmaskError, match="a random SVD at each load"):
        decoder_of(causal_folder(), adapter=str(changed))
