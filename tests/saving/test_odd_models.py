"""Models and tokenizers that are unlike others: saved, they give the vectors that they gave before, here and in sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TEXTS, make_tokenizer
from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.starter import reference_texts

SPACES = [" ", "\n", " \t "]


def reloaded(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


def rwkv() -> Any:
    """Its forward pass divides the weights of its later layers, once."""
    from transformers import RwkvConfig, RwkvModel

    config = RwkvConfig(
        vocab_size=512, hidden_size=32, attention_hidden_size=32, intermediate_size=64, num_hidden_layers=4, rescale_every=2
    )
    return RwkvModel(config)


def test_weights_that_a_forward_pass_divides_are_saved_undivided(tmp_path: Path) -> None:
    embedder = Embedder.from_model(rwkv(), make_tokenizer(), "causal/plain/mean")
    before = embedder.encode(TEXTS)
    embedder.save_pretrained(tmp_path / "saved")
    assert np.array_equal(embedder.encode(TEXTS), before), "the model in memory stays as it was"
    assert np.array_equal(Embedder.from_pretrained(tmp_path / "saved").encode(TEXTS), before)


def word_piece() -> Any:
    """A tokenizer that makes no token of a space."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    backend.train_from_iterator(
        reference_texts(), trainers.WordPieceTrainer(vocab_size=512, special_tokens=special, show_progress=False)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize("tokenizer", [word_piece, make_tokenizer])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_texts_of_spaces_have_the_same_vector_in_sentence_transformers(pooling: str, tokenizer: Any, tmp_path: Path) -> None:
    embedder = Embedder.from_model(FAMILIES["llama"].build(), tokenizer(), f"causal/plain/{pooling}")
    embedder.save_pretrained(tmp_path / "saved")
    assert "unmask" not in (tmp_path / "saved/modules.json").read_text(), "its own modules read this design"
    texts = [*SPACES, "", *TEXTS]
    np.testing.assert_allclose(reloaded(tmp_path / "saved").encode(texts), embedder.encode(texts), atol=1e-5)
