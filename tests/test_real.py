"""Real models: what holds on pico models holds on trained ones, and the figures are those that were published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from unmask.designs.design import ATTENTIONS, Attention, as_design
from unmask.embedder import Embedder
from unmask.encoding.quantization import normalized
from unmask.models.bundled import BUNDLED
from unmask.tasks.find import find_task
from unmask.tasks.mteb.evaluator import evaluate
from unmask.tasks.task import LocalTask

pytestmark = pytest.mark.real
PAIRS = 60
TEXTS = ["A man plays a guitar.", "Someone makes music on a stage while a small crowd listens.", "x", "The stock market fell."]


def installed(name: str) -> str:
    if not BUNDLED[name].installed:
        pytest.skip(BUNDLED[name].install_command)
    return name


@cache
def loaded() -> Embedder:
    """The model, which all embedders of these tests share."""
    return Embedder.from_pretrained(installed("smollm2"), "causal/plain/mean", device="cpu")


@cache
def smollm2(design: str) -> Embedder:
    return Embedder(loaded().encoder, as_design(design))


def stsb(data: Path) -> tuple[list[str], list[float]]:
    """The first pairs of the test set: all first sentences, then all second ones; and what people gave each pair."""
    lines = (data / "stsb" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:PAIRS]
    rows = [json.loads(line) for line in lines]
    return [row[side] for side in ("sentence1", "sentence2") for row in rows], [row["score"] for row in rows]


def agreement(vectors: Any, scores: Sequence[float]) -> float:
    """Spearman of the cosine of each pair with what people gave it."""
    unit = normalized(np.asarray(vectors, np.float32))
    return float(spearmanr((unit[: len(scores)] * unit[len(scores) :]).sum(axis=1), scores).statistic)


@cache
def ours(design: str, data: Path) -> float:
    texts, scores = stsb(data)
    return agreement(smollm2(design).encode(texts), scores)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_is_proven_in_every_layer(attention: Attention) -> None:
    proof = smollm2(f"{attention}/plain/mean").backbone.proof
    assert len(proof.unpadded) == len(proof.padded) == 30
    assert proof.causal_layers == (tuple(range(1, 31)) if attention == "causal" else ())
    assert max(proof.leak) < 1e-2


def test_the_decoder_has_no_head_and_keeps_no_cache() -> None:
    model = smollm2("prompteol").backbone.model
    outputs: list[Any] = []
    hook = model.register_forward_hook(lambda _, __, output: outputs.append(output))
    smollm2("prompteol").encode(TEXTS)
    hook.remove()
    assert model.get_output_embeddings() is None and outputs
    assert all("logits" not in output and output.get("past_key_values") is None for output in outputs)


def test_asking_for_one_word_beats_the_last_token_of_the_text(data: Path) -> None:
    assert ours("prompteol", data) > 0.55
    assert ours("prompteol", data) > ours("last", data) + 0.15


@pytest.mark.parametrize(("name", "dtype"), [("prompteol", "float32"), ("bidirectional-mean", "bfloat16")])
def test_a_saved_embedder_gives_the_same_bits(name: str, dtype: str, first_layers: Path, tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(first_layers, name, device="cpu", dtype=dtype)
    before = embedder.encode(TEXTS)
    embedder.save_pretrained(tmp_path / "saved")
    again = Embedder.from_pretrained(tmp_path / "saved", device="cpu", dtype=dtype)
    assert str(again.backbone.dtype) == f"torch.{dtype}" and again.design == embedder.design
    assert np.array_equal(before, again.encode(TEXTS))


@pytest.mark.sample(0)
@pytest.mark.parametrize(("name", "size", "published"), [("stsb", 1379, 0.8203), ("sts13", 1500, 0.8060)])
def test_minilm_scores_what_was_published(name: str, size: int, published: float, data: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(BUNDLED[installed("minilm")].path), device="cpu")
    task = find_task(str(data / name))
    assert isinstance(task, LocalTask) and task.size == size
    outcome = evaluate(task, "minilm", lambda texts, _: np.asarray(model.encode(list(texts)), np.float32))
    assert outcome.metric == "cosine_spearman" and outcome.main_score == pytest.approx(published, abs=0.0005)


@pytest.fixture(scope="module")
def first_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 without its later layers."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("first-layers")
    loaded().tokenizer.save_pretrained(folder)
    AutoModelForCausalLM.from_pretrained(BUNDLED["smollm2"].path, num_hidden_layers=6).save_pretrained(folder)
    return folder
