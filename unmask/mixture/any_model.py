"""Loading any model: a plain one, one with an adapter or an expert, or a mixture of LoRA experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.mixture.expert_folder import read_expert
from unmask.mixture.merging import merge_experts
from unmask.mixture.mixture_folder import load_mixture
from unmask.models.identity import note_source
from unmask.models.loading import base_of, load_decoder, load_language_model, load_tokenizer, own_tokenizer, places_of
from unmask.models.source import Source, adapter_folder, below, is_adapter, is_mixture, place_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_any_decoder(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The decoder without its language-model head, on its device, and its tokenizer. Raises UnmaskError."""
    folder, adapters = places_of(source)
    if is_mixture(folder):
        if adapters:
            raise UnmaskError(f"'{source.model}' is a mixture, and an adapter would change its base under its experts.")
    elif not any(is_mixture(Path(adapter)) for adapter in adapters):
        return load_decoder(source)
    mixture, tokenizer = load_mixture(_folder_of(source), source)
    return note_source(mixture.body, source, mixture.source), tokenizer


def load_any_language_model(source: Source) -> tuple[Any, PreTrainedTokenizerBase]:
    """A model that predicts tokens, and its tokenizer. Raises UnmaskError.

    The source names a language model, an expert or a mixture. It may also name a base model, with the expert or the mixture as its
    adapter. An expert is merged into its base at full strength.
    """
    folder = _folder_of(source)
    if is_mixture(folder):
        mixture, tokenizer = load_mixture(folder, source)
        note_source(mixture.body, source, mixture.source)
        return mixture.model.eval(), tokenizer
    if is_adapter(folder):
        expert, own = read_expert(folder), own_tokenizer(folder, source)
        model, tokenizer = load_language_model(replace(source, adapters=()) if source.adapters else base_of(folder, source))
        return merge_experts(model, [expert], "linear", weights=[1.0]).eval(), tokenizer if own is None else own
    model, tokenizer = load_language_model(source)
    return model.eval(), tokenizer


def tokenizer_of(source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer that `load_any_language_model` gives, without the model: that in an expert's or mixture's folder, or its base's."""
    folder = _folder_of(source)
    own = own_tokenizer(folder, source)
    return load_tokenizer(source if source.adapters else below(folder, source) or source) if own is None else own


def _folder_of(source: Source) -> Path:
    if len(source.adapters) > 1:
        raise UnmaskError(
            f"Here a model takes one adapter or mixture, not {source.adapter_names}. Save them merged first "
            "(Embedder.from_pretrained(MODEL, adapter=[...]).save_pretrained(FOLDER)), or give one."
        )
    return Path(adapter_folder(source.adapters[0]) if source.adapters else place_of(source))
