"""Served models: what a name stands for, from a model or from a saved embedder, from one load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import TEXTS
from tests.encoding.test_encoder import with_longrope
from unmask.embedder import Embedder
from unmask.encoding import replicas
from unmask.server.served import ServedModels, load_models

EXACT = {"dtype": "float32", "device": "cpu"}


def test_designs_of_one_model_share_its_weights(pico_folder: Callable[[str], Path]) -> None:
    models = load_models(
        str(pico_folder("llama")), 'mean,topic=causal/"The topic of {text} is"/last,bidirectional-mean', **EXACT
    )
    assert list(models) == ["mean", "topic", "bidirectional-mean"]
    assert len({id(model.embedder.backbone.model) for model in models.values()}) == 1
    assert len({model.group for model in models.values()}) == 3
    for model in models.values():
        alone = Embedder.from_pretrained(pico_folder("llama"), model.embedder.design, **EXACT)  # type: ignore[arg-type]
        assert np.array_equal(model.embedder.encode(TEXTS), alone.encode(TEXTS))
        assert model.dim == alone.dim


@pytest.mark.parametrize("family", ["llama", "olmoe"])
def test_a_saved_embedder_is_served_as_it_was_saved(family: str, pico: Callable[..., Embedder], tmp_path: Path) -> None:
    design = "causal/instruction/mean/zscore" if family == "llama" else "causal/instruction/mean/sum:auto"
    embedder = pico(design, family, max_length=90, instructions={"query": "Find it"}).fit(TEXTS)
    embedder.save_pretrained(tmp_path / "mine")
    models = load_models(str(tmp_path / "mine"), **EXACT)
    assert list(models) == ["mine"]
    served = models["mine"]
    assert served.embedder.max_length == 90
    assert served.instruction(None, "query") == "Find it" and served.instruction(None, "document") is None
    values = [(served.embedder.design, text) for text in served.embedder.prompts.tokenize(TEXTS, "Find it")]
    assert np.allclose(np.stack(models.compute(0, served.group, values)), embedder.encode_query(TEXTS), atol=2e-5)


def test_several_prompts_are_served_as_their_mean(pico_folder: Callable[[str], Path]) -> None:
    models = load_models(
        str(pico_folder("llama")), "both=causal/eol+echo/last,z=causal/eol+echo/last/zscore,causal/eol/last", **EXACT
    )
    assert models["both"].group == models["z"].group != models["causal/eol/last"].group
    texts = [*TEXTS, TEXTS[0]]
    values = [
        (models[name].embedder.design, text) for name in ("both", "z") for text in models[name].embedder.prompts.tokenize(texts)
    ]
    found = np.stack(models.compute(0, models["both"].group, values))
    expected = np.concatenate([np.asarray(models[name].embedder.encode(texts)) for name in ("both", "z")])
    assert np.allclose(found, expected, atol=2e-5)


def test_workers_with_a_core_each_compute_what_one_computes(
    pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_cores", lambda: 2)
    first = pico("causal/plain/mean/zscore")
    models = ServedModels({"mean": first, "whole": first.with_design("bidirectional/plain/last")})
    assert models.workers == 2
    found: dict[tuple[int, str], list[NDArray[np.float32]]] = {}

    def compute(worker: int) -> None:
        for name, model in [*models.items()] * 5:
            values = [(model.embedder.design, text) for text in model.embedder.prompts.tokenize(TEXTS)]
            found[worker, name] = models.compute(worker, model.group, values)

    threads = [threading.Thread(target=compute, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for (_, name), vectors in found.items():
        assert np.allclose(np.stack(vectors), models[name].embedder.encode(TEXTS), atol=2e-5)
    assert len(found) == 4


def test_the_border_of_longrope_counts_in_every_prompt(tokenizer: Any) -> None:
    """In the longer prompt both texts are beyond it, in the shorter one only the second."""
    embedder = Embedder.from_model(
        with_longrope().backbone.model, tokenizer, "causal/eol+plain/last", max_length=4096, batch_tokens=8192
    )
    models = ServedModels({"both": embedder})
    texts = [(embedder.design, text) for text in embedder.prompts.tokenize(["a b" * length for length in (1019, 1029)])]
    lengths = [[len(part.ids) for part in text.parts] for _, text in texts]
    assert lengths[0][0] > 1024 >= lengths[0][1] and lengths[1][1] > 1024
    [group] = {model.group for model in models.values()}
    together = models.compute(0, group, texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(vector, models.compute(0, group, [text])[0], atol=1e-4)
