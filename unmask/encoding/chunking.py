"""Chunking: long documents are split by tokens into chunks that may overlap. Every chunk is an exact range of characters.

A chunk ends at the last end of a sentence or line in its last quarter; else at the last word boundary there; else after its last token. The
next chunk begins within the overlap, by the same preference. A boundary never falls inside a character, even if the character is several
tokens. Tokens are counted in the document alone, without a prompt.

With late chunking (arXiv 2409.04701) the model reads the whole document, then each chunk is pooled from the states of its tokens. So a
chunk's vector reflects what the document says elsewhere: under causal attention before the chunk, under bidirectional attention also after
it. A document longer than the limit is read in windows. A window begins half a window before the first chunk that did not fit into the
previous window (later only if a chunk is longer than half a window). A chunk is pooled in the first window that contains all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.designs.design import Design
from unmask.encoding.encoder import Encoder, Tally
from unmask.encoding.features import Fit
from unmask.encoding.heads import Head
from unmask.encoding.quantization import AnyVectors
from unmask.encoding.tokenization import DesignTokenizer, PromptTokenizer, Span, TokenizedText, tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.terminal import progress_bar
from unmask.io.unicode import without_surrogates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Unit = Literal["token", "word"]
UNITS = get_args(Unit)
_FULL_WIDTH = "\u3002\uff01\uff1f"  # the full stop and marks of Chinese and Japanese, which no space follows
_SENTENCE_END = re.compile(rf"[.!?\u2026{_FULL_WIDTH}][\"'\u201d\u2019\u00bb)\]]*\s*$|\n\s*$")
_CONTEXT = 40  # characters before a boundary that decide whether a sentence ends there


@dataclass(frozen=True)
class Chunking:
    """How documents are split and embedded. Raises UnmaskError for sizes that do not work."""

    size: int
    """Most tokens of a chunk."""
    overlap: int = 0
    """Most tokens that a chunk shares with the previous one."""
    late: bool = False
    """The model reads the document once, and each chunk is pooled from its tokens (arXiv 2409.04701)."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.size < 1:
            raise UnmaskError(f"A chunk needs at least 1 token, not {self.size}.")
        if not 0 <= self.overlap <= self.size // 2:
            raise UnmaskError(
                f"Chunks of {self.size} tokens overlap by 0 to {self.size // 2} tokens (half a chunk), not {self.overlap}."
            )

    def require_room(self, tokenizer: DesignTokenizer, instruction: str | None = None) -> None:
        """Raise UnmaskError unless a chunk and the prompt together fit into the limit of tokens."""
        room = tokenizer.room(instruction)
        if self.size > room:
            raise UnmaskError(
                f"Chunks of {self.size} tokens do not fit: max_length {tokenizer.max_length} leaves {max(room, 0)} tokens next to the "
                f"prompt '{tokenizer.name}'. Use smaller chunks, or a larger max_length (--max-length)."
            )

    def split(self, tokenizer: PreTrainedTokenizerBase, document: str) -> list[Span]:
        """The chunks of a document, in order: document[start:end]. Together they cover it. An empty document is one empty chunk."""
        tokens = tokenize_bare(tokenizer, document)
        offsets = [offset for offset, special in zip(tokens.offsets, tokens.special, strict=True) if not special]
        return split(document, offsets, self.size, self.overlap)


def split(document: str, offsets: Sequence[Span], size: int, overlap: int) -> list[Span]:
    """Chunks of a document, from the characters of its tokens. A character of more than `size` tokens is a chunk by itself."""
    tokens, characters = _boundaries(offsets, len(document))
    final = len(tokens) - 1
    chunks: list[Span] = []
    first = 0
    while True:
        last = _end(document, tokens, characters, first, size)
        chunks.append((int(characters[first]), int(characters[last])))
        if last == final:
            return chunks
        first = _next_start(document, tokens, characters, last, size, overlap)


