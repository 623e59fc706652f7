"""Chunk vectors: documents in, one vector for each chunk out, for all designs that share a forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.designs.design import Design
from unmask.encoding.chunking import Chunking, Span
from unmask.encoding.encoder import Encoder, Tally
from unmask.encoding.features import Fit
from unmask.encoding.late_chunking import require_late, windows
from unmask.encoding.quantization import AnyVectors
from unmask.encoding.several_prompts import DesignTokenizer
from unmask.encoding.tokenization import TokenizedText
from unmask.io.terminal import progress_bar


@dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of documents, in order, and their vectors.

    documents: the place of each chunk's document in the list that was given. starts, ends: characters, document[start:end]. vectors:
    shape (chunk, dim).
    """

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    vectors: AnyVectors

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.documents)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The number of each chunk within its document, from 0."""
        return np.arange(len(self)) - np.searchsorted(self.documents, self.documents)

    def texts(self, documents: Sequence[str]) -> list[str]:
        """The text of each chunk. documents: those that were given."""
        rows = zip(self.documents.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True)
        return [documents[document][start:end] for document, start, end in rows]


@dataclass(frozen=True)
class ChunkedDocument:
    """The chunks of a document, and what the model reads for them: texts with one vector for each chunk, in order."""

    spans: list[Span]
    texts: list[TokenizedText]


def chunk_document(
    tokenizer: DesignTokenizer, document: str, chunking: Chunking, causal: bool, instruction: str | None = None
) -> ChunkedDocument:
    """Split a document, and tokenize each chunk, or with `late` the whole document. causal: whether the model reads it so."""
    spans = chunking.split(tokenizer.tokenizer, document)
    if chunking.late:
        [prompt] = tokenizer.parts
        return ChunkedDocument(spans, list(windows(prompt, document, spans, causal, instruction)))
    return ChunkedDocument(spans, list(tokenizer.tokenize([document[start:end] for start, end in spans], instruction)))


def encode_chunks(
    encoder: Encoder,
    designs: Mapping[Design, Fit],
    documents: Sequence[str],
    chunking: Chunking,
    *,
    instruction: str | None = None,
    tally: Tally | None = None,
    show_progress: bool | None = False,
) -> dict[Design, Chunks]:
    """The chunks of all documents, with the vectors of every design. All designs share the same forward passes.

    The vector of a chunk is that of its text alone; with `late`, that of its tokens in the document. tally: counts documents; one with a
    chunk that was cut counts as cut. Raises UnmaskError for chunks that leave no room for the prompt, and for a design that cannot chunk
    late, before anything is computed; for a vector that is not finite, it names the document.
    """
    check_chunking(encoder, designs, chunking, instruction)
    forward = encoder.forward_pass(designs)
    tokenizer, causal = forward.tokenizer, forward.backbone.attention == "causal"
    chunked = [chunk_document(tokenizer, document, chunking, causal, instruction) for document in documents]
    owners, numbers = _repeated([one.spans for one in chunked]), _repeated([one.texts for one in chunked])
    starts, ends = np.array([span for one in chunked for span in one.spans], np.int64).reshape(-1, 2).T
    texts = [text for one in chunked for text in one.texts]
    mine = Tally()
    with progress_bar("embedding", len(texts), show_progress) as advance:
        vectors = encoder.encode_tokenized(texts, designs, names=numbers.tolist(), tally=mine, progress=advance)
    if tally is not None:
        _add(tally, mine, len(documents), sorted({int(numbers[place]) for place in mine.cut}))
    return {design: Chunks(owners, starts, ends, rows) for design, rows in vectors.items()}


def _repeated(parts: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    """The place of each document, once for each of its parts."""
    return np.repeat(np.arange(len(parts)), np.array([len(part) for part in parts], np.int64))


def _add(tally: Tally, chunks: Tally, documents: int, cut: Sequence[int]) -> None:
    """Count documents where chunks were counted."""
    tally.cut += [tally.texts + document for document in cut]
    tally.texts += documents
    tally.truncated += len(cut)
    tally.tokens += chunks.tokens
    tally.padded += chunks.padded


def check_chunking(encoder: Encoder, designs: Iterable[Design], chunking: Chunking, instruction: str | None = None) -> None:
    """Raise UnmaskError for chunks that leave no room for the prompt, and for a design that cannot chunk late."""
    for design in designs:
        tokenizer = encoder.prompt_tokenizer(design.prompt)
        chunking.require_room(tokenizer, instruction)
        if chunking.late:
            design.require_one_prompt("Late chunking")
            [prompt] = tokenizer.parts
            require_late(design, prompt, encoder.backbone.head, instruction)
