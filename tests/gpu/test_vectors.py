"""Vectors on a GPU are those of the CPU, whatever shares the batch, in every model family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.encoding.cached_pass import peak_memory, reset_peak_memory
from unmask.encoding.quantization import AnyVectors
from unmask.errors import UnmaskError
from unmask.starter import reference_texts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: make gpu")
LONG = " ".join(TEXTS) * 3
MIXED = [*TEXTS, "", LONG, "y"]
"""Texts of very different lengths, so that most of a batch is padding."""
DESIGNS = ("causal/eol/last", "bidirectional/plain/mean", "causal/echo/mean", "causal/plain/weighted-mean@2")


def cosines(one: AnyVectors, other: AnyVectors) -> Any:
    return (one * other).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))


def load(folder: Path, design: str, device: str = "cuda", dtype: str = "float32") -> Embedder:
    return Embedder.from_pretrained(folder, design, device=device, dtype=dtype)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_the_cpu(family: str, design: str, pico_folder: Callable[[str], Path]) -> None:
    try:
        expected = load(pico_folder(family), design, "cpu").encode(MIXED)
    except UnmaskError as refusal:  # a family that cannot look ahead
        with pytest.raises(UnmaskError) as here:
            load(pico_folder(family), design).encode(MIXED)
        assert str(here.value) == str(refusal)
        return
    found = load(pico_folder(family), design).encode(MIXED)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_alone_is_the_text_in_a_batch(family: str, dtype: str, pico_folder: Callable[[str], Path]) -> None:
    embedder = load(pico_folder(family), "causal/eol/last", dtype=dtype)
    together = embedder.encode(MIXED)
    alone = np.concatenate([embedder.encode([text]) for text in MIXED])
    assert cosines(together, alone).min() > (0.999999 if dtype == "float32" else 0.999)


@pytest.mark.parametrize("features", ["routing", "concat", "sum:0.5"])
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.experts])
def test_routing_weights_are_those_of_the_cpu(family: str, features: str, pico_folder: Callable[[str], Path]) -> None:
    design = f"causal/eol/last/{features}"
    expected = load(pico_folder(family), design, "cpu").encode(MIXED)
    np.testing.assert_allclose(load(pico_folder(family), design).encode(MIXED), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("design", ["causal/eol/last/zscore", "causal/eol/last/whiten:8", "causal/echo+eol/mean+last/zscore"])
def test_a_fit_on_a_gpu_is_that_of_the_cpu(design: str, base: Path) -> None:
    on_cpu, on_gpu = (load(base, design, device).fit(reference_texts()).encode(TEXTS) for device in ("cpu", "cuda"))
    assert cosines(on_cpu, on_gpu).min() > 0.9999


def test_lexical_vectors_are_those_of_the_cpu(base: Path) -> None:
    on_cpu, on_gpu = (
        load(base, "causal/eol/last/lexical", device).fit(reference_texts()).encode_sparse(TEXTS) for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(on_gpu.toarray(), on_cpu.toarray(), rtol=1e-3, atol=1e-3)


def test_the_default_precision_is_bfloat16(base: Path) -> None:
    embedder = Embedder.from_pretrained(base, "causal/eol/last")
    assert embedder.device.type == "cuda" and embedder.backbone.dtype == torch.bfloat16
    assert cosines(embedder.encode(TEXTS), load(base, "causal/eol/last", "cpu").encode(TEXTS)).min() > 0.99


def test_a_saved_embedder_gives_the_same_bits(base: Path, tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(base, "causal/eol/last/zscore").fit(reference_texts())
    embedder.save_pretrained(tmp_path / "saved")
    again = Embedder.from_pretrained(tmp_path / "saved")
    assert np.array_equal(embedder.encode(MIXED), again.encode(MIXED))
    assert np.array_equal(again.encode(MIXED), again.encode(MIXED))


def test_many_texts_that_begin_alike_are_read_once_and_give_the_same(base: Path) -> None:
    texts = [f"{LONG} {text}" for text in reference_texts()[:64]]
    embedder = load(base, "causal/eol/last")
    together = embedder.encode(texts)
    assert cosines(together, np.concatenate([embedder.encode([text]) for text in texts])).min() > 0.99999
    assert cosines(together, load(base, "causal/eol/last", "cpu").encode(texts)).min() > 0.99999


def test_the_peak_is_that_of_the_gpu(base: Path) -> None:
    embedder, device = load(base, "causal/eol/last"), torch.device("cuda")
    reset_peak_memory(device)
    before = peak_memory(device)
    embedder.encode([LONG] * 64)
    assert before <= peak_memory(device) < before + 2**30
