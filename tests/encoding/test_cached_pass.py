"""Each text is computed once for all designs of a pass; an interrupted run continues to the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TEXTS as SIX
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding import cached_pass, prefix_cache, shared_prefix
from unmask.encoding.cached_pass import (
    AveragedPasses,
    CachedPass,
    chunks,
    link_shared_passes,
    peak_memory,
    reset_peak_memory,
)
from unmask.encoding.encoder import Encoder
from unmask.encoding.features import Fit
from unmask.encoding.shared_prefix import SharedResult
from unmask.encoding.vector_cache import CacheTable, VectorCache, text_key
from unmask.errors import UnmaskError
from unmask.starter import reference_texts

MEAN, LAST = Design(pooling="mean"), Design(pooling="last")
FIRST, SECOND = (Design.parse(f"causal/{prompt}/last") for prompt in ("{text} means", "{text} is about"))
TEXTS = [f"{'A man plays a guitar. ' * (number % 4 + 1)}{number}" for number in range(12)]


@pytest.fixture(autouse=True)
def share_short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prefix, "CACHED_TOKEN_COST", 1)


@pytest.fixture
def encoder(pico: Callable[..., Embedder]) -> Encoder:
    return replace(pico("causal/plain/mean").encoder, batch_tokens=256)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, SharedResult]]:
    """The number of texts and the result of each computation."""
    seen: list[tuple[int, SharedResult]] = []
    encode = Encoder.encode_prompts

    def watched(self: Encoder, batches: Any, *args: Any) -> SharedResult:
        result = encode(self, batches, *args)
        seen.append((len(batches[0].texts), result))
        return result

    monkeypatch.setattr(Encoder, "encode_prompts", watched)
    return seen


def cached(encoder: Encoder, folder: Path, *designs: Design, name: str = "weights") -> CachedPass:
    return CachedPass(encoder, dict.fromkeys(designs, Fit()), VectorCache(folder), name, "a task")


def linked(encoder: Encoder, folder: Path, *designs: Design) -> list[CachedPass]:
    vectors = [cached(encoder, folder, design) for design in designs]
    link_shared_passes(vectors)
    return vectors


def test_each_text_is_computed_once_for_all_designs(encoder: Encoder, tmp_path: Path, calls: list[Any]) -> None:
    vectors = cached(encoder, tmp_path, MEAN, LAST)
    vectors.get(MEAN, ["a", "b", "a"], None)
    vectors.get(LAST, ["b", "c"], None)
    vectors.get(MEAN, ["c", "b", "a"], None)
    assert [texts for texts, _ in calls] == [2, 1]
    assert (vectors.tally.texts, vectors.cost.texts) == (3, 3)
    again = cached(encoder, tmp_path, MEAN)
    again.get(MEAN, ["a", "b", "c"], None)
    assert len(calls) == 2 and again.tally == vectors.tally and again.cost.tokens == 0
    cached(encoder, tmp_path, MEAN, name="other weights").get(MEAN, ["a"], None)
    assert len(calls) == 3
    order = ["c", "a", "c", "b"]
    np.testing.assert_allclose(vectors.get(MEAN, order, None), Embedder(encoder, MEAN).encode(order), atol=1e-5)


@pytest.mark.parametrize(("design", "computed"), [("causal/plain/mean", 1), ("causal/instruction/mean", 2)])
def test_an_instruction_matters_only_to_a_prompt_that_takes_it(
    design: str, computed: int, encoder: Encoder, tmp_path: Path, calls: list[Any]
) -> None:
    vectors = cached(encoder, tmp_path, parsed := Design.parse(design))
    first, second = (vectors.get(parsed, ["a"], instruction) for instruction in ("Find it.", "Rank it."))
    assert len(calls) == computed == vectors.tally.texts
    assert np.array_equal(first, second) == (computed == 1)


def test_linked_prompts_are_computed_together(encoder: Encoder, tmp_path: Path, calls: list[Any]) -> None:
    assert not cached(encoder, tmp_path, FIRST).linked
    vectors = linked(encoder, tmp_path, FIRST, SECOND)
    found = [shared.get(design, TEXTS, None) for shared, design in zip(vectors, (FIRST, SECOND), strict=True)]
    [(_, result)] = calls
    assert result.tokens < 0.7 * sum(result.tokens_alone)
    for design, values in zip((FIRST, SECOND), found, strict=True):
        np.testing.assert_allclose(values, Embedder(encoder, design).encode(TEXTS), atol=1e-5)


def test_a_prompt_costs_what_it_would_cost_alone(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(2))
    monkeypatch.setattr(cached_pass, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    first, second = linked(encoder, tmp_path, FIRST, SECOND)
    first.get(FIRST, TEXTS, None)
    tokens = [shared.cost.tokens for shared in (first, second)]
    assert tokens == [sum(len(text.ids) for text in shared.forward.tokenizer.tokenize(TEXTS)) for shared in (first, second)]
    assert first.tally.tokens == tokens[0] and second.cost.texts == len(TEXTS)
    assert first.cost.seconds < 1 < first.cost.seconds + second.cost.seconds, "the shared part counts for each of them"
    assert first.cost.seconds / second.cost.seconds == pytest.approx(tokens[0] / tokens[1])


@pytest.mark.parametrize("error", [UnmaskError("A vector is not finite"), torch.OutOfMemoryError("too much")])
def test_where_linked_prompts_fail_each_is_computed_alone(
    error: Exception, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored before is not computed again."""
    monkeypatch.setattr(cached_pass, "chunks", lambda lengths: chunks(lengths, 400))
    together: list[int] = []
    encode = Encoder.encode_prompts

    def failing(self: Encoder, batches: Any, *args: Any) -> Any:
        if len(batches) > 1:
            together.append(len(batches[0].texts))
            if len(together) == 2:
                raise error
        return encode(self, batches, *args)

    monkeypatch.setattr(Encoder, "encode_prompts", failing)
    first, second = linked(encoder, tmp_path, FIRST, SECOND)
    values = first.get(FIRST, TEXTS, None)
    assert len(together) == 2 and (first.cost.texts, second.cost.texts) == (len(TEXTS), together[0])
    np.testing.assert_allclose(values, Embedder(encoder, FIRST).encode(TEXTS), atol=1e-5)


