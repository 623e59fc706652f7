"""Loading any model: a plain decoder, one with an adapter, or a mixture of LoRA experts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unmask.errors import UnmaskError
from unmask.mixture.folder import load_mixture
from unmask.models.identity import note_source
from unmask.models.loading import load_decoder, places_of
from unmask.models.source import Source, is_mixture

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load(source: Source) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The decoder without its language-model head, on its device, and its tokenizer. Raises UnmaskError."""
    folder, adapter = places_of(source)
    if is_mixture(folder):
        if adapter:
            raise UnmaskError(f"'{source.model}' is a mixture, and an adapter would change its base under its experts.")
    elif not (adapter and is_mixture(Path(adapter))):
        return load_decoder(source)
    mixture, tokenizer = load_mixture(Path(adapter or folder), source)
    return note_source(mixture.body, source, mixture.source), tokenizer