def _boundaries(offsets: Sequence[Span], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where a document may be split, start and end included: the number of tokens before it, and the index of the character."""
    if not offsets:
        return np.array([0, 0]), np.array([0, length])
    starts, ends = np.array(offsets, np.int64).T
    ended = np.maximum.accumulate(ends)[:-1]
    begins = np.minimum.accumulate(starts[::-1])[::-1][1:]
    between = np.flatnonzero((begins >= ended) & (begins > 0) & (begins < length))  # no character is on both sides
    new = np.flatnonzero(np.diff(begins[between], prepend=0) > 0)  # a token without characters starts nothing
    inner = between[new]
    return np.array([0, *(inner + 1), len(offsets)]), np.array([0, *begins[inner], length])


def _end(document: str, tokens: NDArray[np.int64], characters: NDArray[np.int64], first: int, size: int) -> int:
    # an overlap of at most half a chunk keeps it behind the end of the previous chunk
    limit = int(tokens[first]) + size
    furthest = max(int(np.searchsorted(tokens, limit, side="right")) - 1, first + 1)
    if furthest == len(tokens) - 1:
        return furthest
    nearest = int(np.searchsorted(tokens, limit - size // 4))
    candidates = range(nearest, furthest + 1)
    return max(candidates, key=lambda index: (_rank(document, int(characters[index])), index), default=furthest)


def _next_start(
    document: str, tokens: NDArray[np.int64], characters: NDArray[np.int64], last: int, size: int, overlap: int
) -> int:
    """The boundary at which the next chunk begins: at most `overlap` tokens before the end of the last, and so that it ends later."""
    earliest = max(int(tokens[last]) - overlap, int(tokens[last + 1]) - size)
    nearest = int(np.searchsorted(tokens, earliest))
    furthest = int(np.searchsorted(tokens, earliest + overlap // 2, side="right")) - 1
    candidates = range(nearest, min(furthest, last) + 1)
    return max(candidates, key=lambda index: (_rank(document, int(characters[index])), -index), default=last)


def _rank(document: str, index: int) -> int:
    """What a boundary before this character separates: 2 sentences or lines, 1 words, 0 the letters of a word."""
    before, after = document[max(0, index - _CONTEXT) : index], document[index]
    spaced = before[-1:].isspace() or after.isspace()
    if (spaced or before[-1] in _FULL_WIDTH) and (_SENTENCE_END.search(before) or after == "\n"):
        return 2
    return int(spaced)


@dataclass(frozen=True)
class Units:
    """Every token or word as a chunk, pooled from one reading of the document. Tokens that hold parts of one character are one unit."""

    unit: Unit
    late: ClassVar[bool] = True

    def require_room(self, tokenizer: DesignTokenizer, instruction: str | None = None) -> None:
        """A unit always fits: long documents are read in windows."""

    def split(self, tokenizer: PreTrainedTokenizerBase, document: str) -> list[Span]:
        """The units of a document, in order: document[start:end]. White space between words belongs to none."""
        if self.unit == "word":
            return [word.span() for word in re.finditer(r"\S+", document)]
        tokens = tokenize_bare(tokenizer, document)
        spans = (
            span for span, special in zip(tokens.offsets, tokens.special, strict=True) if not special and span[0] < span[1]
        )
        return list(dict.fromkeys(spans))


def require_late(design: Design, tokenizer: PromptTokenizer, head: Head | None, instruction: str | None = None) -> None:
    """Raise UnmaskError for a design that cannot chunk late.

    A prompt that continues after the text, or repeats it, gathers the meaning in tokens that chunks in the middle do not have.
    """
    design.require_dense("Late chunking")
    if head is not None and head.options.conditioned:
        raise UnmaskError(
            f"The head of '{design.name}' reads the tokens of an instruction, and late chunking would give it the tokens of other chunks. "
            "Leave --late out, or train a head with conditioned=false."
        )
    if design.pooling == "compression-tokens":
        raise UnmaskError(
            f"Late chunking reads the tokens of each chunk, and '{design.name}' reads trained tokens after the whole text."
        )
    if not tokenizer.ends_with_text(instruction):
        prompt = "instruction" if tokenizer.prompt.takes_instruction else "plain"
        nearest = replace(design, prompt=prompt).name
        raise UnmaskError(
            f"Late chunking needs a prompt that has the text once and ends with it, and '{tokenizer.prompt.name}' does not. "
            f"The nearest design that can do it is '{nearest}'. Or leave --late out."
        )


def windows(
    tokenizer: PromptTokenizer, document: str, chunks: Sequence[Span], causal: bool, instruction: str | None = None
) -> Iterator[TokenizedText]:
    """A document's tokens in one or more windows, with a span of tokens for each chunk, in order.

    causal: leave out what follows the last chunk of a window, since no chunk attends to it. Raises UnmaskError for a chunk that is longer
    than a window.
    """
    text, characters = tokenizer.untruncated(without_surrogates(document), instruction)
    prompt, body = text.ids[: text.start], text.ids[text.start :]
    room = tokenizer.max_length - len(prompt)

    def window(begin: int, spans: list[Span]) -> TokenizedText:
        end = spans[-1][1] if causal else begin + room
        moved = tuple((len(prompt) + first - begin, len(prompt) + stop - begin) for first, stop in spans)
        return TokenizedText(prompt + body[begin:end], len(prompt), spans=moved)

    begin, spans = 0, list[Span]()
    for first, stop in _tokens_of(characters[text.start :], chunks):
        if stop - first > room:
            raise UnmaskError(f"A chunk of {stop - first} tokens does not fit into a window of {room}. Use smaller chunks.")
        if stop - begin > room:
            yield window(begin, spans)
            begin, spans = max(first - room // 2, stop - room), []
        spans.append((first, stop))
    yield window(begin, spans)


def _tokens_of(characters: Sequence[Span], chunks: Sequence[Span]) -> list[Span]:
    """The tokens of each chunk, at least one. A token on the boundary of two chunks belongs to both."""
    ends = list(accumulate((end for _, end in characters), max))
    begins = list(accumulate((begin for begin, _ in reversed(characters)), min))[::-1]
    first = np.searchsorted(ends, [start for start, _ in chunks], side="right").clip(max=len(characters) - 1)
    stop = np.searchsorted(begins, [end for _, end in chunks], side="left")
    return [(int(a), max(int(a) + 1, int(b))) for a, b in zip(first, stop, strict=True)]


@dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of documents, in order, and their vectors."""

    documents: NDArray[np.int64]
    """The index of each chunk's document."""
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    """Characters: document[start:end]."""
    vectors: AnyVectors
    """Shape (chunk, dim)."""

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.documents)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The number of each chunk within its document, from 0."""
        return np.arange(len(self)) - np.searchsorted(self.documents, self.documents)

    def texts(self, documents: Sequence[str]) -> list[str]:
        """The text of each chunk of these documents."""
        rows = zip(self.documents.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True)
        return [documents[document][start:end] for document, start, end in rows]


@dataclass(frozen=True)
class ChunkedDocument:
    """The chunks of a document, and the texts that the model reads for them, with one vector for each chunk, in order."""

    spans: list[Span]
    texts: list[TokenizedText]


def chunk_document(
    tokenizer: DesignTokenizer, document: str, chunking: Chunking | Units, causal: bool, instruction: str | None = None
) -> ChunkedDocument:
    """Split a document, and tokenize each chunk, or with `late` the full document. causal: the attention of the model."""
    spans = chunking.split(tokenizer.tokenizer, document)
    if chunking.late:
        [prompt] = tokenizer.parts
        return ChunkedDocument(spans, list(windows(prompt, document, spans, causal, instruction)) if spans else [])
    return ChunkedDocument(spans, list(tokenizer.tokenize([document[start:end] for start, end in spans], instruction)))


def encode_chunks(
    encoder: Encoder,
    designs: Mapping[Design, Fit],
    documents: Sequence[str],
    chunking: Chunking | Units,
    *,
    instruction: str | None = None,
    tally: Tally | None = None,
    show_progress: bool | None = False,
) -> dict[Design, Chunks]:
    """Chunks of the documents, with the vectors of every design. All designs share the same forward passes.

    tally: counts documents; one with a truncated chunk counts as truncated. Raises UnmaskError, before anything is computed, for chunks
    that leave no room for the prompt, and for a design that cannot chunk late. Errors about vectors name the document.
    """
    check_chunking(encoder, designs, chunking, instruction)
    forward = encoder.forward_pass(designs)
    tokenizer, causal = forward.tokenizer, forward.backbone.attention == "causal"
    chunked = [chunk_document(tokenizer, document, chunking, causal, instruction) for document in documents]
    indices = _repeated([document.spans for document in chunked])
    text_indices = _repeated([document.texts for document in chunked])
    starts, ends = np.array([span for document in chunked for span in document.spans], np.int64).reshape(-1, 2).T
    texts = [text for document in chunked for text in document.texts]
    chunk_tally = Tally()
    with progress_bar("embedding", len(texts), show_progress) as advance:
        vectors = encoder.encode_tokenized(texts, designs, names=text_indices.tolist(), tally=chunk_tally, progress=advance)
    if tally is not None:
        truncated = sorted({int(text_indices[index]) for index in chunk_tally.cut})
        tally.cut += [tally.texts + document for document in truncated]
        tally.texts += len(documents)
        tally.truncated += len(truncated)
        tally.tokens += chunk_tally.tokens
        tally.padded += chunk_tally.padded
    return {design: Chunks(indices, starts, ends, rows) for design, rows in vectors.items()}


def _repeated(parts: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    """The index of each document, once for each of its parts."""
    return np.repeat(np.arange(len(parts)), np.array([len(part) for part in parts], np.int64))


def check_chunking(
    encoder: Encoder, designs: Iterable[Design], chunking: Chunking | Units, instruction: str | None = None
) -> None:
    """Raise UnmaskError for chunks that leave no room for the prompt, and for a design that cannot chunk late."""
    for design in designs:
        tokenizer = encoder.prompt_tokenizer(design.prompt)
        chunking.require_room(tokenizer, instruction)
        if chunking.late:
            design.require_one_prompt("Late chunking")
            [prompt] = tokenizer.parts
            require_late(design, prompt, encoder.backbone.head, instruction)