@given(st.lists(st.integers(1, 12), max_size=20))
def test_chunks_are_filled_by_tokens(lengths: list[int]) -> None:
    bounds = list(chunks(lengths, 10))
    assert [index for start, end in bounds for index in range(start, end)] == list(range(len(lengths)))
    for number, (start, end) in enumerate(bounds):
        assert sum(lengths[start:end]) <= 10 or end == start + 1
        assert end == len(lengths) or sum(lengths[start : end + 1]) > 10
        assert list(chunks(lengths[:end], 10)) == bounds[: number + 1], "a bound depends on earlier texts only"


def test_interrupted_runs_continue_to_the_same_bits(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_pass, "chunks", lambda lengths: chunks(lengths, 200))
    monkeypatch.setattr(prefix_cache, "_MIN_TEXTS", 2)
    designs = FIRST, SECOND

    def both(folder: Path) -> list[Any]:
        vectors = linked(encoder, folder, *designs)
        return [shared.get(design, TEXTS, None) for shared, design in zip(vectors, designs, strict=True)]

    complete, add = both(tmp_path / "complete"), CacheTable.add
    for stop in range(1, 9):  # each chunk is stored in four steps
        remaining = iter(range(stop))

        def stopped(rows: CacheTable, *args: Any, remaining: Any = remaining) -> None:
            if next(remaining, None) is None:
                raise KeyboardInterrupt
            add(rows, *args)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(CacheTable, "add", stopped)
            both(tmp_path / str(stop))
        first, second = linked(encoder, tmp_path / str(stop), *designs)
        keys = [text_key(text, None) for text in TEXTS]
        assert all(key in second.table(SECOND) for key in keys if key in first.table(FIRST))
        for values, expected in zip(both(tmp_path / str(stop)), complete, strict=True):
            np.testing.assert_array_equal(values, expected)


def averaged(encoder: Encoder, folder: Path, *designs: Design) -> AveragedPasses:
    passes = {
        prompt: cached(encoder, folder, *dict.fromkeys(part for design in designs for part in design.features_under(prompt)))
        for prompt in designs[0].prompts
    }
    return AveragedPasses(passes, encoder.fit(designs, reference_texts()[:20]))


@pytest.mark.parametrize("end", ["", "@all/zscore", "/routing~topk", "/concat/whiten:4", "@1/sum:auto/zscore"])
def test_averages_are_the_embedders(end: str, pico: Callable[..., Embedder], tmp_path: Path) -> None:
    design = Design.parse(f"causal/instruction+echo/last{end}")
    embedder = pico(design, family="olmoe").fit(reference_texts()[:20])
    for instruction in (None, "Find it."):
        expected = np.asarray(embedder.encode(SIX, instruction=instruction))
        values = averaged(embedder.encoder, tmp_path, design).get(design, SIX, instruction)
        assert values.dtype == np.float32
        assert np.abs(values - expected).max() <= 1e-4 * np.abs(expected).max()
    again = averaged(embedder.encoder, tmp_path, design)
    assert np.array_equal(again.get(design, SIX, "Find it."), values)
    assert all(shared.cost.texts == 0 for shared in again.passes.values()), "read from the store"
    tokens = {prompt: shared.tally.tokens for prompt, shared in again.passes.items()}
    assert again.tally.by_prompt == tokens and again.tally.tokens == sum(tokens.values()) > 0
    assert again.tally.texts == len(set(SIX))


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this system cannot reset the peak")
def test_the_peak_memory_is_reset() -> None:
    cpu = torch.device("cpu")
    block = np.ones(2**25)
    high = peak_memory(cpu)
    assert high > block.nbytes == 2**28
    del block
    reset_peak_memory(cpu)
    assert 0 < peak_memory(cpu) < high - 2**27
