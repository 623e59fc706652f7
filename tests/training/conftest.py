"""Models on disk: a pico language model with the head that stages on tokens need, and a teacher."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import make_tokenizer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers and 32 dimensions with its language-model head, and a tokenizer."""
    from unmask.models.bundled import write_pico

    folder = tmp_path_factory.mktemp("pico")
    write_pico(folder)
    return folder / "converted"


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers model of 16 dimensions: the mean of one random vector for each token."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(0)
    tokens = StaticEmbedding(make_tokenizer().backend_tokenizer, embedding_dim=16)
    SentenceTransformer(modules=[tokens], device="cpu").save(str(folder))
    return folder
