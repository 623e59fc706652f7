"""Averaged vectors: those of the embedder, made from what each prompt has stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TEXTS
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.averaged_vectors import AveragedVectors
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import ForwardPass, SharedVectors
from unmask.encoding.vector_store import VectorStore
from unmask.starter import reference_texts


def averaged(embedder: Embedder, folder: Path, *designs: Design) -> AveragedVectors:
    passes = {}
    for part in embedder.prompts.parts:
        features = {feature: Fit() for design in designs for feature in design.features_under(part.name)}
        source = ForwardPass(embedder.backbone, part, features, VectorStore(folder), "weights", 256)
        passes[part.name] = SharedVectors(source, list(features), "a task")
    return AveragedVectors(
        passes, {design: embedder.with_design(design).fit(reference_texts()[:20]).fitted for design in designs}
    )


@pytest.mark.parametrize("end", ["", "@all/zscore", "/routing~topk", "/concat/whiten:4", "@1/sum:auto/zscore"])
def test_vectors_are_those_of_the_embedder(end: str, pico: Callable[..., Embedder], tmp_path: Path) -> None:
    design = Design.parse(f"causal/instruction+echo/last{end}")
    embedder = pico(design, family="olmoe").fit(reference_texts()[:20])
    for instruction in (None, "Find it."):
        expected = np.asarray(embedder.encode(TEXTS, instruction=instruction))
        found = averaged(embedder, tmp_path, design).get(design, TEXTS, instruction)
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_what_is_stored_costs_nothing_and_is_counted(pico: Callable[..., Embedder], tmp_path: Path) -> None:
    one, other = Design.parse("causal/eol+plain/last"), Design.parse("causal/eol+plain/last/zscore")
    embedder = pico(one)
    first = averaged(embedder, tmp_path, one, other)
    vectors = first.get(one, TEXTS, None)
    second = averaged(embedder, tmp_path, one, other)
    assert np.array_equal(second.get(one, TEXTS, None), vectors)
    assert not np.array_equal(second.get(other, TEXTS, None), vectors)
    assert [shared.spent.texts for shared in second.passes.values()] == [0, 0]
    assert second.tally == first.tally
    assert second.tally.texts == len(set(TEXTS)) == first.passes["eol"].spent.texts
    assert second.tally.tokens == sum(shared.spent.tokens for shared in first.passes.values())
    assert second.tally.by_prompt == {prompt: shared.spent.tokens for prompt, shared in first.passes.items()}
