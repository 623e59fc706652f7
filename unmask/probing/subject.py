"""The subject of a probe: a loaded decoder under a stated attention, its tokenizer, and where both come from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.designs.design import ATTENTIONS, Attention, Design
from unmask.embedder import MAX_LENGTH
from unmask.encoding.backbone import Backbone
from unmask.errors import UnmaskError, unknown
from unmask.mixture.loading import load
from unmask.models.decoder import body_of
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import Source, dtype_name, load_language_model
from unmask.models.provenance import hardware, versions
from unmask.saving.folder import read_settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Subject:
    """What is probed. head: the whole language model, where the probe needs its predictions."""

    backbone: Backbone
    tokenizer: PreTrainedTokenizerBase
    source: Source
    head: Any = None
    max_length: int = MAX_LENGTH

    def limit(self, asked: int | None) -> int:
        """Most tokens of one text: as asked, else a saved embedder's own, else 512."""
        return asked or self.max_length

    @property
    def provenance(self) -> dict[str, Any]:
        """Everything about the model that a result depends on."""
        return provenance(self.backbone, self.source) | {"attention": self.backbone.attention}


def provenance(backbone: Backbone, source: Source) -> dict[str, Any]:
    """Where a model comes from, how it attends, and what computed."""
    identity = identity_of_loaded(backbone.model)
    return {
        **asdict(source),
        "attn_implementation": attention_implementation(backbone.model),
        "dtype": dtype_name(backbone.model),
        "weights": identity.revision,
        "identity": identity.as_json(),
        "proof": backbone.proof.summary,
        "hardware": hardware(backbone.device),
        "versions": versions(),
    }


def load_subject(source: Source, attention: Attention | None = None) -> Subject:
    """The decoder of a model under an attention; a saved embedder's own if none is given.

    Raises UnmaskError if a plain model is given without an attention, and AttentionError if it does not obey.
    """
    source, attention, limit = _settle(source, attention)
    model, tokenizer = load(source)
    return Subject(Backbone(model, attention), tokenizer, source, max_length=limit)


def load_predicting(source: Source, attention: Attention | None = None) -> Subject:
    """As load_subject, with the language-model head. Raises UnmaskError also for a model whose head was not saved with it."""
    source, attention, limit = _settle(source, attention)
    model, tokenizer = load_language_model(source)
    return Subject(Backbone(body_of(model), attention), tokenizer, source, model.eval(), limit)


def _settle(source: Source, attention: Attention | None) -> tuple[Source, Attention, int]:
    """Fill in from a saved embedder what was not given."""
    if attention is not None and attention not in ATTENTIONS:
        raise unknown("attention", attention, ATTENTIONS)
    saved = read_settings(Path(source.model).expanduser())
    if saved is not None:
        source = saved.completed(source)
    if attention is None and saved is not None:
        attention = Design.parse(saved.design).attention
    if attention is None:
        raise UnmaskError(f"'{source.model}' is no saved embedder, so its attention has to be stated: causal or bidirectional.")
    return source, attention, saved.max_length if saved else MAX_LENGTH


def fingerprint_of(parts: Sequence[str]) -> str:
    """A short hash of data as used, so that two results can be known to be of the same."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()[:16]
