"""Source: a name leads to one model, wherever the command runs, and code runs only of the model that was named."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.forking import run as run_in_a_copy
from tests.tiny import give_code
from unmask.errors import UnmaskError
from unmask.models import hub
from unmask.models.bundled import resolve
from unmask.models.loading import load_decoder
from unmask.models.source import TRUSTED, Source, base_name, below, lasting_name

# --- paths and hub ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["runs/one/model", "model.safetensors", "..\\model"])
def test_what_looks_like_a_path_is_not_asked_of_a_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_answers", lambda _: pytest.fail("the hub was asked"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(UnmaskError, match="does not exist"):
        load_decoder(Source(name))


def test_a_name_beside_folders_of_its_owner_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "llama").mkdir(parents=True)
    with pytest.raises(
        UnmaskError, match=r"Did you mean 'models/llamma'\?|Did you mean 'models/llama'\? .* write 'hf://models/lama'"
    ):
        resolve("models/lama")
    assert resolve("models/llama") == "models/llama"
    assert resolve("hf://models/lama") == "models/lama"


def ask_a_hub_that_does_not_answer(home: Path) -> None:
    """In a process whose client of the hub reads its environment as a new process would."""
    import importlib

    import peft  # noqa: F401
    from huggingface_hub import constants

    os.environ |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(home)}
    importlib.reload(constants)
    hub._answers.cache_clear()
    start = time.monotonic()
    try:
        load_decoder(Source("owner/name"))
    except UnmaskError as error:
        print(json.dumps([time.monotonic() - start, str(error), constants.HF_HUB_OFFLINE]))


def test_a_hub_that_does_not_answer_costs_no_minute(tmp_path: Path) -> None:
    done = run_in_a_copy(lambda: ask_a_hub_that_does_not_answer(tmp_path), tmp_path, tmp_path / "notes")
    assert done.code == 0, done.err
    seconds, said, offline = json.loads(done.out)
    assert seconds < 20  # it was 58 s
    assert "'owner/name' is neither a folder" in said
    assert offline is False


# --- bases that a file names -----------------------------------------------------------------------------------------


def folder_naming(base: str, folder: Path, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "peft_type": "LORA", **more}))
    (folder / "adapter_model.safetensors").touch()
    return folder


def test_a_relative_base_is_found_beside_the_adapter_and_else_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = folder_naming("../models/base", tmp_path / "adapter")
    (tmp_path / "models" / "base").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert base_name("../models/base", adapter) == str(tmp_path / "models" / "base")
    with pytest.raises(UnmaskError, match=r"Folder './base', .* does not exist.* give its new path: --model BASE --adapter"):
        base_name("./base", adapter)
    assert base_name("owner/name", adapter) == "owner/name"
    assert base_name("pico", adapter) == lasting_name("pico") == "pico"


def test_a_base_on_the_hub_is_saved_with_its_commit(pico: Callable[..., Any], tmp_path: Path) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    from unmask.models.identity import note_source

    embedder = pico("causal/plain/mean", source=Source("owner/name"))
    model = embedder.backbone.model
    inject_adapter_in_model(LoraConfig(target_modules=["q_proj"], init_lora_weights=False), model)
    model.peft_config = {"default": LoraConfig(target_modules=["q_proj"])}
    model.config._commit_hash = "c0ffee"
    note_source(model, Source("owner/name"))
    embedder.save_pretrained(tmp_path / "saved")
    said = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == ("owner/name", "c0ffee")
    base = below(tmp_path / "saved", Source(str(tmp_path / "saved")))
    assert base is not None and base.revision == "c0ffee"


# --- code ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def coded(pico_folder: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Path]:
    """A model with code of its own, and the file that its code writes when it runs."""
    folder, proof = Path(shutil.copytree(pico_folder("llama"), tmp_path / "coded")), tmp_path / "it-ran"
    return give_code(folder, proof), proof


def test_code_of_a_base_that_a_file_names_is_not_run(
    coded: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, proof = coded
    adapter = folder_naming(str(folder), tmp_path / "adapter")
    with pytest.raises(UnmaskError, match=rf"names the base model '{folder}', which includes Python code.* --model {folder} "):
        load_decoder(Source(str(adapter), trust_remote_code=True))
    assert not proof.exists()
    with pytest.raises(UnmaskError, match="contains custom code"):
        load_decoder(Source(str(adapter)))
    assert not proof.exists()
    monkeypatch.setenv(TRUSTED, f"someone/else, {folder}")
    base = below(adapter, Source(str(adapter), trust_remote_code=True))
    assert base is not None and base.trust_remote_code
    base = below(adapter, Source(str(adapter)))
    assert base is not None and not base.trust_remote_code  # the variable alone allows nothing
    model, _ = load_decoder(Source(str(folder), trust_remote_code=True, dtype="float32", device="cpu"))
    assert type(model).__name__ == "OwnModel" and proof.exists(), "a model that is named runs its own code"
