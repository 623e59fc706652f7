"""Document encoder: documents in, a block of a vector file out. This is the one place where a document becomes its vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.bulk.documents import DeadLetter, Document, dead_letter
from unmask.bulk.job import Job
from unmask.bulk.vector_writers import Block, Layout
from unmask.encoding.chunking import ChunkedDocument, check_chunking, chunk_document
from unmask.encoding.encoder import Tally
from unmask.encoding.forward_pass import not_finite, remedy_for
from unmask.encoding.quantization import PrecisionLoss, finish, measure_loss, normalized, sample_rows
from unmask.encoding.tokenization import Span
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.embedder import Embedder


@dataclass
class Counts:
    """What was done: rows read, vectors written, dead letters, texts cut to the limit, tokens computed, and tokens with padding."""

    rows: int = 0
    vectors: int = 0
    dead_letters: int = 0
    truncated: int = 0
    tokens: int = 0
    padded: int = 0

    def add(self, counts: Counts) -> None:
        """Add other counts to these."""
        for name, value in vars(counts).items():
            setattr(self, name, getattr(self, name) + value)

    def minus(self, counts: Counts) -> Counts:
        """The difference to other counts."""
        return Counts(**{name: value - getattr(counts, name) for name, value in vars(self).items()})

    def negative(self) -> Counts:
        """What takes these counts away again."""
        return Counts().minus(self)


@dataclass(frozen=True)
class Encoded:
    """What came of documents: rows for a file of vectors, and dead letters. cut: rows whose texts were cut; loss: of the precision."""

    block: Block
    dead: list[DeadLetter]
    counts: Counts
    cut: list[int]
    loss: PrecisionLoss | None = None


class DocumentEncoder:
    """Encodes documents with the options of a job. dim: dimensions of a vector; layout: what a file of vectors holds.

    Raises UnmaskError for options that the embedder cannot serve. In a folder of vectors, the bits of a vector do not depend on the number
    of cores, so that any machine can do any shard.
    """

    def __init__(self, embedder: Embedder, job: Job) -> None:
        self.embedder, self.job = embedder, job
        width, dtype = _sparse_shape(embedder, job) if embedder.design.is_sparse else _dense_shape(embedder, job)
        list(embedder.prompts.tokenize(["a " * embedder.max_length], job.instruction))  # is there room for a text?
        if job.chunking:
            check_chunking(embedder.encoder, [embedder.design], job.chunking, job.instruction)
        self.dim = width * 8 if job.precision == "binary" else width  # a byte holds eight
        self.layout = Layout(width, dtype, job.keep, chunked=job.chunking is not None, sparse=embedder.design.is_sparse)

    def encode(self, documents: Sequence[Document], progress: Callable[[Counts], None] | None = None) -> Encoded:
        """The vectors of documents, in their order. Equal texts are computed once.

        progress: called after every batch with the counts since its last call; they add up to the counts of the result.
        """
        chunked, reasons = self._tokenize([document.text for document in documents])
        tally = Tally()
        texts = [text for document in chunked if document is not None for text in document.texts]
        reported, texts_done = Counts(), 0

        def advance(more_texts: int) -> None:
            nonlocal texts_done
            texts_done += more_texts
            rows = len(documents) * texts_done // len(texts)
            delta = Counts(rows, tokens=tally.tokens, padded=tally.padded).minus(reported)
            reported.add(delta)
            if progress:
                progress(delta)

        vectors = self.embedder.encoder.encode_tokenized(
            texts,
            {self.embedder.design: self.embedder.fitted},
            tally=tally,
            progress=advance,
            fixed_batches=self.job.to_folder,
            allow_nan=True,
        )[self.embedder.design]
        encoded = self._finish(documents, chunked, reasons, vectors, tally)
        if progress:
            progress(encoded.counts.minus(reported))
        return encoded

    def _tokenize(self, texts: Sequence[str]) -> tuple[list[ChunkedDocument | None], dict[int, str]]:
        """The tokens of each text, or None and the reason if the tokenizer cannot take it."""
        try:
            return [*self._chunked(texts)], {}
        except Exception:  # one text spoils it for all, so each is tried alone
            chunked: list[ChunkedDocument | None] = []
            refused = {}
            for index, text in enumerate(texts):
                try:
                    chunked += self._chunked([text])
                except Exception as error:
                    chunked.append(None)
                    refused[index] = str(error) if isinstance(error, UnmaskError) else f"the tokenizer fails: {error}"
            return chunked, refused

    def _chunked(self, texts: Sequence[str]) -> Iterator[ChunkedDocument]:
        """What the model reads of each text. A text that is not split is one chunk."""
        prompt, chunking = self.embedder.prompts, self.job.chunking
        if chunking is None:
            for text, tokens in zip(texts, prompt.tokenize(texts, self.job.instruction), strict=True):
                yield ChunkedDocument([(0, len(text))], [tokens])
            return
        causal = self.embedder.backbone.attention == "causal"
        for text in texts:
            yield chunk_document(prompt, text, chunking, causal, self.job.instruction)

    def _finish(
        self,
        documents: Sequence[Document],
        chunked: Sequence[ChunkedDocument | None],
        reasons: dict[int, str],
        vectors: NDArray[np.float32],
        tally: Tally,
    ) -> Encoded:
        rows = _rows(chunked)
        bad_rows = set(not_finite(vectors))
        for index, own_rows in rows.items():
            if not bad_rows.isdisjoint(own_rows):
                reasons[index] = f"its vector is not finite (NaN or infinity). {remedy_for(self.embedder.backbone.dtype)}"
            elif self._too_large(vectors[own_rows.start : own_rows.stop]):
                reasons[index] = "its vector does not fit float16; use --normalize, or --precision float32."
        dead = [
            dead_letter(document.row, document.line, f", line {document.line}: {reasons[index]}", document.text)
            for index, document in enumerate(documents)
            if index in reasons
        ]
        embedded = [index for index in range(len(documents)) if index not in reasons]
        parts = [part for index in embedded if (part := chunked[index])]
        cut = [
            documents[index].row
            for index, part in zip(embedded, parts, strict=True)
            if any(text.truncated for text in part.texts)
        ]
        selected = vectors[[row for index in embedded for row in rows[index]]]
        block = self._block([documents[index] for index in embedded], [part.spans for part in parts], selected)
        counts = Counts(len(documents), len(selected), len(dead), len(cut), tally.tokens, tally.padded)
        sample = selected[sample_rows(len(selected)), : self.job.dim]
        loss = measure_loss(normalized(sample) if self.job.normalize else sample, self.job.precision)
        return Encoded(block, dead, counts, cut, loss)

    def _block(self, documents: Sequence[Document], spans: Sequence[Sequence[Span]], vectors: NDArray[np.float32]) -> Block:
        """A row for each chunk of each document, with the document's kept columns."""
        owners = [document for document, chunks in zip(documents, spans, strict=True) for _ in chunks]
        return Block(
            [document.id for document in owners],
            finish(vectors, self.job.dim, self.job.normalize, self.job.precision),
            {name: [document.kept[column] for document in owners] for column, name in enumerate(self.job.keep)},
            [(number, *span) for chunks in spans for number, span in enumerate(chunks)] if self.job.chunking else None,
        )

    def _too_large(self, vectors: NDArray[np.float32]) -> bool:
        """Whether a vector does not fit the precision."""
        if self.job.precision != "float16" or self.job.normalize:
            return False
        largest = np.abs(vectors[:, : self.job.dim]).max()
        return bool(largest > np.finfo(np.float16).max)


