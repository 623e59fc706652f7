"""The embedder of an index: described when the index is made, loaded again for a search, and refused if it has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.embedder import Embedder
from unmask.encoding.encoder import Tally
from unmask.encoding.features import Fit
from unmask.encoding.quantization import finish
from unmask.encoding.shared_prefix import Progress
from unmask.encoding.tokenization import digest_of_tokens
from unmask.errors import UnmaskError
from unmask.models.digests import digest_of_tensors
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import dtype_name
from unmask.models.source import Source, lasting_name, without_its_code
from unmask.search.record import EmbedderRecord

FIT = "fit.safetensors"
_LOADABLE = ("eager", "sdpa")  # other implementations need their hardware
_DIFFERENCES = {
    "weights": "the weights of the model",
    "head": "the trained head",
    "design": "the design",
    "max_length": "the maximum length",
    "dtype": "the precision of the model",
    "instructions": "the instructions",
    "tokens": "the tokenization",
    "fit": "the fit",
}
"""Fields of the record that vectors depend on, in words."""


def embedder_record(embedder: Embedder, model: str, revision: str | None, adapters: Sequence[str]) -> EmbedderRecord:
    """The record of an embedder. model, revision and adapters: as they were given to load it."""
    head, fit = embedder.backbone.head, embedder.fitted
    return EmbedderRecord(
        model=lasting_name(model),
        revision=revision,
        adapters=tuple(map(lasting_name, adapters)),
        attn_implementation=attention_implementation(embedder.backbone.model),
        dtype=dtype_name(embedder.backbone.model),
        design=embedder.design.name,
        max_length=embedder.max_length,
        instructions=embedder.instructions,
        weights=identity_of_loaded(embedder.backbone.model).revision,
        tokens=digest_of_tokens(embedder.prompts),
        head=digest_of_tensors(head.state_dict()) if head and embedder.design.needs_head else None,
        fit=None if fit == Fit() else f"{digest_of_tensors(fit.tensors) if fit.tensors else ''} {fit.alpha}".strip(),
    )


def require_same_embedder(record: EmbedderRecord, embedder: Embedder) -> Embedder:
    """The embedder itself. Raises UnmaskError, naming the difference, if it is not the one that the index was made with."""
    now = embedder_record(embedder, record.model, record.revision, record.adapters)
    for name, phrase in _DIFFERENCES.items():
        before, after = getattr(record, name), getattr(now, name)
        if before != after:
            raise UnmaskError(
                f"The index was made with another embedder; what differs is {phrase}: {before!r} then, {after!r} now. Vectors of the two "
                "cannot be compared: load the embedder as it was, or make an index in another folder."
            )
    return embedder


def load_embedder(record: EmbedderRecord, data: Path, *, device: str = "auto", trust_remote_code: bool = False) -> Embedder:
    """The embedder of an index with its data in a folder.

    trust_remote_code: takes effect only if UNMASK_TRUST_CODE_OF lists the model, since its name comes from the index and not from the user.
    Raises UnmaskError for code that is not listed, and if the weights have changed since.
    """
    source = Source(record.model, record.revision, trust_remote_code=trust_remote_code)
    embedder = Embedder.from_pretrained(
        record.model,
        record.design,
        adapter=record.adapters,
        revision=record.revision,
        dtype=record.dtype,
        device=device,
        attn_implementation=record.attn_implementation if record.attn_implementation in _LOADABLE else None,
        trust_remote_code=without_its_code(source, data.parent).trust_remote_code,
        max_length=record.max_length,
        instructions=record.instructions,
    )
    return require_same_embedder(record, with_stored_fit(embedder, record, data))


def store_fit(embedder: Embedder, data: Path) -> None:
    """Save what was fitted, if anything was, next to the vectors."""
    if embedder.fitted != Fit():
        embedder.fitted.save(data / FIT)


def with_stored_fit(embedder: Embedder, record: EmbedderRecord, data: Path) -> Embedder:
    """The embedder with the fit of an index, if the index has one."""
    if record.fit is None:
        return embedder
    return Embedder(embedder.encoder, embedder.design, instructions=embedder.instructions, fit=Fit.load(data / FIT))


def document_vectors(
    embedder: Embedder, texts: Sequence[str], tally: Tally, progress: Progress | None = None
) -> NDArray[np.float32]:
    """Vectors of documents, of unit length. Truncated texts are counted, without a warning."""
    fits, instruction = {embedder.design: embedder.fitted}, embedder.instructions.get("document")
    vectors = embedder.encoder.encode(texts, fits, instruction=instruction, tally=tally, progress=progress)
    return np.asarray(finish(vectors[embedder.design], None, True, "float32"), np.float32)
