"""Loading a model under an attention: a saved embedder has its own attention and limit, for any other model the attention is stated."""

from __future__ import annotations

from pathlib import Path

from unmask.designs.design import ATTENTIONS, Attention, Design
from unmask.encoding.backbone import Backbone
from unmask.encoding.loaded_model import LoadedModel
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.errors import UnmaskError, unknown
from unmask.models.decoder import body_of
from unmask.models.loading import Source, load_base_language_model, load_decoder, load_language_model, places_of
from unmask.models.source import is_mixture
from unmask.saving.folder import read_saved


def load_model(source: Source, attention: Attention | None = None) -> LoadedModel:
    """Load a model with an attention; None takes the attention of a saved embedder.

    Raises UnmaskError if a plain model is given without an attention, and AttentionError if the model does not obey.
    """
    source, attention, limit = _completed(source, attention)
    model, tokenizer = load_decoder(source)
    return LoadedModel(Backbone(model, attention), tokenizer, source, max_length=limit)


def load_predicting_model(source: Source, attention: Attention | None = None) -> LoadedModel:
    """As load_model, with the output layer that predicts tokens. Raises UnmaskError also for a model that was saved without it."""
    source, attention, limit = _completed(source, attention)
    folder, adapters = places_of(source)
    load = load_language_model if is_mixture(Path([str(folder), *adapters][-1])) else load_base_language_model
    model, tokenizer = load(source)
    return LoadedModel(Backbone(body_of(model), attention), tokenizer, source, model.eval(), limit)


def _completed(source: Source, attention: Attention | None) -> tuple[Source, Attention, int]:
    """The source, the attention and the limit of tokens, with a saved embedder's values where none were given."""
    if attention is not None and attention not in ATTENTIONS:
        raise unknown("attention", attention, ATTENTIONS)
    saved = read_saved(source.model, source.revision, source.adapters)
    if saved is not None:
        source = saved.completed(source)
        attention = attention or Design.parse(saved.design).attention
    if attention is None:
        raise UnmaskError(f"'{source.model}' is not a saved embedder. State its attention: causal or bidirectional.")
    return source, attention, saved.max_length if saved else MAX_LENGTH
