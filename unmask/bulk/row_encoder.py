"""Row encoder: rows with texts in, a block of a vector file out. This is the one module where a text becomes its vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.bulk.job import EmbedJob
from unmask.bulk.text_rows import DeadLetter, TextRow, dead_letter
from unmask.bulk.vector_writers import Block, Layout
from unmask.encoding.chunking import ChunkedDocument, check_chunking, chunk_document
from unmask.encoding.encoder import Tally
from unmask.encoding.forward_pass import remedy_for
from unmask.encoding.quantization import PrecisionLoss, finish, measure_loss, normalized, sample_rows
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


@dataclass(frozen=True)
class EncodedRows:
    """Vectors of rows, and dead letters. cut: rows whose texts were truncated; loss: of the precision."""

    block: Block
    dead: list[DeadLetter]
    counts: Counts
    cut: list[int]
    loss: PrecisionLoss | None = None


class RowEncoder:
    """Encodes rows with the options of a job. dim: dimensions of a vector; layout: of a file of its vectors.

    Raises UnmaskError for options that the embedder cannot serve. In a folder of vectors, the bits of a vector do not depend on the number
    of cores, so that any machine can do any shard.
    """

    def __init__(self, embedder: Embedder, job: EmbedJob) -> None:
        self.embedder, self.job = embedder, job
        if embedder.design.is_sparse:
            _require_no_dense_options(embedder.design.name, job)
            vocabulary = embedder.backbone.output_layer.vocabulary
            self.layout = Layout(vocabulary, np.dtype(np.float32), job.keep, chunked=bool(job.chunk), sparse=True)
        else:
            options: dict[str, Any] = {"dim": job.dim, "normalize": job.normalize, "precision": job.precision}
            empty = embedder.encode([], instruction=job.instruction, **options)  # refuses options that do not fit the vectors
            self.layout = Layout(empty.shape[1], empty.dtype, job.keep, chunked=bool(job.chunk))
        list(embedder.prompts.tokenize(["a " * embedder.max_length], job.instruction))  # is there room for a text?
        if job.chunking:
            check_chunking(embedder.encoder, [embedder.design], job.chunking, job.instruction)
        self.dim = self.layout.dim * (8 if job.precision == "binary" else 1)  # a byte holds eight

    def encode(self, rows: Sequence[TextRow], progress: Callable[[Counts], None] | None = None) -> EncodedRows:
        """The vectors of rows, in their order. Equal texts are computed once.

        progress: called after every batch with the counts since its last call; they add up to the counts of the result.
        """
        parts = self._tokenize([row.text for row in rows])
        texts = [text for part in parts if isinstance(part, ChunkedDocument) for text in part.texts]
        tally, reported, texts_done = Tally(), Counts(), 0

        def advance(more_texts: int) -> None:
            nonlocal texts_done
            texts_done += more_texts
            rows_done = len(rows) * texts_done // len(texts)
            delta = Counts(rows_done, tokens=tally.tokens, padded=tally.padded).minus(reported)
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
        encoded = self._select(rows, parts, vectors, tally)
        if progress:
            progress(encoded.counts.minus(reported))
        return encoded

    def _tokenize(self, texts: Sequence[str]) -> list[ChunkedDocument | str]:
        """The tokens of each text, or the reason why the tokenizer cannot take it. A text that is not split is one chunk."""
        prompt, chunking, instruction = self.embedder.prompts, self.job.chunking, self.job.instruction
        try:
            if chunking is None:
                tokenized = prompt.tokenize(texts, instruction)
                return [ChunkedDocument([(0, len(text))], [tokens]) for text, tokens in zip(texts, tokenized, strict=True)]
            causal = self.embedder.backbone.attention == "causal"
            return [chunk_document(prompt, text, chunking, causal, instruction) for text in texts]
        except Exception as error:
            if len(texts) > 1:  # one text spoils it for all, so each is tried alone
                return [part for text in texts for part in self._tokenize([text])]
            return [str(error) if isinstance(error, UnmaskError) else f"the tokenizer fails: {error}"]

    def _select(
        self,
        rows: Sequence[TextRow],
        parts: Sequence[ChunkedDocument | str],
        vectors: NDArray[np.float32],
        tally: Tally,
    ) -> EncodedRows:
        """The vectors of the rows that have some, and dead letters for the others."""
        job = self.job
        finite = np.asarray(np.isfinite(vectors).all(axis=1))
        fits = np.ones(len(vectors), bool)
        if job.precision == "float16" and not job.normalize:
            fits = np.asarray(np.abs(vectors[:, : job.dim]).max(axis=1, initial=0) <= np.finfo(np.float16).max)
        dead, good, first = [], list[tuple[TextRow, ChunkedDocument]](), 0
        selected = np.zeros(len(vectors), bool)
        for row, part in zip(rows, parts, strict=True):
            if isinstance(part, str):
                reason = part
            else:
                chunks = slice(first, first := first + len(part.spans))
                if finite[chunks].all() and fits[chunks].all():
                    good.append((row, part))
                    selected[chunks] = True
                    continue
                reason = "its vector does not fit float16; use --normalize, or --precision float32."
                if not finite[chunks].all():
                    reason = f"its vector is not finite (NaN or infinity). {remedy_for(self.embedder.backbone.dtype)}"
            dead.append(dead_letter(row.index, row.line, f", line {row.line}: {reason}", row.text))
        vectors = vectors[selected]
        row_of_vector = [row for row, part in good for _ in part.spans]
        block = Block(
            [row.id for row in row_of_vector],
            finish(vectors, job.dim, job.normalize, job.precision),
            {name: [row.kept[column] for row in row_of_vector] for column, name in enumerate(job.keep)},
            [(number, *span) for _, part in good for number, span in enumerate(part.spans)] if job.chunking else None,
        )
        cut = [row.index for row, part in good if any(text.truncated for text in part.texts)]
        counts = Counts(len(rows), len(vectors), len(dead), len(cut), tally.tokens, tally.padded)
        sample = vectors[sample_rows(len(vectors)), : job.dim]
        loss = measure_loss(normalized(sample) if job.normalize else sample, job.precision)
        return EncodedRows(block, dead, counts, cut, loss)


def _require_no_dense_options(design: str, job: EmbedJob) -> None:
    """Raise UnmaskError for options and outputs that sparse vectors do not support."""
    if job.output.suffix != ".jsonl":
        raise UnmaskError(f"The vectors of '{design}' are sparse, and are written to a .jsonl file only: give -o FILE.jsonl.")
    for option, is_set in (("--dim", job.dim), ("--normalize", job.normalize), ("--precision", job.precision != "float32")):
        if is_set:
            raise UnmaskError(f"{option} is for dense vectors, and those of '{design}' are sparse: leave it out.")
    for name in job.keep:
        if name in ("indices", "values"):
            raise UnmaskError(f"--keep {name}: the output has a column '{name}' of its own. Rename yours.")
