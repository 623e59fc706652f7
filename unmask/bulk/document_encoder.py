"""Document encoder: documents in, a block of a vector file out. This is the one place where a document becomes its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unmask.bulk.documents import DeadLetter, Document, dead_letter
from unmask.bulk.job import Job
from unmask.bulk.vector_writers import Block, Layout
from unmask.encoding.encode import Tally, encode_tokenized, remedy_for
from unmask.encoding.quantization import finish
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.embedder import Embedder
    from unmask.encoding.tokenization import TokenizedText


@dataclass
class Counts:
    """What was done: rows read, vectors written, dead letters, texts cut to the limit, tokens computed, and tokens with padding."""

    rows: int = 0
    vectors: int = 0
    dead_letters: int = 0
    truncated: int = 0
    tokens: int = 0
    padded: int = 0

    def add(self, more: Counts) -> None:
        """Add other counts to these."""
        for name, value in vars(more).items():
            setattr(self, name, getattr(self, name) + value)

    def negative(self) -> Counts:
        """What takes these counts away again."""
        return Counts(**{name: -value for name, value in vars(self).items()})


@dataclass(frozen=True)
class Encoded:
    """What came of documents: rows for a file of vectors, and dead letters. cut: rows whose texts were cut."""

    block: Block
    dead: list[DeadLetter]
    counts: Counts
    cut: list[int]


class DocumentEncoder:
    """Encodes documents with the options of a job.

    Raises UnmaskError for options that the embedder cannot serve. In a folder of vectors, the bits of a vector do not depend on the number
    of cores, so that any machine can do any shard.
    """

    def __init__(self, embedder: Embedder, job: Job) -> None:
        self.embedder, self.job = embedder, job
        empty = embedder.encode([], instruction=job.instruction, dim=job.dim, normalize=job.normalize, precision=job.precision)
        list(embedder.prompt.tokenize(["a " * embedder.max_length], job.instruction))  # is there room for a text?
        self.layout = Layout(empty.shape[1], empty.dtype, job.keep)

    def encode(self, documents: Sequence[Document]) -> Encoded:
        """The vectors of documents, in their order. Equal texts are computed once."""
        places: dict[str, int] = {}
        for document in documents:
            places.setdefault(document.text, len(places))
        tokenized, refused = self._tokenize(list(places))
        tally, not_finite = Tally(), list[int]()
        vectors = encode_tokenized(
            self.embedder.backbone,
            self.embedder.prompt,
            {self.embedder.design: self.embedder.fitted},
            [text for text in tokenized if text is not None],
            batch_tokens=self.embedder.batch_tokens,
            tally=tally,
            steady=self.job.to_folder,
            not_finite=not_finite,
        )[self.embedder.design]
        return self._finish(documents, places, tokenized, refused, vectors, tally, not_finite)

    def _tokenize(self, texts: Sequence[str]) -> tuple[list[TokenizedText | None], dict[int, str]]:
        """The tokens of each text, or None and the reason if the tokenizer cannot take it."""
        try:
            return list(self.embedder.prompt.tokenize(texts, self.job.instruction)), {}
        except Exception:  # one text spoils it for all, so each is tried alone
            tokenized: list[TokenizedText | None] = []
            refused = {}
            for place, text in enumerate(texts):
                try:
                    tokenized += self.embedder.prompt.tokenize([text], self.job.instruction)
                except Exception as error:
                    tokenized.append(None)
                    refused[place] = str(error) if isinstance(error, UnmaskError) else f"the tokenizer fails: {error}"
            return tokenized, refused

    def _finish(
        self,
        documents: Sequence[Document],
        places: dict[str, int],
        tokenized: Sequence[TokenizedText | None],
        refused: dict[int, str],
        vectors: NDArray[np.float32],
        tally: Tally,
        not_finite: Sequence[int],
    ) -> Encoded:
        done = [place for place, text in enumerate(tokenized) if text is not None]
        reasons = dict(refused)
        for row in not_finite:
            reasons[done[row]] = f"its vector is not finite (NaN or infinity). {remedy_for(self.embedder.backbone.dtype)}"
        rows = {place: row for row, place in enumerate(done) if place not in reasons}
        for place in self._too_large(vectors, rows):
            reasons[place] = "its vector does not fit float16; use --normalize, or --precision float32."
            del rows[place]
        kept = [document for document in documents if places[document.text] in rows]
        lost = [document for document in documents if places[document.text] in reasons]
        dead = [dead_letter(one.row, one.line, f", line {one.line}: {reasons[places[one.text]]}", one.text) for one in lost]
        cut = [document.row for document in kept if getattr(tokenized[places[document.text]], "truncated", False)]
        chosen = vectors[[rows[places[document.text]] for document in kept]]
        block = Block(
            [document.id for document in kept],
            finish(chosen, self.job.dim, self.job.normalize, self.job.precision),
            {name: [document.kept[at] for document in kept] for at, name in enumerate(self.job.keep)},
        )
        counts = Counts(len(documents), len(kept), len(dead), len(cut), tally.tokens, tally.padded)
        return Encoded(block, dead, counts, cut)

    def _too_large(self, vectors: NDArray[np.float32], rows: dict[int, int]) -> list[int]:
        """The places of texts whose vectors do not fit the precision."""
        if self.job.precision != "float16" or self.job.normalize or not rows:
            return []
        largest = np.abs(vectors[:, : self.job.dim]).max(axis=1)
        return [place for place, row in rows.items() if largest[row] > np.finfo(np.float16).max]
