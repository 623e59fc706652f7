"""Pico models, loaded: what every probe's tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.families import FAMILIES
from unmask.designs.design import Attention
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.models.decoder import body_of
from unmask.models.loading import Source


def pico_model(tokenizer: Any, attention: Attention = "bidirectional", family: str = "llama", **options: Any) -> Encoder:
    return Encoder(Backbone(FAMILIES[family].build(**options), attention), tokenizer, Source("pico"))


def language_model(tied: bool) -> Any:
    """A pico language model with its head, all weights large enough that they matter."""
    from transformers import AutoModelForCausalLM

    config = FAMILIES["llama"].build().config
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.15)
    model.tie_weights()
    return model.eval()


def predicting(tokenizer: Any, attention: Attention = "bidirectional") -> Encoder:
    model = language_model(tied=True)
    return Encoder(Backbone(body_of(model), attention), tokenizer, Source("pico"), language_model=model)


def saved_language_model(folder: Path, tokenizer: Any, tied: bool = True) -> Path:
    language_model(tied).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
