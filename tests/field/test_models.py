"""Models and adapters as people have them: stacked adapters, damaged or partial folders, tokenizers that outgrew their model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.saving.folder import read_settings

TEXTS = ["A man plays a guitar.", "x"]
HERE: dict[str, Any] = {"design": "bidirectional/plain/mean", "dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of three layers. Tests change copies."""
    folder = tmp_path_factory.mktemp("field") / "base"
    FAMILIES["llama"].build_language_model().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def edit(model: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the model whose config has other values."""

    def make(**values: Any) -> Path:
        folder = Path(shutil.copytree(model, tmp_path / "copy"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))
        return folder

    return make


def vectors(folder: Path | str, **options: Any) -> Any:
    return Embedder.from_pretrained(folder, **{**HERE, **options}).encode(TEXTS)


def adapter(folder: Path, config: Any, on: Path, seed: int = 0) -> Path:
    """An adapter with random weights. Its config names the base."""
    import peft
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(on), config)
    for weight in adapted.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.save_pretrained(folder)
    return folder


def name_base(folder: Path, base: Path | str) -> Path:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(base)}))
    return folder


# ---- adapters ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """Two adapters, the second trained with the first merged into the base, and the vectors of both together."""
    import peft
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("stack")
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    first = adapter(folder / "X-mntp", lora, model, seed=1)
    whole = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), first).merge_and_unload()
    merged = Path(shutil.copytree(model, folder / "merged"))
    whole.save_pretrained(merged)
    second = adapter(folder / "second", lora, merged, seed=2)
    return first, name_base(second, model), vectors(merged, adapter=str(second))


def test_adapters_are_merged_in_the_order_in_which_they_are_given(stack: tuple[Path, Path, Any], model: Path) -> None:
    first, second, expected = stack
    for named in ({"folder": model, "adapter": [first, str(second)]}, {"folder": first, "adapter": second}):
        np.testing.assert_allclose(vectors(**named), expected, atol=1e-5)
    assert abs(vectors(second) - expected).max() > 0.1, "the second adapter alone is another model"


def test_an_adapter_whose_base_is_an_adapter_brings_it_along(
    stack: tuple[Path, Path, Any], model: Path, tmp_path: Path
) -> None:
    first, second, expected = stack
    second = name_base(Path(shutil.copytree(second, tmp_path / "second")), first)
    loaded = Embedder.from_pretrained(second, **HERE)
    np.testing.assert_allclose(loaded.encode(TEXTS), expected, atol=1e-5)
    loaded.save_pretrained(tmp_path / "saved")
    settings = read_settings(str(tmp_path / "saved"))
    assert settings is not None and (settings.source, settings.adapters) == (str(model), (str(first), str(second)))
    assert np.array_equal(vectors(tmp_path / "saved"), loaded.encode(TEXTS))
    with pytest.raises(UnmaskError, match="cannot lie over itself"):
        vectors(name_base(second, second))


def test_an_adapter_of_llm2vec_without_the_one_below_it_is_told(
    stack: tuple[Path, Path, Any], model: Path, tmp_path: Path
) -> None:
    lower = shutil.copytree(stack[0], tmp_path / "X-mntp")
    upper = shutil.copytree(stack[1], tmp_path / "X-mntp-supervised")
    with pytest.raises(UnmaskError, match=f"Give both, in this order: --model {model} --adapter {lower} --adapter {upper}"):
        vectors(upper)
    with pytest.warns(UserWarning, match="Without the MNTP adapter its vectors are wrong"):  # the user may know better
        vectors(model, adapter=upper)


def test_every_kind_of_adapter_that_changes_layers_is_read_merged_and_saved(
    model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    query = {"target_modules": ["q_proj"]}
    kinds = {
        "vera": peft.VeraConfig(r=4, **query),
        "norms": peft.LNTuningConfig(target_modules=["input_layernorm"]),
        "tokens": peft.TrainableTokensConfig(token_indices=list(range(300)), target_modules=["embed_tokens"]),
    }
    plain = vectors(model)
    for kind, config in kinds.items():
        folder = adapter(tmp_path / kind, config, model)
        whole = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), folder)
        expected = Embedder.from_model(whole.base_model.model.model, tokenizer, HERE["design"])
        apart = Embedder.from_pretrained(model, adapter=folder, **HERE)
        found = apart.encode(TEXTS)
        assert np.array_equal(found, expected.encode(TEXTS)) and abs(found - plain).max() > 0.01, kind
        merged = Embedder.from_pretrained(folder, merge=True, **HERE)
        np.testing.assert_allclose(merged.encode(TEXTS), found, atol=1e-5, err_msg=kind)
        if kind == "vera":  # what their layers share is not of the decoder
            with pytest.raises(UnmaskError, match="Load it merged"):
                apart.save_pretrained(tmp_path / f"{kind} saved")
        else:
            apart.save_pretrained(tmp_path / f"{kind} saved")
            assert np.array_equal(vectors(tmp_path / f"{kind} saved"), found), kind


def test_an_adapter_that_cannot_be_used_is_refused_for_its_true_reason(model: Path, tmp_path: Path) -> None:
    import peft

    prompt = adapter(tmp_path / "prompt", peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), model)
    with pytest.raises(UnmaskError, match="PROMPT_TUNING, which adds trained vectors to the input"):
        vectors(prompt)
    biased = adapter(tmp_path / "biased", peft.LoraConfig(r=4, target_modules=["q_proj"], lora_bias=True), model)
    vectors(biased)
    with pytest.raises(UnmaskError, match=r"PEFT cannot merge the adapter .*the base layer has no bias\. Load it alone"):
        vectors(biased, merge=True)
    grown = Path(shutil.copytree(model, tmp_path / "grown"))
    bigger = FAMILIES["llama"].build_language_model()
    bigger.resize_token_embeddings(520)
    bigger.save_pretrained(grown)
    lora = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    resized = name_base(adapter(tmp_path / "resized", lora, grown), model)
    with pytest.raises(UnmaskError, match=r"could not be loaded \(LORA\): .*520"):
        vectors(resized)
    vectors(grown, adapter=resized)  # the way out


# ---- weights and configs -------------------------------------------------------------------------------------------------------------


def test_weights_that_a_config_has_no_place_for_are_refused(edit: Callable[..., Path]) -> None:
    folder = edit()
    weights = load_file(folder / "model.safetensors")

    def changed(**more: Any) -> Path:
        named = {**weights, **{key.replace("__", "."): value for key, value in more.items()}}
        save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    expected = vectors(folder)
    # heads of rewards and values, and what old files keep beside the weights
    harmless = {"score__weight": torch.ones(2, 64), "model__layers__0__self_attn__rotary_emb__cos_cached": torch.ones(1, 8)}
    assert np.array_equal(vectors(changed(v_head__weight=torch.ones(1, 64), **harmless)), expected)
    for extra in ("model__layers__0__self_attn__q_proj__bias", "model__layers__1__self_attn__q_norm__weight"):
        with pytest.raises(UnmaskError, match=extra.replace("__", r"\.")):
            vectors(changed(**{extra: torch.ones(64)}))
    changed()
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 2')
    )
    with pytest.raises(UnmaskError, match=r"config\.json \(2 layers\) has no place for, such as model\.layers\.2\..*9 in all"):
        vectors(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 500}, r"embed_tokens\.weight has shape \(512, 64\) in .* and \(500, 64\) by "),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_config_that_does_not_fit_is_told_with_its_cause(
    values: dict[str, Any], message: str, edit: Callable[..., Path]
) -> None:
    with pytest.raises(UnmaskError, match=message):
        vectors(edit(**values))


def test_what_is_missing_from_a_folder_is_told_with_the_way_out(edit: Callable[..., Path], tmp_path: Path) -> None:
    folder = edit()
    expected, whole = vectors(folder), {file: file.read_bytes() for file in folder.iterdir()}

    def refused(message: str) -> None:
        with pytest.raises(UnmaskError, match=message):
            vectors(folder)
        for file, content in whole.items():
            file.write_bytes(content)

    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_text(pointer)
        refused(f"{name} is a pointer of Git LFS.*git lfs pull")
    changed = json.loads((folder / "tokenizer.json").read_text()) | {"pre_tokenizer": {"type": "Fancy"}}
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    refused("The tokenizer or the config of .* could not be loaded: Exception: data did not match any variant")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refused(r"no \*\.safetensors file.*If you trust the files, convert them: python -c .*save_pretrained\('CONVERTED'\)")
    assert np.array_equal(vectors(folder), expected)


@pytest.mark.parametrize("address", ["https://hub.example/org/model", "hub.example.co/org/model/tree/main"])
def test_the_address_of_a_model_on_the_hub_names_its_id(address: str) -> None:
    with pytest.raises(UnmaskError, match=r"is a web address\. Give the id of the model on the hub instead: 'org/model'"):
        vectors(address)


# ---- code of the model's own ---------------------------------------------------------------------------------------------------------


# ---- tokens without an embedding -----------------------------------------------------------------------------------------------------


def grown(folder: Path, special: bool) -> Path:
    """The tokenizer gets two tokens more than the model has embeddings."""
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(name, special=special) for name in ("<one>", "<two>")], special_tokens=special)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_tokenizer_that_outgrew_its_model_is_refused(edit: Callable[..., Path]) -> None:
    with pytest.raises(
        UnmaskError, match="has 514 tokens, and the model has embeddings of 512: a text with '<one>' could not be read"
    ):
        vectors(grown(edit(), special=False))


def test_a_special_token_without_an_embedding_spoils_its_text_only(edit: Callable[..., Path], tmp_path: Path) -> None:
    from unmask.bulk.job import EmbedJob
    from unmask.bulk.row_encoder import RowEncoder
    from unmask.bulk.text_rows import TextRow

    embedder = Embedder.from_pretrained(grown(edit(), special=True), **HERE)
    texts = ["a", "b <two>"]
    with pytest.raises(UnmaskError, match=r"Text 1 holds the special token '<two>', which this model has no embedding of"):
        embedder.encode(texts)
    with pytest.raises(UnmaskError, match="'<one>'"):
        embedder.encode_chunks(["word " * 40 + "<one>"], 16)
    done = RowEncoder(embedder, EmbedJob((tmp_path / "a.txt",), tmp_path / "a.npy")).encode(
        [TextRow(row, row + 1, str(row), text) for row, text in enumerate(texts)]
    )
    assert done.counts.vectors == 1 and [dead.row for dead in done.dead] == [1] and "'<two>'" in done.dead[0].reason
