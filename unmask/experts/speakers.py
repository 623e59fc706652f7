"""Speakers: whatever predicts text, loaded by its folder: a language model, a base with one expert, a mixture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.loading import Source, is_mixture, load_language_model
from unmask.mixture.experts import read_expert
from unmask.mixture.folder import load_mixture
from unmask.mixture.merging import merge_experts
from unmask.models import resolve

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_speaker(source: Source) -> tuple[Any, PreTrainedTokenizerBase]:
    """A model that predicts tokens, and its tokenizer. Raises UnmaskError.

    An expert is folded into its base, which is the base with the expert at full strength.
    """
    folder = Path(resolve(source.model))
    if is_mixture(folder):
        mixture, tokenizer = load_mixture(folder, source)
        return mixture.model.eval(), tokenizer
    if (folder / "adapter_config.json").is_file():
        expert = read_expert(folder)
        if not expert.base:
            raise UnmaskError(f"'{source.model}' does not say which base model it belongs to.")
        model, tokenizer = load_language_model(replace(source, model=expert.base))
        return merge_experts(model, [expert], "linear", weights=[1.0]).eval(), tokenizer
    model, tokenizer = load_language_model(source)
    return model.eval(), tokenizer
