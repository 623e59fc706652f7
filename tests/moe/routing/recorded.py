"""Small models with routers, labelled texts, and a record of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.families import FAMILIES
from tests.moe.mixture.models import language_model, saved_experts
from tests.tiny import TOPICS, tagged, write_rows
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.models.loading import Source
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture
from unmask.moe.routing.labelled_texts import LabelledText, LabelledTexts

NATIVE = (
    "olmoe", "mixtral", "qwen2-moe", "qwen3-moe", "deepseek-v2", "deepseek-v3", "granitemoe", "gpt-oss", "phimoe", "glm4-moe",
)  # fmt: skip


def native(family: str, tokenizer: Any) -> Encoder:
    return Encoder(Backbone(FAMILIES[family].build(), "causal"), tokenizer, Source("pico"))


def ours(folder: Path, tokenizer: Any, routing: Routing | None = None, family: str = "llama") -> Encoder:
    """A mixture of three experts whose routers are not flat."""
    model = language_model(family, vocab_size=512, max_position_embeddings=512)
    mixture = Mixture(model, saved_experts(folder, model), routing or Routing(top_k=2))
    torch.manual_seed(1)
    for router in mixture.routers.values():
        torch.nn.init.normal_(router.weight, std=0.5)
    return Encoder(Backbone(mixture.body, "causal"), tokenizer, Source("pico"))


def topical(number: int = 12) -> LabelledTexts:
    """Texts of two topics and of two sizes."""
    texts = []
    for place in range(number):
        topic = list(TOPICS)[place % 2]
        words = TOPICS[topic].split()
        size = "long" if place % 3 == 0 else "short"
        text = " ".join(words[(place + step) % 6] for step in range(9 if size == "long" else 4))
        texts.append(LabelledText(text, (topic, size)))
    return LabelledTexts(tuple(texts), ("topic", "size"), (), ("made",))


def of_words(number: int = 10) -> LabelledTexts:
    """Sentences with a tag for each word."""
    rows = tagged(0, number)
    texts = [LabelledText(" ".join(row["tokens"]), (), tuple(row["tokens"]), (tuple(row["tags"]),)) for row in rows]
    return LabelledTexts(tuple(texts), (), ("tags",), ("made",))


def texts_file(folder: Path) -> Path:
    """A file of 24 topical texts."""
    rows = [{"text": text.text, "topic": text.values[0], "size": text.values[1]} for text in topical(24).texts]
    return write_rows(folder / "texts.jsonl", rows)
