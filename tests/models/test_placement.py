"""Placement: weights on several devices or in few bits give the vectors of the same weights on one device, and survive saving."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.families import EACH_KIND, FAMILIES
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.identity import identity_of
from unmask.models.placement import QUANTIZATIONS, as_device_map, weight_bytes
from unmask.models.source import Source

TEXTS = ("A man plays a guitar.", "the cat", "", "Stocks fell sharply on Monday after the announcement of new tariffs.")
MakeFolder = Callable[[str], Path]
each_quantization = pytest.mark.parametrize("quantize", QUANTIZATIONS)


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """The decoder of a family as a checkpoint."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        FAMILIES[name].build().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def adapters(folder: MakeFolder, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two LoRA adapters of llama with random weights."""
    import peft
    from transformers import AutoModel

    paths = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
        paths.append(tmp_path_factory.mktemp(f"adapter{seed}"))
        peft.get_peft_model(AutoModel.from_pretrained(folder("llama")), config).save_pretrained(str(paths[-1]))
    return paths


def vectors(model: Path, design: str = "bidirectional/eol/mean", **options: Any) -> Any:
    return Embedder.from_pretrained(model, design, **options).encode(TEXTS)


@pytest.mark.parametrize("name", EACH_KIND)
def test_a_model_offloaded_to_disk_gives_the_same_vectors(name: str, folder: MakeFolder) -> None:
    plain = Embedder.from_pretrained(folder(name), "causal/eol/mean@1")
    modules = {path: "cpu" for path, _ in plain.backbone.model.named_children()}
    layers = next(path for path, module in plain.backbone.model.named_modules() if module is plain.backbone.layers)
    root, _, rest = layers.partition(".")
    if rest:  # the list of layers lies deeper
        del modules[root]
        modules |= {f"{root}.{path}": "cpu" for path, _ in getattr(plain.backbone.model, root).named_children()}
    device_map = {**modules, layers: "disk"}
    if "disk" not in device_map.values():
        pytest.fail(f"no layer of {name} is on disk")
    spread = Embedder.from_pretrained(folder(name), "causal/eol/mean@1", device_map=device_map)
    assert any(weight.device.type == "meta" for weight in spread.backbone.layers.parameters())
    np.testing.assert_allclose(spread.encode(TEXTS), plain.encode(TEXTS), atol=1e-5)
    assert spread.encoder.provenance["identity"] == plain.encoder.provenance["identity"]


def test_a_table_and_a_strategy_name_devices(folder: MakeFolder, tmp_path: Path) -> None:
    np.testing.assert_array_equal(vectors(folder("llama"), device_map="auto"), vectors(folder("llama")))
    (tmp_path / "map.json").write_text(json.dumps({"": "cpu"}))
    assert as_device_map(str(tmp_path / "map.json")) == as_device_map({"": "cpu"}) == '{"": "cpu"}'
    for wrong in ("automatic", "[1]", {"": "cpu", "norm": 0}, {"layers": 1.5}):
        with pytest.raises(UnmaskError, match="device"):
            as_device_map(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnmaskError, match="--device cpu would be ignored, since --device-map places the model"):
        vectors(folder("llama"), device="cpu", device_map="auto")


@each_quantization
@pytest.mark.parametrize("name", ["llama", "olmoe", "gemma3"])
def test_quantised_weights_take_less_and_keep_the_promises(
    quantize: str, name: str, folder: MakeFolder, tmp_path: Path
) -> None:
    plain = Embedder.from_pretrained(folder(name), "causal/eol/last")
    quantised = Embedder.from_pretrained(folder(name), "causal/eol/last", quantize=quantize)
    assert weight_bytes(quantised.backbone.model) < weight_bytes(plain.backbone.model)
    expected = quantised.encode(TEXTS)
    assert not np.allclose(expected, plain.encode(TEXTS), atol=1e-4)
    assert (expected * plain.encode(TEXTS)).sum() / np.linalg.norm(expected) / np.linalg.norm(plain.encode(TEXTS)) > 0.8
    np.testing.assert_allclose(np.concatenate([quantised.encode([text]) for text in TEXTS]), expected, atol=1e-5)
    quantised.save_pretrained(tmp_path / "saved")
    saved = Embedder.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(saved.encode(TEXTS), expected)
    with pytest.raises(UnmaskError, match="quantised already"):
        Embedder.from_pretrained(tmp_path / "saved", quantize=quantize)


@each_quantization
def test_an_adapter_over_quantised_weights_is_saved_with_them(
    quantize: str, folder: MakeFolder, adapters: list[Path], tmp_path: Path
) -> None:
    embedder = Embedder.from_pretrained(folder("llama"), "causal/eol/last", adapter=adapters[0], quantize=quantize)
    embedder.save_pretrained(tmp_path / "saved")
    saved = Embedder.from_pretrained(tmp_path / "saved")
    assert saved.source.quantize == quantize
    np.testing.assert_array_equal(saved.encode(TEXTS), embedder.encode(TEXTS))
    assert not np.allclose(embedder.encode(TEXTS), vectors(folder("llama"), "causal/eol/last", quantize=quantize), atol=1e-4)


@each_quantization
def test_adapters_are_merged_before_the_weights_are_quantised(
    quantize: str, folder: MakeFolder, adapters: list[Path], tmp_path: Path
) -> None:
    Embedder.from_pretrained(folder("llama"), "causal/eol/last", adapter=adapters).save_pretrained(tmp_path / "merged")
    embedder = Embedder.from_pretrained(folder("llama"), "causal/eol/last", adapter=adapters, quantize=quantize)
    np.testing.assert_array_equal(embedder.encode(TEXTS), vectors(tmp_path / "merged", "causal/eol/last", quantize=quantize))


