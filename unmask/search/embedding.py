"""The embedder of an index: noted when the index is made, loaded again for a search, and refused if it has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.encoder import Tally, warn_of_truncation
from unmask.encoding.features import Fit
from unmask.encoding.lexical import Packed
from unmask.encoding.quantization import Precision, finish
from unmask.encoding.shared_prefix import Progress
from unmask.errors import UnmaskError
from unmask.io.seals import load_tensors, save_tensors
from unmask.models.digests import digest_of_tensors
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import dtype_name
from unmask.models.source import Source, lasting_name, without_its_code
from unmask.search.lexical import lexical_design
from unmask.search.queries import Embedded
from unmask.search.record import FIT, EmbedderRecord
from unmask.starter import reference_texts

if TYPE_CHECKING:
    from torch import Tensor

    from unmask.search.vectors import Stored, Vectors

_LOADABLE = ("eager", "sdpa")  # others need their hardware
_TELL = {
    "model": "the model",
    "revision": "the revision of the model",
    "adapters": "the adapters",
    "fingerprint": "the weights of the model",
    "design": "the design",
    "max_length": "the most tokens of a text",
    "dtype": "the precision of the model",
    "instructions": "the instructions",
    "alpha": "the alpha that was fitted",
    "fit": "the fit",
    "tokens": "the tokens of a text",
    "head": "the trained head",
}
"""Fields of the record that vectors depend on, in words."""
_NEWER = ("tokens", "head")
"""Fields that an index of an earlier version does not have."""


def note(embedder: Embedder, model: str, revision: str | None = None, adapters: Sequence[str] = ()) -> EmbedderRecord:
    """What an index keeps of its embedder. model, revision and adapters: as they were given to load it."""
    return EmbedderRecord(
        model=lasting_name(model),
        revision=revision,
        adapters=tuple(map(lasting_name, adapters)),
        fingerprint=identity_of_loaded(embedder.backbone.model).revision,
        design=embedder.design.name,
        max_length=embedder.max_length,
        dtype=dtype_name(embedder.backbone.model),
        attn_implementation=attention_implementation(embedder.backbone.model),
        instructions=embedder.instructions,
        alpha=embedder.fitted.alpha,
        fit=_digest(embedder.fitted.tensors),
        tokens=_digest_of_tokens(embedder),
        head=_digest(embedder.backbone.head.state_dict()) if embedder.backbone.head and embedder.design.needs_head else None,
    )


def difference(before: EmbedderRecord, now: EmbedderRecord) -> str | None:
    """What differs between two embedders, in words; None if their vectors may be compared."""
    for name, told in _TELL.items():
        old, new = getattr(before, name), getattr(now, name)
        if old != new and not (old is None and name in _NEWER):
            return f"{told}: {old!r} then, {new!r} now"
    return None


def load(record: EmbedderRecord, data: Path, *, device: str = "auto", trust_remote_code: bool = False) -> Embedder:
    """The embedder of an index whose data lie in a folder.

    trust_remote_code: run the code of its model, if the user lists the model in UNMASK_TRUST_CODE_OF: only a file names it here. Raises
    UnmaskError for code that is not listed, and if the weights have changed since.
    """
    implementation = record.attn_implementation
    named = Source(record.model, record.revision, trust_remote_code=trust_remote_code)
    embedder = Embedder.from_pretrained(
        record.model,
        record.design,
        adapter=record.adapters,
        revision=record.revision,
        dtype=record.dtype,
        device=device,
        attn_implementation=implementation if implementation in _LOADABLE else None,
        trust_remote_code=without_its_code(named, data.parent).trust_remote_code,
        max_length=record.max_length,
        instructions=record.instructions,
    )
    return require_same(record, with_fit(embedder, record, data))


def require_same(record: EmbedderRecord, embedder: Embedder) -> Embedder:
    """The embedder itself. Raises UnmaskError, saying what differs, if it is not the one that an index was made with."""
    now = note(embedder, record.model, record.revision, record.adapters)
    if (differs := difference(record, now)) is not None:
        raise UnmaskError(
            f"'{record.model}' is not the embedder that the index was made with; what differs is {differs}. "
            "Its vectors cannot be compared. Make the index again in a new folder."
        )
    return embedder


def save_fit(embedder: Embedder, data: Path) -> None:
    """Keep what was fitted beside the vectors."""
    if embedder.fitted.tensors:
        save_tensors(data / FIT, embedder.fitted.tensors)


def with_fit(embedder: Embedder, record: EmbedderRecord, data: Path) -> Embedder:
    """The embedder with the fit of an index, if its design has one."""
    if record.fit is None and record.alpha is None:
        return embedder
    tensors = load_tensors(data / FIT) if (data / FIT).is_file() else {}
    return Embedder(embedder.encoder, embedder.design, instructions=embedder.instructions, fit=Fit(record.alpha, **tensors))


def document_vectors(
    embedder: Embedder,
    texts: Sequence[str],
    precision: Precision,
    lexical: Design | None,
    tally: Tally,
    progress: Progress | None = None,
) -> tuple[Stored, Packed | None]:
    """Vectors of documents as an index stores them, and packed lexical vectors from the same forward passes, if there is a design for them.

    Texts that are cut are counted, and no warning is given.
    """
    fits = {embedder.design: embedder.fitted} | ({lexical: Fit()} if lexical else {})
    vectors = _encoded(embedder, fits, texts, "document", tally, progress)
    return finish(vectors[embedder.design], None, True, precision), vectors[lexical] if lexical else None


def _encoded(
    embedder: Embedder, fits: dict[Design, Fit], texts: Sequence[str], role: str, tally: Tally, progress: Progress | None = None
) -> dict[Design, Vectors]:
    instruction = embedder.instructions.get(role)
    return embedder.encoder.encode(texts, fits, instruction=instruction, tally=tally, progress=progress, share_text=False)


def query_vectors(embedder: Embedder, queries: Sequence[str], lexical: bool) -> Embedded:
    """Vectors of queries, of unit length. lexical: also packed lexical vectors, from the same forward passes."""
    if not lexical:
        return np.asarray(embedder.encode_query(queries, normalize=True, show_progress=False), np.float32), None
    words = lexical_design(embedder.design)
    embedder.backbone.check(words)  # finds the output layer once, before each core has a replica
    tally = Tally()
    vectors = _encoded(embedder, {embedder.design: embedder.fitted, words: Fit()}, queries, "query", tally)
    warn_of_truncation(tally.cut, len(queries), embedder.max_length)
    return np.asarray(finish(vectors[embedder.design], None, True, "float32"), np.float32), vectors[words]


def _digest(tensors: dict[str, Tensor]) -> str | None:
    return digest_of_tensors(tensors) if tensors else None


def _digest_of_tokens(embedder: Embedder) -> str:
    """A short hash of the tokens of the package's sentences in the prompts. That of a tokenizer's file may change with its library."""
    ids = [text.ids for text in embedder.prompts.tokenize(reference_texts())]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
