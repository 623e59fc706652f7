"""Exports: each target's own runtime gives the embedder's vectors, what it cannot express is refused, and a refusal leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from tests.conftest import make_tokenizer
from tests.families import FAMILIES
from tests.in_process import run_program
from tests.moe.mixture.models import saved_experts
from unmask.embedder import Embedder
from unmask.encoding.batching import steps_of
from unmask.encoding.heads import HeadOptions, build_head
from unmask.errors import UnmaskError
from unmask.models.source import Source
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import build_mixture
from unmask.saving.exports import model2vec, standalone
from unmask.saving.exports.export import TARGETS, export
from unmask.saving.exports.onnx import load_reader
from unmask.saving.exports.target import Target, check_texts, check_vectors, our_vectors

Make = Callable[..., Embedder]
ONNX, GGUF, STATIC, FOLDER = (TARGETS[name] for name in ("onnx", "gguf", "model2vec", "sentence-transformers"))


def installed(target: Target) -> bool:
    return all(importlib.util.find_spec(module) for module in (*target.writes, *target.checks))


def skip_without(target: Target) -> None:
    if not installed(target):
        pytest.skip(f"{target.name}: pip install 'unmask[export]'")


def exported(embedder: Embedder, name: str, folder: Path, **options: Any) -> str:
    """The line that an export says of its check."""
    skip_without(TARGETS[name])
    return export(embedder, TARGETS[name], folder, **options).line


# ---- the same vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TARGETS)
def test_every_target_writes_a_checked_folder_with_a_card(name: str, pico: Make, tmp_path: Path) -> None:
    embedder = pico("causal/plain/mean", max_length=64)
    line = exported(embedder, name, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "causal/plain/mean" in card and "## Check" in card and f"for {name}" in card
    if name != "model2vec":
        assert line.startswith("largest difference ") and float(line.split()[2].rstrip(",")) < 1e-4
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["out"]


@pytest.mark.parametrize(
    ("design", "family", "add_bos"),
    [
        ("bidirectional/plain/mean@2/whiten:8", "mistral-sliding", True),
        ("causal/instruction-eos/layer-attention/zscore", "llama", False),
        ("causal/eol/last@all/sum:0.5", "olmoe", False),
    ],
)
def test_a_graph_holds_all_of_a_design_and_its_reader_makes_our_tokens(
    design: str, family: str, add_bos: bool, tmp_path: Path
) -> None:
    kind = design.split("/")[2]
    head = build_head(kind, 64, 3, HeadOptions(latents=4, heads=4)) if kind.endswith("-attention") else None
    embedder = Embedder.from_model(FAMILIES[family].build(), make_tokenizer(add_bos), design, head=head, max_length=48)
    exported(embedder, "onnx", tmp_path / "out")
    reader = load_reader(tmp_path / "out")
    texts = check_texts(embedder)
    for text, ours in zip(texts, embedder.prompt.tokenize(texts), strict=True):
        assert reader.tokenize(text) == (list(ours.ids), ours.start)
    if not embedder.prompt.prompt.takes_instruction:
        with pytest.raises(ValueError, match="takes no instruction"):
            reader.encode(["a"], "Find it.")


@pytest.mark.parametrize(
    ("design", "family"),
    [
        ("causal/eol/last", "llama"),
        ("bidirectional/instruction/last", "qwen2"),
    ],
)
def test_llama_cpp_gives_the_same_vectors(design: str, family: str, pico: Make, tmp_path: Path) -> None:
    embedder = pico(design, family=family, max_length=64)
    line = exported(embedder, "gguf", tmp_path / "out")
    assert "by llama.cpp's own tokenizer, largest difference" in line
    loaded = Embedder.from_pretrained(tmp_path / "out" / "model.gguf", design, max_length=64)
    texts = [text for text in check_texts(embedder) if text.isascii()]  # transformers gives GGUF files of Qwen its NFC
    np.testing.assert_allclose(loaded.encode(texts), embedder.encode(texts), atol=1e-5)


def test_texts_on_two_sides_of_a_border_of_longrope_share_no_batch_of_a_reader() -> None:
    lengths = [1025, 3, 1024, 2049, 1026, *range(1, 12)]
    batches = list(standalone._batches(lengths))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert max(map(len, batches)) == 8
    assert all(len({steps_of([lengths[index]]) for index in batch}) == 1 for batch in batches)


# ---- a check that can fail ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("design", "message"),
    [
        ("causal/eol/last", "no module for its prompt, eol: .*vLLM"),
        ("causal/plain/mean@2", "no module for its layers and features"),
        ("causal/plain/weighted-mean", "do not have the pooling weighted-mean"),
        ("bidirectional/plain/mean/zscore", None),
    ],
)
def test_it_says_what_servers_cannot_express_before_it_writes(
    design: str, message: str | None, pico: Make, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    export(pico(design), FOLDER, tmp_path / "exported", unchecked=True)
    said = [str(warning.message) for warning in recwarn if "vLLM" in str(warning.message)]
    assert len(said) == (message is not None) and all(re.search(str(message), text) for text in said)


def test_a_difference_is_refused(pico: Make) -> None:
    embedder = pico("causal/plain/mean", max_length=32)

    def off(texts: Any, _: str | None) -> Any:
        vectors = our_vectors(embedder, texts)
        vectors[7, 3] += 2e-3
        return vectors

    assert check_vectors(embedder, off, 1e-2)
    with pytest.raises(UnmaskError, match=r"differs from the embedder by 2\.0e-03 .* Nothing is written"):
        check_vectors(embedder, off, 1e-3)
    with pytest.raises(UnmaskError, match="differs"):
        check_vectors(embedder, lambda texts, _: off(texts, _) * np.nan, 1e-3)
    with pytest.raises(UnmaskError, match="shape"):
        check_vectors(embedder, lambda texts, _: off(texts, _)[:, :5], 1e-3)


def test_a_refused_export_leaves_nothing_and_unchecked_skips_the_check(pico: Make, tmp_path: Path) -> None:
    def refuse(*_: Any) -> Any:
        assert any(path.is_dir() for path in tmp_path.iterdir()), "nothing was written before the check"
        raise UnmaskError("It differs.")

    strict = replace(FOLDER, check=refuse)
    with pytest.raises(UnmaskError, match="It differs"):
        export(pico("causal/plain/mean"), strict, tmp_path / "out")
    assert not [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")]
    assert export(pico("causal/plain/mean"), strict, tmp_path / "out", unchecked=True).line == "not checked"
    assert "`--unchecked`" in (tmp_path / "out" / "README.md").read_text()


# ---- refusals -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("design", "nearest"),
    [
        ("causal/plain/mean/zscore", "causal/plain/mean"),
        ("bidirectional/eol/mean", "bidirectional/eol/last"),
    ],
)
def test_llama_cpp_refuses_what_it_lacks_and_names_the_nearest(design: str, nearest: str, pico: Make) -> None:
    embedder = pico(design)
    assert GGUF.refusal(embedder) == f"llama.cpp cannot compute '{design}'; the nearest design that it can is '{nearest}'."
    assert GGUF.refusal(pico(nearest)) is None


def test_a_mixture_is_exported_to_onnx_as_the_refusal_of_llama_cpp_says(base: Path, tmp_path: Path) -> None:
    experts = saved_experts(tmp_path, AutoModelForCausalLM.from_pretrained(base), ("math", "code"))
    source = Source(str(base), dtype="float32", device="cpu")
    mixture, tokenizer = build_mixture([expert.folder for expert in experts], Routing(), source)
    embedder = Embedder.from_model(mixture.body, tokenizer, "causal/plain/mean", source=source, max_length=64)
    assert "mixture, whose router chooses for each token: export it to onnx" in str(GGUF.refusal(embedder))
    assert exported(embedder, "onnx", tmp_path / "out").startswith("largest difference")


# ---- model2vec ----------------------------------------------------------------------------------------------------------------


def test_a_static_vector_is_the_vector_of_its_token(pico: Make) -> None:
    embedder = pico("causal/eol/last")
    vectors = model2vec.token_vectors(embedder)
    assert vectors.shape == (512, 64)
    (id_,) = embedder.tokenizer("a")["input_ids"]
    assert np.allclose(vectors[id_], our_vectors(embedder, ["a"])[0], atol=1e-6)
    assert not vectors[embedder.tokenizer.all_special_ids].any() and (np.linalg.norm(vectors, axis=1) > 0.99).sum() == 509


# ---- the command --------------------------------------------------------------------------------------------------------------


def test_the_command_exports_a_saved_embedder(
    pico: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pico("bidirectional/eol/last", max_length=40).save_pretrained(tmp_path / "mine")
    words: list[str | Path] = [
        "export",
        tmp_path / "mine",
        "--to",
        "sentence-transformers",
        "-o",
        tmp_path / "out",
        "--device",
        "cpu",
    ]
    code, _, err = run_program(words, monkeypatch, capfd)
    assert code == 0 and "bidirectional/eol/last" in err and "largest difference" in err, err
    assert json.loads((tmp_path / "out" / "unmask.json").read_text())["max_length"] == 40
    code, _, err = run_program(words, monkeypatch, capfd)
    assert code == 2 and "exists: give a new folder" in err
