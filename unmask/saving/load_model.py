"""Loading an encoder: a saved embedder has its own attention and limit; for any other model the attention is stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.designs.design import ATTENTIONS, Attention, Design, plain_attention
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.errors import UnmaskError, unknown
from unmask.models.decoder import body_of
from unmask.models.loading import Source, load_base_language_model, load_decoder, load_language_model, places_of
from unmask.models.source import is_mixture
from unmask.saving.folder import EmbedderSettings, read_saved


def load_encoder(
    source: Source,
    attention: Attention | None = None,
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    predicts: bool = False,
) -> Encoder:
    """Load a model under an attention, with the trained head of a saved embedder. None takes its attention, or its limit of tokens.

    predicts: also load the output layer that predicts tokens (`Encoder.language_model`). Raises UnmaskError if a plain model is given
    without an attention, and AttentionError if the model does not attend as requested.
    """
    if attention is not None and plain_attention(attention) not in ATTENTIONS:
        raise unknown("attention", attention, ATTENTIONS)
    saved = read_saved(source.model, source.revision, source.adapters)
    return load_with(saved, source, attention, max_length=max_length, batch_tokens=batch_tokens, predicts=predicts)


def load_with(
    saved: EmbedderSettings | None,
    source: Source,
    attention: Attention | None,
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    predicts: bool = False,
) -> Encoder:
    """As `load_encoder`, with settings of a saved embedder that have been read already; None for a plain model."""
    if saved is not None:
        source = saved.decoder_of(saved.completed(source))
        attention = attention or Design.parse(saved.design).attention
    if attention is None:
        raise UnmaskError(f"'{source.model}' is not a saved embedder. State its attention: causal or bidirectional.")
    language_model: Any = None
    if predicts:
        folder, adapters = places_of(source)
        load = load_language_model if is_mixture(Path([str(folder), *adapters][-1])) else load_base_language_model
        language_model, tokenizer = load(source)
        decoder = body_of(language_model.eval())
    else:
        decoder, tokenizer = load_decoder(source)
    limit = max_length or (saved.max_length if saved else MAX_LENGTH)
    backbone, head = Backbone(decoder, attention), saved.trained_head(decoder) if saved else None
    return Encoder(backbone.with_head(head) if head else backbone, tokenizer, source, limit, batch_tokens or 0, language_model)
