"""Speakers: whatever predicts text, loaded by its folder: a language model, a base with one expert, a mixture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.mixture.experts import read_expert
from unmask.mixture.folder import load_mixture
from unmask.mixture.merging import merge_experts
from unmask.models.loading import Source, base_of, load_language_model
from unmask.models.source import adapter_folder, is_adapter, is_mixture, place_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_speaker(source: Source) -> tuple[Any, PreTrainedTokenizerBase]:
    """A model that predicts tokens, and its tokenizer. Raises UnmaskError.

    A base, and an expert or a mixture of it, may be named apart, as model and adapter. An expert is folded into its base, which is
    the base with the expert at full strength.
    """
    folder = Path(adapter_folder(source.adapter) if source.adapter else place_of(source))
    if is_mixture(folder):
        mixture, tokenizer = load_mixture(folder, source)
        return mixture.model.eval(), tokenizer
    if is_adapter(folder):
        expert = read_expert(folder)
        model, tokenizer = load_language_model(replace(source, adapter=None) if source.adapter else base_of(folder, source))
        return merge_experts(model, [expert], "linear", weights=[1.0]).eval(), tokenizer
    model, tokenizer = load_language_model(source)
    return model.eval(), tokenizer
