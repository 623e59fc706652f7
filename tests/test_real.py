"""Real models: what holds on pico models holds on trained ones, and the figures are those that were published."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from tests.in_process import run_program
from tests.moe.mixture.models import saved_experts
from tests.proofs import ALL
from tests.tiny import write_rows
from unmask.designs.design import ATTENTIONS, Attention, as_design
from unmask.embedder import Embedder
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.encoding.quantization import normalized
from unmask.models.bundled import BUNDLED
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.moe.routing.labelled_texts import LabelledText, LabelledTexts
from unmask.moe.routing.record import Choices, read_record
from unmask.moe.routing.recording import record_routing
from unmask.tasks.find import find_task
from unmask.tasks.mteb.evaluator import evaluate
from unmask.tasks.task import LocalTask

pytestmark = pytest.mark.real
PAIRS = 60
TEXTS = ["A man plays a guitar.", "Someone makes music on a stage while a small crowd listens.", "x", "The stock market fell."]
LAYERS = 30 if ALL else 6
"""Layers of the mixtures: all of the model, or its first ones, which cost a fifth."""
HALF = 5e-4  # probabilities in 16 bits
Vectors = NDArray[np.float32]
Run = Callable[..., tuple[int, str, str]]
Reference = tuple[Any, Callable[[torch.Tensor], list[torch.Tensor]]]


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


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command as a user does."""
    return lambda *words: run_program(words, monkeypatch, capfd)


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


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["prompteol", "bidirectional-mean"])
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
    AutoModelForCausalLM.from_pretrained(BUNDLED["smollm2"].path, num_hidden_layers=LAYERS).save_pretrained(folder)
    return folder


def native_mixture(base: Path, folder: Path, run: Run) -> Path:
    """The model with three noisy copies of each MLP, as `unmask upcycle` writes it."""
    code, _, err = run("upcycle", base, "-o", folder, "--experts", "3", "--seed", "5")
    assert code == 0, err
    return folder


def lora_mixture(base: Path, folder: Path, _: Run) -> Path:
    """The model with two LoRA experts and a router, all of them random."""
    source = Source(str(base), device="cpu")
    model, _ = load_base_language_model(source)
    mixture = Mixture(model, saved_experts(folder / "experts", model, ("a", "b"), std=0.02), source=source)
    torch.manual_seed(5)
    for router in mixture.routers.values():
        torch.nn.init.normal_(router.weight, std=0.1)
    mixture.save_pretrained(folder / "mixture")
    return folder / "mixture"


def native_reference(folder: Path) -> Reference:
    """The decoder as transformers loads it, and the logits of its routers as transformers returns them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.model, lambda ids: list(model(input_ids=ids, output_router_logits=True).router_logits)


def lora_reference(folder: Path) -> Reference:
    """The decoder with its experts, and the input of each block times the router's weights as they lie on the disk."""
    from safetensors.torch import load_file

    mixture = Mixture.from_pretrained(folder, device="cpu", dtype="float32")
    [weights] = load_file(folder / "router.safetensors").values()
    seen: list[torch.Tensor] = []
    for point in mixture.points.values():
        point.register_forward_pre_hook(lambda _, given: seen.append(given[0][0] @ weights.float().T))

    def logits(ids: torch.Tensor) -> list[torch.Tensor]:
        seen.clear()
        mixture.body(input_ids=ids, use_cache=False)
        return list(seen)

    return mixture.body, logits


@pytest.mark.parametrize(
    ("make", "reference", "points"), [(native_mixture, native_reference, LAYERS), (lora_mixture, lora_reference, 2 * LAYERS)]
)
def test_recorded_routing_is_what_the_routers_did(
    make: Any, reference: Any, points: int, first_layers: Path, tmp_path: Path, run: Run
) -> None:
    """The command reads all texts in one batch. Each text alone gives the same."""
    folder = make(first_layers, tmp_path / "model", run)
    rows = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])
    code, _, err = run("probe", "routing", "-m", folder, "-t", rows, "-o", tmp_path / "together", "--dtype", "float32")
    assert code == 0, err
    body, logits_of = reference(folder)
    model = Encoder(Backbone(body, "causal"), loaded().tokenizer, Source("mixture"))
    texts = LabelledTexts(tuple(LabelledText(text) for text in TEXTS))
    alone = record_routing(replace(model, batch_tokens=1), texts, tmp_path / "alone").choices(range(points))
    together = read_record(tmp_path / "together").choices(range(points))
    with torch.no_grad():
        logits = [logits_of(loaded().tokenizer(text, return_tensors="pt")["input_ids"]) for text in TEXTS]
    assert {len(of_text) for of_text in logits} == {points}
    for point in range(points):
        expected = torch.cat([of_text[point] for of_text in logits]).softmax(dim=-1).numpy()
        assert expected.std(axis=0).max() > 0.005, "a flat router would agree with anything"
        for choices in (alone, together):
            require_equal(choices, point, expected)


def require_equal(choices: Choices, point: int, expected: NDArray[np.float32]) -> None:
    """What is recorded at a routing point, against its probabilities. Of two experts that are alike, either may be chosen."""
    shares, chosen, gates = choices.probabilities[point], choices.chosen[point], choices.gates[point]
    assert shares.shape == expected.shape and np.allclose(shares, expected, atol=HALF)
    best = -np.sort(-expected, axis=1)[:, : chosen.shape[1]]
    assert np.allclose(np.take_along_axis(expected, chosen.astype(int), axis=1), best, atol=HALF)
    whole = best.sum(axis=1, keepdims=True) if chosen.shape[1] > 1 else 1  # Mixtral's gates sum to 1, those of top-1 do not
    assert np.allclose(gates, best / whole, atol=2 * HALF)
