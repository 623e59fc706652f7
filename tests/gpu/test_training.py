"""On a GPU, everything trains, and gives a model that the CPU reads alike. A model writes what it writes on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.moe.experts.conftest import DOMAINS, SUMS
from tests.training.running import STAGES, recipe, run, weights
from unmask.embedder import Embedder
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.expert import train_expert
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.lessons.generation import Sampling, Writer
from unmask.moe.experts.likelihood import response_likelihood
from unmask.moe.experts.mixing import Ingredients, train_mixture
from unmask.moe.experts.router import RouterOptions
from unmask.moe.mixture.gating import Routing
from unmask.training.lora import LoraOptions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: make gpu")
LEARNING = Learning(steps=6, lr=5e-3, batch=4, save_every=2)
LORA = LoraOptions(r=4, alpha=8)
DTYPES = ("float32", "bfloat16")


def likelihoods(model: Path, device: str, dtype: str = "float32") -> np.ndarray:
    loaded, tokenizer = load_language_model(Source(str(model), device=device, dtype=dtype))
    return np.asarray(response_likelihood(loaded, tokenizer, SUMS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stage", STAGES)
def test_what_a_stage_trains_is_read_alike_on_a_cpu(stage: str, dtype: str, model: Path, teacher: Path, tmp_path: Path) -> None:
    others = {"distill": {"teacher": str(teacher)}, "contrastive": {"guide": str(teacher), "teacher": str(teacher)}}
    made = recipe(model, stage, dtype=dtype, **{stage: others.get(stage, {})})
    run(made, tmp_path / "one")
    on_gpu, on_cpu = (
        Embedder.from_pretrained(tmp_path / "one" / "model", dtype="float32", device=device) for device in ("cuda", "cpu")
    )
    np.testing.assert_allclose(on_gpu.encode(TEXTS), on_cpu.encode(TEXTS), rtol=1e-3, atol=1e-4)
    assert all(bool(weight.isfinite().all()) for weight in weights(tmp_path / "one").values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_learn_and_a_mixture_of_them(dtype: str, base: Path, tmp_path: Path) -> None:
    source = Source(str(base), dtype=dtype)
    for name, lessons in DOMAINS.items():
        train_expert(source, lessons, tmp_path / name, lora=LORA, learning=LEARNING)
    before, after = (likelihoods(model, "cuda") for model in (base, tmp_path / "sums"))
    assert after.mean() < before.mean()
    np.testing.assert_allclose(after, likelihoods(tmp_path / "sums", "cpu"), rtol=1e-3)
    for routing in (Routing(), Routing("layer"), Routing("final"), Routing(level="sequence")):
        place = tmp_path / f"mixture-{routing.router}-{routing.level}"
        train_mixture(
            Ingredients(tuple(tmp_path / name for name in DOMAINS)), DOMAINS, place, routing, source, learning=LEARNING
        )
        np.testing.assert_allclose(likelihoods(place, "cuda"), likelihoods(place, "cpu"), rtol=1e-2)
    options = RouterOptions(joint=True, lr=1e-2)
    train_mixture(Ingredients(), DOMAINS, tmp_path / "joint", Routing(), source, lora=LORA, learning=LEARNING, options=options)
    np.testing.assert_allclose(likelihoods(tmp_path / "joint", "cuda"), likelihoods(tmp_path / "joint", "cpu"), rtol=1e-2)


def test_a_model_writes_what_it_writes_on_a_cpu(base: Path) -> None:
    texts = {}
    for device in ("cpu", "cuda"):
        writer = Writer(*load_language_model(Source(str(base), device=device, dtype="float32")))
        texts[device] = [text.text for text in writer.write("Tasks.\n", ["Add 1", "Name"], Sampling(8), "\n\n", 0)]
        assert all(
            text.text for text in writer.write("Tasks.\n", ["Add 1"], Sampling(8, temperature=1.0, top_p=0.9), "\n\n", 0)
        )
    assert texts["cpu"] == texts["cuda"]
