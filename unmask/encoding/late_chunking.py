"""Late chunking (arXiv 2409.04701): the model reads a whole document, then each chunk is pooled from the states of its own tokens.

So a chunk's vector knows what the document says elsewhere: under causal attention what it says before the chunk, under bidirectional
attention also what comes after. A document longer than the limit is read in windows. A window begins half a window before the first chunk
that did not fit into the window before it (further on only where a chunk is longer than half a window). A chunk is pooled in the first
window that holds all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from unmask.designs.design import Design
from unmask.encoding.chunking import Span
from unmask.encoding.heads import Head
from unmask.encoding.tokenization import PromptTokenizer, TokenizedText
from unmask.encoding.words import without_surrogates
from unmask.errors import UnmaskError


def require_late(design: Design, tokenizer: PromptTokenizer, head: Head | None, instruction: str | None = None) -> None:
    """Raise UnmaskError for a design that cannot chunk late: its prompt has the text twice, or something after the text.

    Such a prompt gathers the meaning in tokens after the text, or in a second copy. No chunk in the middle has those.
    """
    design.require_dense("Late chunking")
    if head is not None and head.options.conditioned:
        raise UnmaskError(
            f"The head of '{design.name}' reads the tokens of an instruction, and late chunking would give it those of other chunks. "
            "Leave --late out, or train a head with conditioned=false."
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
    """What the model reads of a document: its tokens in one or more windows, with a span of tokens for each chunk, in order.

    causal: leave out what follows the last chunk of a window, since no chunk sees it.
    """
    text, places = tokenizer.whole(without_surrogates(document), instruction)
    before, own = text.ids[: text.start], text.ids[text.start :]
    spans = _tokens_of(places[text.start :], chunks)
    room = tokenizer.max_length - len(before)
    for begin, held in _in_windows(spans, room):
        end = held[-1][1] if causal else begin + room
        moved = tuple((len(before) + first - begin, len(before) + last - begin) for first, last in held)
        yield TokenizedText(before + own[begin:end], len(before), spans=moved)


def _tokens_of(places: Sequence[Span], chunks: Sequence[Span]) -> list[Span]:
    """The tokens of each chunk, at least one. A token on the border of two chunks belongs to both."""
    ends = list(accumulate((end for _, end in places), max))
    begins = list(accumulate((begin for begin, _ in reversed(places)), min))[::-1]
    first = np.searchsorted(ends, [start for start, _ in chunks], side="right").clip(max=len(places) - 1)
    stop = np.searchsorted(begins, [end for _, end in chunks], side="left")
    return [(int(one), max(int(one) + 1, int(other))) for one, other in zip(first, stop, strict=True)]


def _in_windows(spans: Sequence[Span], room: int) -> Iterator[tuple[int, list[Span]]]:
    """Where each window begins, and the spans that it holds. Raises UnmaskError for a span longer than a window."""
    begin, held = 0, list[Span]()
    for first, stop in spans:
        if stop - first > room:
            raise UnmaskError(f"A chunk of {stop - first} tokens does not fit into a window of {room}. Use smaller chunks.")
        if stop - begin > room:
            yield begin, held
            begin, held = max(first - room // 2, stop - room), []
        held.append((first, stop))
    yield begin, held