def _dense_shape(embedder: Embedder, job: Job) -> tuple[int, np.dtype[Any]]:
    """Dimensions and dtype of the output. Raises UnmaskError for options that do not fit the vectors."""
    empty = embedder.encode([], instruction=job.instruction, dim=job.dim, normalize=job.normalize, precision=job.precision)
    return empty.shape[1], empty.dtype


def _sparse_shape(embedder: Embedder, job: Job) -> tuple[int, np.dtype[Any]]:
    """The same of sparse vectors, whose dimensions are the tokens of the vocabulary."""
    if job.output.suffix != ".jsonl":
        raise UnmaskError(
            f"The vectors of '{embedder.design.name}' are sparse, and are written to a .jsonl file only: give -o FILE.jsonl."
        )
    for option, is_set in (("--dim", job.dim), ("--normalize", job.normalize), ("--precision", job.precision != "float32")):
        if is_set:
            raise UnmaskError(f"{option} is for dense vectors, and those of '{embedder.design.name}' are sparse: leave it out.")
    for name in job.keep:
        if name in ("indices", "values"):
            raise UnmaskError(f"--keep {name}: the output has a column '{name}' of its own. Rename yours.")
    return embedder.backbone.output_layer.vocabulary, np.dtype(np.float32)


def _rows(chunked: Sequence[ChunkedDocument | None]) -> dict[int, range]:
    """The rows of vectors of each document that has some, by its place."""
    rows, first = {}, 0
    for index, document in enumerate(chunked):
        if document is not None:
            rows[index] = range(first, first + len(document.spans))
            first += len(document.spans)
    return rows