def test_quantised_weights_have_an_identity_of_their_own(folder: MakeFolder) -> None:
    names = {identity_of(Source(str(folder("llama")), quantize=quantize)).revision for quantize in (None, *QUANTIZATIONS)}
    assert len(names) == 1 + len(QUANTIZATIONS)


def test_a_quantisation_that_does_not_exist_or_is_not_installed(folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnmaskError, match="4bit, 8bit"):
        vectors(folder("llama"), quantize="2bit")
    with pytest.raises(UnmaskError, match="--quantize 8bit or 4bit"):
        vectors(folder("llama"), dtype="int4")
    monkeypatch.setattr("unmask.models.placement.find_spec", lambda _: None)
    with pytest.raises(UnmaskError, match="pip install bitsandbytes"):
        vectors(folder("llama"), quantize="4bit")


# ---- checkpoints that are quantised already -----------------------------------------------------------------------------------


def quantised_by(config: Any, full: Path, folder: Path) -> Any:
    """Write a language model as transformers quantises it. Returns its decoder."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(full, quantization_config=config, dtype=torch.float32, device_map={"": "cpu"})
    model.save_pretrained(folder)
    return model.model


def bitsandbytes_4bit(full: Path, folder: Path) -> Any:
    from transformers import BitsAndBytesConfig

    return quantised_by(BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"), full, folder)


def torchao(full: Path, folder: Path) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return quantised_by(TorchAoConfig(Int8WeightOnlyConfig()), full, folder)


def compressed_tensors(full: Path, folder: Path) -> Any:
    """int8 with a scale for each output channel, packed as llm-compressor does."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32  # type: ignore[import-not-found]

    def packed(name: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        rounded = (weight / scale).round().to(torch.int8)
        parts = {"packed": pack_to_int32(rounded, 8), "scale": scale, "shape": torch.tensor(weight.shape)}
        return {f"{name}_{part}": tensor for part, tensor in parts.items()}, rounded * scale

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights, "format": "pack-quantized"}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed"}
    return packed_by(
        packed, {**config, "ignore": ["lm_head"], "config_groups": {"group_0": group}}, full, folder, "proj.weight"
    )


def mxfp4(full: Path, folder: Path) -> Any:
    """As gpt-oss is published: its experts in blocks of 32 numbers of 4 bits that share an exponent, outputs before inputs."""
    values = torch.tensor([sign * value for sign in (1, -1) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])

    def packed(name: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        experts, inputs, outputs = weight.shape
        codes = torch.randint(0, 16, (experts, outputs, inputs // 32, 32))
        scales = torch.randint(122, 126, (experts, outputs, inputs // 32))
        blocks = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        dequantised = (values[codes] * 2.0 ** (scales[..., None] - 127)).reshape(experts, outputs, inputs).transpose(1, 2)
        return {f"{name}_blocks": blocks, f"{name}_scales": scales.to(torch.uint8)}, dequantised

    return packed_by(
        packed,
        {"quant_method": "mxfp4", "modules_to_not_convert": []},
        full,
        folder,
        "experts.gate_up_proj",
        "experts.down_proj",
    )


def packed_by(packed: Any, config: Any, full: Path, folder: Path, *endings: str) -> Any:
    """Write a language model with some of its weights packed. Returns the decoder with the weights that they stand for."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModel

    dequantised = folder.with_name("dequantised")
    for copy in (folder, dequantised):
        shutil.copytree(full, copy)
    files: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] = ({}, {})
    for name, weight in load_file(full / "model.safetensors").items():
        parts, values = packed(name, weight) if name.endswith(endings) else ({name: weight}, weight)
        files[0].update(parts)
        files[1][name] = values.contiguous()
    for copy, tensors in zip((folder, dequantised), files, strict=True):
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "quantization_config": config}))
    return AutoModel.from_pretrained(dequantised, dtype=torch.float32)


@pytest.mark.parametrize(
    ("quantise", "family"),
    [(bitsandbytes_4bit, "llama"), (torchao, "llama"), (compressed_tensors, "llama"), (mxfp4, "gpt-oss")],
)
def test_a_checkpoint_that_is_quantised_already_is_read_as_it_is(
    quantise: Callable[[Path, Path], Any], family: str, tokenizer: Any, language_model_folder: MakeFolder, tmp_path: Path
) -> None:
    decoder = quantise(language_model_folder(family), tmp_path / "quantised")
    tokenizer.save_pretrained(tmp_path / "quantised")
    embedder = Embedder.from_pretrained(tmp_path / "quantised", "causal/plain/last", dtype="float32", device="cpu")
    with torch.inference_mode():
        expected = decoder(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state[0, -1]
    np.testing.assert_allclose(embedder.encode(TEXTS[:1])[0], expected, atol=1e-5)
    assert not np.allclose(expected, vectors(language_model_folder(family), "causal/plain/last", dtype="float32")[0], atol=1e-3)
    embedder.save_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(Embedder.from_pretrained(tmp_path / "saved").encode(TEXTS), embedder.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("method", "message"),
    [("gptq", "optimum"), ("awq", "pip install gptqmodel"), ("modelopt", r"transformers cannot read \(modelopt\)")],
)
def test_a_method_without_its_library_is_named(method: str, message: str, folder: MakeFolder, tmp_path: Path) -> None:
    shutil.copytree(folder("llama"), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 32}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnmaskError, match=message):
        vectors(tmp_path / "model")
