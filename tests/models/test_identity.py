"""Identity: any change of a weight, below an adapter too, is another model; what leaves the vectors alone is not."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.moe.mixture.models import language_model, saved_experts
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models import digests, identity
from unmask.models.digests import digest_of_file, digest_of_folder
from unmask.models.identity import identity_of, identity_of_loaded, note_source
from unmask.models.loading import load_base_language_model
from unmask.models.source import Source
from unmask.moe.mixture.model import Mixture


@pytest.fixture
def model(tmp_path: Path, pico_folder: Callable[[str], Path]) -> Path:
    """A pico model of our own to change."""
    return Path(shutil.copytree(pico_folder("llama"), tmp_path / "model"))


@pytest.fixture
def base(tokenizer: Any, tmp_path: Path) -> Path:
    """A pico language model with its head."""
    language_model(vocab_size=512).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """An adapter that names its base, as peft saves it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def retrain(folder: Path, file: str = "model.safetensors") -> None:
    """Other weights in the same file."""
    weights = load_file(folder / file)
    save_file({name: weight + 0.05 for name, weight in weights.items()}, folder / file, {"format": "pt"})


def revision(folder: Path, **options: Any) -> str:
    return identity_of(Source(str(folder), **options)).revision


# --- content ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja", "modeling_own.py"])
def test_every_file_that_vectors_depend_on_counts(name: str, model: Path) -> None:
    before, file = digest_of_folder(model), model / name
    file.write_text((file.read_text() if file.exists() else "") + "\n")
    assert digest_of_folder(model) != before


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        ".cache/notes.json",
        "checkpoint-10/optimizer.pt",
    ],
)
def test_a_file_that_no_vector_depends_on_does_not(name: str, model: Path) -> None:
    before = digest_of_folder(model)
    (model / name).parent.mkdir(parents=True, exist_ok=True)
    (model / name).write_text("{}")
    assert digest_of_folder(model) == before


def test_a_copy_is_the_same_model_and_a_moved_file_is_not(model: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(model, tmp_path / "elsewhere"))
    assert digest_of_folder(copied) == digest_of_folder(model)
    (copied / "1_Pooling").mkdir()
    (copied / "tokenizer.json").rename(copied / "1_Pooling" / "tokenizer.json")
    assert digest_of_folder(copied) != digest_of_folder(model)


# --- the memory of digests -------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Path]]:
    """Files that were read to be hashed, all of them large enough to be remembered."""
    seen: list[Path] = []
    plain = digests._read

    def read(file: Path) -> str:
        seen.append(file)
        return plain(file)

    monkeypatch.setattr(digests, "_read", read)
    monkeypatch.setattr(digests, "_LARGE", 1)
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    yield seen


