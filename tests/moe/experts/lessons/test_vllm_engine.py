"""vLLM as the writer, where it is installed: what transformers writes, and one text a seed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import UnmaskError
from unmask.models.bundled import BUNDLED
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.lessons.engines import Engine
from unmask.moe.experts.lessons.generation import GenerationJob, Sampling, Writer

PREFIX = "Question: What is the capital of Italy?\nAnswer: Rome\n\nQuestion: "
ROWS = ("What is the capital of France?\nAnswer:", "How many legs has a spider?\nAnswer:", "What do cows drink?\nAnswer:")
installed = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_it_says_what_to_install(base: Path) -> None:
    with pytest.raises(UnmaskError, match="pip install vllm"):
        Engine(Source(str(base)))


def test_an_expert_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UnmaskError, match="base models only"):
        Engine(Source(str(tmp_path)))


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


@installed
@pytest.mark.real
def test_a_prompt_without_room_is_refused(engine: Any) -> None:
    with pytest.raises(UnmaskError, match="leaves no room"):
        engine.write_all([GenerationJob(PREFIX, ROWS, Sampling(500), "\n\n", 0)])
