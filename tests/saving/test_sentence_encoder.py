"""A model that sentence-transformers saved gives, without a design, the vectors of sentence-transformers; or it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_tokenizer
from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.bundled import BUNDLED, resolve
from unmask.models.source import Source
from unmask.saving.load_model import load_encoder

TEXTS = ["A man plays a guitar.", "", " ", "one\ntwo", "many words " * 60, "ü 🎉 日本"]
PROMPTS = {"query": "Instruct: find it\nQuery:", "document": ""}


def bert() -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    return BertModel(config)


def decoder(kind: str) -> Any:
    """As published: Qwen3 causal, with EOS and a chat template; Mistral with a window; Gemma 3, whose config makes it bidirectional."""
    family = {"Qwen3-Embedding": "qwen3", "E5-Mistral": "mistral-sliding", "EmbeddingGemma": "gemma3", "LLM2Vec": "llama"}[kind]
    changes = {"use_bidirectional_attention": True} if kind == "EmbeddingGemma" else {}
    model = replace(FAMILIES[family], changes={**FAMILIES[family].changes, **changes}).build()
    if kind == "LLM2Vec":
        model.config.is_causal = False
    return model


def with_special_tokens(template: str) -> Any:
    """A tokenizer that puts special tokens around a text itself, as those of encoders and of Qwen3-Embedding do."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tokenizer()
    if template.startswith("<s>"):
        tokenizer.chat_template = None
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=ids)
    return tokenizer


def saved(
    folder: Path, kind: str, pooling: str, *more: Any, prompts: dict[str, str] | None = None, subfolder: bool = False
) -> Any:
    """A model of sentence-transformers, as published: an encoder, or a decoder whose tokenizer ends every text."""
    from sentence_transformers import SentenceTransformer, models

    model = bert() if kind == "bert" else decoder(kind)
    parts = folder.with_name(f"{folder.name}-parts")
    model.save_pretrained(parts)
    with_special_tokens("$A </s>" if kind == "Qwen3-Embedding" else "<s> $A </s>").save_pretrained(parts)
    transformer = models.Transformer(str(parts), max_seq_length=48)
    trained = SentenceTransformer(modules=[transformer, models.Pooling(64, pooling), *more], prompts=prompts, device="cpu")
    trained.save(str(folder))
    # as published: what sentence-transformers 6 would add makes a chat of every text if the tokenizer has a template
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": False}))
    if subfolder:  # where older versions saved the transformer
        modules = json.loads((folder / "modules.json").read_text())
        names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"}
        (folder / "0_Transformer").mkdir()
        for name in names:
            (folder / name).rename(folder / "0_Transformer" / name)
        modules[0]["path"] = "0_Transformer"
        (folder / "modules.json").write_text(json.dumps(modules))
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        *[("bert", pooling) for pooling in ("cls", "mean", "max")],
        *[("Qwen3-Embedding", pooling) for pooling in ("lasttoken", "weightedmean")],
        ("E5-Mistral", "lasttoken"),
        ("LLM2Vec", "mean"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*were cut|.*was cut")
def test_it_gives_the_vectors_of_sentence_transformers(kind: str, pooling: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer, models

    trained = saved(tmp_path / "trained", kind, pooling, models.Normalize(), prompts=PROMPTS, subfolder=pooling == "cls")
    embedder = Embedder.from_pretrained(tmp_path / "trained")
    assert embedder.max_length == 48
    loaded = load_encoder(Source(str(tmp_path / "trained")))  # as probes and comparisons load it
    assert (loaded.backbone.attention, loaded.max_length) == (embedder.design.attention, 48)
    np.testing.assert_allclose(embedder.encode(TEXTS, normalize=True), trained.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(embedder.encode_query(TEXTS, normalize=True), trained.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(embedder.encode_document(TEXTS, normalize=True), trained.encode_document(TEXTS), atol=1e-5)
    embedder.save_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(Embedder.from_pretrained(tmp_path / "saved").encode(TEXTS), embedder.encode(TEXTS))
    assert "unmask" not in (tmp_path / "saved" / "modules.json").read_text()
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode_query(TEXTS, normalize_embeddings=True), trained.encode_query(TEXTS), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*were cut|.*was cut")
def test_linear_layers_after_the_pooling_are_part_of_the_design(tmp_path: Path) -> None:
    """As EmbeddingGemma has them: two, wider in between, and the last without a bias."""
    from sentence_transformers import SentenceTransformer, models

    identity = torch.nn.Identity()
    layers = [
        models.Dense(64, 96, activation_function=identity),
        models.Dense(96, 24, bias=False, activation_function=identity),
    ]
    trained = saved(tmp_path / "trained", "EmbeddingGemma", "mean", *layers, models.Normalize(), prompts=PROMPTS)
    embedder = Embedder.from_pretrained(tmp_path / "trained")
    assert embedder.design.name == "bidirectional/full-instruction/mean/dense" and embedder.dim == 24
    np.testing.assert_allclose(embedder.encode_query(TEXTS, normalize=True), trained.encode_query(TEXTS), atol=1e-5)
    embedder.save_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(Embedder.from_pretrained(tmp_path / "saved").encode(TEXTS), embedder.encode(TEXTS))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode_query(TEXTS, normalize_embeddings=True), trained.encode_query(TEXTS), atol=1e-5)
    with pytest.raises(UnmaskError, match="comes with a trained model"):
        embedder.fit(["a", "b"])


def test_what_no_design_expresses_is_refused_unless_a_design_is_named(tmp_path: Path) -> None:
    from sentence_transformers import models

    saved(tmp_path / "dense", "bert", "mean", models.Dense(64, 8))
    with pytest.raises(UnmaskError, match=r"its Dense module has the activation torch.nn.modules.activation.Tanh. To read"):
        Embedder.from_pretrained(tmp_path / "dense")
    assert Embedder.from_pretrained(tmp_path / "dense", "bidirectional/full/mean").encode(["a"]).shape == (1, 64)
    (tmp_path / "dense" / "sentence_bert_config.json").write_text(json.dumps({"modality_config": {"message": {}}}))
    (tmp_path / "dense" / "modules.json").write_text(
        json.dumps(json.loads((tmp_path / "dense" / "modules.json").read_text())[:2])
    )
    assert Embedder.from_pretrained(tmp_path / "dense").dim == 64, "without a template, texts are plain"
    (tmp_path / "dense" / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UnmaskError, match="it makes a chat of each text"):
        Embedder.from_pretrained(tmp_path / "dense")
    saved(tmp_path / "sums", "bert", "mean_sqrt_len_tokens")
    with pytest.raises(UnmaskError, match="it pools by mean_sqrt_len_tokens"):
        Embedder.from_pretrained(tmp_path / "sums")


@pytest.mark.real
@pytest.mark.skipif(not BUNDLED["minilm"].installed, reason=BUNDLED["minilm"].install_command)
def test_the_bundled_encoder_can_be_used_like_any_model() -> None:
    from sentence_transformers import SentenceTransformer

    texts = TEXTS[:4]
    expected = SentenceTransformer(resolve("minilm"), device="cpu").encode(texts)
    np.testing.assert_allclose(Embedder.from_pretrained("minilm").encode(texts, normalize=True), expected, atol=1e-5)