def aged(file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that was written long ago, by our clock."""
    later = time.time() + 100
    monkeypatch.setattr("unmask.models.digests.time", SimpleNamespace(time=lambda: later))
    return file


def test_a_change_with_the_old_times_and_size_is_noticed(
    reads: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"one")
    aged(file, monkeypatch)
    before, state = digest_of_file(file), file.stat()
    assert digest_of_file(file) == before and len(reads) == 1, "a large file is read once"
    time.sleep(0.02)  # one tick of the file system's clock
    file.write_bytes(b"two")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert digest_of_file(file) != before


# --- what lies below, and what is put on -----------------------------------------------------------------------------


def test_retraining_the_base_makes_another_model_of_an_adapter(adapter: Path, base: Path) -> None:
    before, own = revision(adapter), digest_of_folder(adapter)
    retrain(base)
    assert digest_of_folder(adapter) == own
    assert revision(adapter) != before


def test_adapter_and_merge_each_make_another_model(adapter: Path, base: Path) -> None:
    on: dict[str, Any] = {"adapters": (str(adapter),)}
    assert len({revision(base), revision(adapter), revision(base, **on), revision(base, merge=True, **on)}) == 4
    assert revision(base, merge=True) == revision(base)  # nothing is merged
    before = revision(base, **on)
    retrain(adapter, "adapter_model.safetensors")
    assert revision(base, **on) != before


# --- in memory -------------------------------------------------------------------------------------------------------


def loaded(model: Path) -> Embedder:
    return Embedder.from_pretrained(model, "causal/plain/mean/zscore", dtype="float32", device="cpu")


def train(model: torch.nn.Module, optimizer: str) -> None:
    """One step of training; torch does not count what fused optimizers write."""
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.AdamW(model.parameters(), lr=1e-5, **({optimizer: True} if optimizer else {})).step()


@pytest.mark.parametrize("optimizer", ["", "fused"])
def test_a_model_that_trains_in_memory_is_another_one(optimizer: str, model: Path) -> None:
    decoder = loaded(model).backbone.model
    before = identity_of_loaded(decoder)
    assert before == identity_of(Source(str(model)))
    train(decoder, optimizer)
    after = identity_of_loaded(decoder)
    assert after.weights.startswith("memory-") and after.base is None
    train(decoder, optimizer)
    assert identity_of_loaded(decoder) != after
    note_source(decoder, Source(str(model)))
    assert identity_of_loaded(decoder) == before


def test_what_leaves_the_weights_alone_leaves_the_model_itself_and_hashes_nothing(
    model: Path, adapter: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_in_memory", lambda _: pytest.fail("the weights were hashed"))
    embedder = loaded(model)
    embedder.fit(["a", "b c", "d"]).encode(["a"])
    embedder.with_design("bidirectional/plain/last").encode(["a"])
    embedder.backbone.set_attention("bidirectional")
    embedder.save_pretrained(tmp_path / "saved")
    embedder.backbone.model.to(torch.float64)
    assert identity_of_loaded(embedder.backbone.model) == identity_of(Source(str(model)))
    merged = Source(str(base), adapters=(str(adapter),), merge=True)
    decoder = Embedder.from_pretrained(base, "mean", adapter=str(adapter), merge=True, **DESIGN).backbone.model
    assert identity_of_loaded(decoder) == identity_of(merged)


def test_an_adapter_that_is_scaled_or_switched_off_makes_another_model(adapter: Path, base: Path) -> None:
    from peft.tuners.lora import LoraLayer

    decoder = Embedder.from_pretrained(base, "mean", adapter=str(adapter), **DESIGN).backbone.model
    layers: Any = [module for module in decoder.modules() if isinstance(module, LoraLayer)]
    before = identity_of_loaded(decoder)
    names = {before.revision}
    for change, undo in (("scale_layer", "unscale_layer"), ("enable_adapters", "enable_adapters")):
        for layer in layers:
            getattr(layer, change)(0.5 if change == "scale_layer" else False)
        names.add(identity_of_loaded(decoder).revision)
        for layer in layers:
            getattr(layer, undo)(0.5 if change == "scale_layer" else True)
        assert identity_of_loaded(decoder) == before
    assert layers and len(names) == 3


def test_a_mixture_that_routes_in_another_way_is_another_one(base: Path, tmp_path: Path) -> None:
    language, _ = load_base_language_model(Source(str(base), dtype="float32", device="cpu"))
    Mixture(language, saved_experts(tmp_path, language), source=Source(str(base))).save_pretrained(tmp_path / "mixture")
    decoder = Embedder.from_pretrained(tmp_path / "mixture", "causal/plain/mean", **DESIGN).backbone.model
    mixture: Any = decoder.mixture
    before, routing = identity_of_loaded(decoder), mixture.routing
    assert before == identity_of(Source(str(tmp_path / "mixture")))
    names = set()
    mixture.routing = replace(routing, top_k=2)
    names.add(identity_of_loaded(decoder).weights)
    mixture.routing = routing
    for override in (mixture.without_experts(), mixture.only("a"), mixture.only("b")):
        with override:
            names.add(identity_of_loaded(decoder).weights)
        assert identity_of_loaded(decoder) == before, "as soon as the override is over"
    assert len(names) == 4 and all(name.startswith("memory-") for name in names)


def test_files_that_were_written_since_are_not_those_that_were_loaded(model: Path) -> None:
    decoder = loaded(model).backbone.model
    before = identity_of_loaded(decoder)
    retrain(model)
    after = identity_of_loaded(decoder)
    assert after.weights.startswith("memory-") and after != before
    again = loaded(model).backbone.model
    assert identity_of_loaded(again) == identity_of(Source(str(model))) != before
    shutil.rmtree(model)
    assert identity_of_loaded(decoder) == after


# --- saved embedders -------------------------------------------------------------------------------------------------

DESIGN: dict[str, Any] = {"dtype": "float32", "device": "cpu"}


@pytest.fixture
def saved(adapter: Path, tmp_path: Path) -> Path:
    Embedder.from_pretrained(adapter, "mean", **DESIGN).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_base_that_was_retrained_is_refused_unless_it_is_named(saved: Path, base: Path) -> None:
    before = Embedder.from_pretrained(saved, device="cpu").encode(["a"])
    retrain(base)
    with pytest.raises(
        UnmaskError, match=rf"'{base}', the base model of '{saved}', has changed since .* name both: --model {base}"
    ):
        Embedder.from_pretrained(saved, device="cpu")
    named = Embedder.from_pretrained(base, "mean", adapter=str(saved), **DESIGN)
    assert not np.allclose(named.encode(["a"]), before)
