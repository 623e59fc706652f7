"""Reading: the vectors of texts under several designs of one loaded model, each pass shared by the designs that it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unmask.designs.design import ATTENTIONS, Attention, Design
from unmask.embedder import default_batch_tokens
from unmask.encoding.encode import encode_designs, fit_designs
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.starter import reference_texts

if TYPE_CHECKING:
    from unmask.probing.geometry import Pair
    from unmask.probing.subject import Subject

Vectors = Float[NDArray[np.float32], "text dim"]


def read_designs(
    subject: Subject,
    designs: Sequence[Design],
    texts: Sequence[str],
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[Design, Vectors]:
    """Vectors of every design, each of shape (text, dim); `progress` is told of texts, once a pass.

    What a design has to fit is fitted on the reference sentences of this package. Raises UnmaskError for a design that the
    model cannot serve, before any text is computed, and AttentionError for an attention that it does not obey.
    """
    backbone = subject.backbone
    for design in designs:
        backbone.check(design)
    found: dict[Design, Vectors] = {}
    for (attention, prompt), group in passes(designs).items():
        if backbone.attention != attention:
            backbone.set_attention(attention)
        tokenizer = PromptTokenizer(subject.tokenizer, prompt, backbone.within_positions(subject.limit(max_length)))
        budget = batch_tokens or default_batch_tokens(backbone)
        fits = fit_designs(backbone, tokenizer, group, reference_texts(), batch_tokens=budget)
        found |= encode_designs(backbone, tokenizer, fits, texts, batch_tokens=budget, progress=progress)
    return found


def passes(designs: Sequence[Design]) -> dict[tuple[Attention, str], list[Design]]:
    """Designs by the attention and the prompt that they share, causal first: attention is switched at most once."""
    groups: dict[tuple[Attention, str], list[Design]] = {}
    for design in sorted(designs, key=lambda one: ATTENTIONS.index(one.attention)):
        groups.setdefault((design.attention, design.prompt), []).append(design)
    return groups


def two_designs(designs: Sequence[Design]) -> tuple[Design, Design]:
    """Exactly two designs, to be held against each other. Raises UnmaskError for any other number."""
    if len(designs) != 2:
        raise UnmaskError(f"Two designs are compared, such as 'prompteol,routing', and {len(designs)} were given.")
    return designs[0], designs[1]


def read_similarities(
    subject: Subject,
    designs: Sequence[Design],
    pairs: Sequence[Pair],
    *,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Float[NDArray[np.float64], "pair design"]:
    """Cosine of the two texts of each pair under each design, every distinct text computed once. Raises UnmaskError."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.one, pair.other)))
    row = {text: index for index, text in enumerate(texts)}
    vectors = read_designs(subject, designs, texts, max_length=max_length, batch_tokens=batch_tokens, progress=progress)
    one, other = [row[pair.one] for pair in pairs], [row[pair.other] for pair in pairs]
    return np.stack([cosines(vectors[design][one], vectors[design][other]) for design in designs], axis=1)


def cosines(one: NDArray[np.floating], other: NDArray[np.floating]) -> NDArray[np.float64]:
    """Cosine of rows side by side, in fp64; 0 where one of them is zero, as mteb has it."""
    wide, far = np.asarray(one, np.float64), np.asarray(other, np.float64)
    lengths = np.linalg.norm(wide, axis=-1) * np.linalg.norm(far, axis=-1)
    return np.asarray((wide * far).sum(axis=-1) / np.where(lengths > 0, lengths, 1.0))
