"""vLLM as the writer, where it is installed: what transformers writes, and one text a seed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from unmask.models.bundled import BUNDLED
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.lessons.generation import GenerationJob, Sampling, Writer
from unmask.moe.experts.lessons.vllm_engine import Engine

PREFIX = "Question: What is the capital of Italy?\nAnswer: Rome\n\nQuestion: "
ROWS = ("What is the capital of France?\nAnswer:", "How many legs has a spider?\nAnswer:", "What do cows drink?\nAnswer:")
installed = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module")
def engine() -> Any:
    if not BUNDLED["smollm2"].installed:
        pytest.skip("smollm2 is not installed")
    return Engine(Source("smollm2", dtype="float32"), max_model_len=512)


@installed
@pytest.mark.real
def test_it_writes_what_transformers_write(engine: Any) -> None:
    jobs = [
        GenerationJob(PREFIX, ROWS, Sampling(24), "\n\nQuestion", 0),
        GenerationJob(PREFIX, ROWS[:1], Sampling(3), "\n\nQuestion", 0),
    ]
    assert engine.write_all(jobs) == Writer(*load_language_model(Source("smollm2", dtype="float32"))).write_all(jobs)


@installed
@pytest.mark.real
def test_samples_depend_on_their_seed_and_place(engine: Any) -> None:
    job = GenerationJob(PREFIX, ROWS[:1] * 4, Sampling(16, 1.0, 0.98), "\n\nQuestion", 5)
    one, again, other = engine.write_all([job, job, replace(job, seed=6)])
    assert one == again != other
    assert len({text.text for text in one}) > 1
