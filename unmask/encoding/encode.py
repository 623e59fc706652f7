"""Encoding: many texts through one prompt and one attention. Many designs can share the same forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import add
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.designs.design import ATTENTIONS, Attention, Design
from unmask.designs.prompts import Prompts
from unmask.encoding.backbone import Backbone, Beginning
from unmask.encoding.batching import collate, padded_tokens, plan, share, shares, steps_of
from unmask.encoding.beginnings import after, find_beginning
from unmask.encoding.copies import Copies
from unmask.encoding.features import Fit, Raw, check_corpus, fit, mean_of, vectors
from unmask.encoding.replicas import in_parallel, threads_for
from unmask.encoding.several_prompts import DesignTokenizer, together
from unmask.encoding.tokenization import PromptTokenizer, TokenizedText
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray

Vectors = NDArray[np.float32]
_NAMED = 5  # rows that an error names
Progress = Callable[[int], None]
"""Takes the share of the work that was done since its last call, in texts: a batch counts by its tokens, so that the pace is even."""
GiveUp = Callable[[Design, UnmaskError], None]
"""Takes a design that cannot be fitted, and the reason."""
Value = TypeVar("Value")


@dataclass
class Tally:
    """Counts of encoding: texts, texts cut to the limit, tokens computed, and tokens with their padding.

    cut: the places of the texts that were cut, counted over all texts of the tally. by_prompt: tokens of each prompt, for a
    design with several in a comparison.
    """

    texts: int = 0
    truncated: int = 0
    tokens: int = 0
    padded: int = 0
    cut: list[int] = field(default_factory=list)
    by_prompt: dict[str, int] = field(default_factory=dict)

    def count(self, texts: Sequence[TokenizedText]) -> None:
        """Add texts."""
        cut = [self.texts + place for place, text in enumerate(texts) if text.truncated]
        self.texts += len(texts)
        self.truncated += len(cut)
        self.cut += cut

    def count_batch(self, texts: Sequence[TokenizedText], prompts: int) -> None:
        """Add the tokens of a batch, with one forward pass for each prompt."""
        self.tokens += sum(len(text.ids) for text in texts)
        longest = (max(len(text.part(place).ids) for text in texts) for place in range(prompts))
        self.padded += len(texts) * sum(longest)


def group_by_pass(designs: Iterable[Design]) -> dict[tuple[Attention, Prompts], list[Design]]:
    """Designs that share forward passes, by attention and prompt. Causal goes first, so that the attention is switched at most once.

    Of one attention, designs with several prompts go last: they need what was read for each of these prompts.
    """
    groups: dict[tuple[Attention, Prompts], list[Design]] = {}
    for design in sorted(designs, key=lambda design: (ATTENTIONS.index(design.attention), len(design.prompts) > 1)):
        groups.setdefault((design.attention, design.prompt), []).append(design)
    return groups


def encode_designs(
    backbone: Backbone,
    tokenizer: DesignTokenizer,
    fits: dict[Design, Fit],
    texts: Sequence[str],
    *,
    instruction: str | None = None,
    batch_tokens: int,
    tally: Tally | None = None,
    progress: Progress | None = None,
) -> dict[Design, Vectors]:
    """Vectors of every design, each float32 of shape (text, dim), in the order of the texts.

    All designs share the same forward passes. Equal token sequences are computed once. `progress` is called after every batch.
    The vector of a text does not depend on other texts (in bf16, up to rounding). Raises UnmaskError for a vector that
    is not finite, as soon as its batch is computed.
    """
    tokenized = list(tokenizer.tokenize(texts, instruction))
    return encode_tokenized(backbone, tokenizer, fits, tokenized, batch_tokens=batch_tokens, tally=tally, progress=progress)


def encode_tokenized(
    backbone: Backbone,
    tokenizer: DesignTokenizer,
    fits: dict[Design, Fit],
    texts: Sequence[TokenizedText],
    *,
    numbers: Sequence[int] | None = None,
    batch_tokens: int,
    tally: Tally | None = None,
    progress: Progress | None = None,
    steady: bool = False,
    not_finite: list[int] | None = None,
) -> dict[Design, Vectors]:
    """As `encode_designs`, for texts that this tokenizer has tokenized already. A text with spans has a vector for each of them.

    numbers: what an error calls each text; its place if not given. steady: on a CPU, the same batches on one core each, whatever the
    number of cores; with few texts, some cores have nothing to do. not_finite: takes the places of texts with a vector that is not finite,
    and no error is raised.
    """
    copies = Copies(texts, by_words=any(design.is_sparse for design in fits))
    if tally is not None:
        tally.count(texts)
    beginnings = _find_beginnings(backbone, list(fits), tokenizer, copies.unique)
    before = [beginning.length if beginning else 0 for beginning in beginnings]
    unique = [after_each(text, before) for text in copies.unique]
    lengths = [text.longest for text in unique]
    threads = threads_for(backbone) if steady else threads_for(backbone, sum(lengths))
    steps = [steps_of(map(add, text.lengths, before)) for text in unique]
    batches = plan(lengths, batch_tokens if steady else share(batch_tokens, sum(lengths), threads), max(before), steps)

    def compute(replica: Backbone, batch: list[int]) -> dict[Design, Vectors]:
        return encode_batch(replica, tokenizer, fits, [unique[index] for index in batch], beginnings)

    def check(values: Vectors, batch: list[int]) -> None:
        owners = copies.owners(batch)
        if not_finite is None:
            places = [copies.places[index][0] for index in owners]
            require_finite(values, places if numbers is None else [numbers[place] for place in places], backbone.dtype)
        else:
            not_finite.extend(place for row in _not_finite(values) for place in copies.places[owners[row]])

    results: dict[Design, Vectors] = {}
    done = shares(len(texts), padded_tokens(batches, lengths))
    for batch, computed, part in zip(batches, in_parallel(backbone, batches, threads, compute), done, strict=True):
        if tally is not None:
            tally.count_batch([unique[index] for index in batch], prompts=len(beginnings))
        for design, values in computed.items():
            check(values, batch)
            if design not in results:
                results[design] = np.empty((copies.rows, values.shape[1]), dtype=np.float32)
            copies.put(results[design], batch, values)
        if progress:
            progress(part)
    return results or {design: np.empty((0, _width(backbone, tokenizer, design, fits[design])), np.float32) for design in fits}


def encode_batch(
    backbone: Backbone,
    tokenizer: DesignTokenizer,
    fits: Mapping[Design, Fit],
    texts: Sequence[TokenizedText],
    beginnings: Sequence[Beginning | None] = (),
) -> dict[Design, Vectors]:
    """Vectors of every design from ONE forward pass over texts that share a batch; from one a prompt, if the designs have several.

    beginnings: what stands before the texts in each prompt. Nobody has checked that the vectors are finite.
    """
    raws = _read(backbone, texts, list(fits), tokenizer, beginnings)
    return {design: vectors(design, raw, fits[design]).float().cpu().numpy() for design, raw in raws.items()}


def fit_designs(
    backbone: Backbone,
    tokenizer: DesignTokenizer,
    designs: Sequence[Design],
    texts: Sequence[str],
    *,
    batch_tokens: int,
    give_up: GiveUp | None = None,
) -> dict[Design, Fit]:
    """Fit what the designs need (standardisation, alpha) in one pass over reference texts.

    A corpus that is too small for a design is noticed before the pass. give_up: takes a design that cannot be fitted, and the reason; the
    other designs are still fitted. Without it, raises UnmaskError.
    """
    fits = {design: Fit() for design in designs if not design.needs_fit}
    needy = [design for design in designs if design.needs_fit]
    if not needy:
        return fits
    tokenized = list(tokenizer.tokenize(texts))
    sample = _read(backbone, tokenized[:1] or list(tokenizer.tokenize(["a"])), needy, tokenizer)
    large_enough = dict(_each(needy, lambda design: check_corpus(design, sample[design], len(texts)), give_up))
    raws = _reference_pass(backbone, tokenizer, list(large_enough), tokenized, batch_tokens)
    return fits | dict(_each(list(raws), lambda design: _fit(design, raws[design], backbone.dtype), give_up))


def _each(designs: Sequence[Design], work: Callable[[Design], Value], give_up: GiveUp | None) -> Iterator[tuple[Design, Value]]:
    """The result of the work for each design, without the designs that failed."""
    for design in designs:
        try:
            yield design, work(design)
        except UnmaskError as error:
            if give_up is None:
                raise
            give_up(design, error)


def _reference_pass(
    backbone: Backbone, tokenizer: DesignTokenizer, designs: list[Design], texts: list[TokenizedText], batch_tokens: int
) -> dict[Design, tuple[list[int], list[Raw]]]:
    """For each design, the order in which the reference texts were computed, and their features batch by batch."""
    features: dict[Design, tuple[list[int], list[Raw]]] = {design: ([], []) for design in designs}
    for batch in plan([text.longest for text in texts], batch_tokens) if designs else ():
        for design, raw in _read(backbone, [texts[index] for index in batch], designs, tokenizer).items():
            features[design][0].extend(batch)
            features[design][1].append(raw)
    return features


def _fit(design: Design, features: tuple[list[int], list[Raw]], dtype: torch.dtype) -> Fit:
    order, raws = features
    raw = _together(raws)
    for values in raw.parts:
        require_finite(values.float().numpy(), order, dtype, "reference text")
    return fit(design, raw)


def require_finite(values: NDArray[np.floating], rows: Sequence[int], dtype: torch.dtype, what: str = "text") -> None:
    """Raise UnmaskError if a vector holds NaN or infinity. rows: the positions of the texts in the caller's list, from 0."""
    bad = sorted(rows[place] for place in _not_finite(values))
    if bad:
        named = ", ".join(map(str, bad[:_NAMED])) + (f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else "")
        raise UnmaskError(f"A vector is not finite (NaN or infinity), of {what} {named} (counted from 0). {remedy_for(dtype)}")


def _not_finite(values: NDArray[np.floating]) -> list[int]:
    return [int(place) for place in np.flatnonzero(~np.isfinite(values).all(axis=1))]


def remedy_for(dtype: torch.dtype) -> str:
    """What to do about vectors that are not finite."""
    remedies = {
        torch.float16: "whose largest number is 65504. Use --dtype bfloat16 or --dtype float32",
        torch.float32: "so its weights are damaged. Load or train it again",
    }
    remedy = remedies.get(dtype, "which is coarse. Use --dtype float32; if that does not help, its weights are damaged")
    return f"The model computes in {str(dtype).removeprefix('torch.')}, {remedy}."


@torch.inference_mode()  # type: ignore[untyped-decorator]
def layer_states(
    backbone: Backbone,
    tokenizer: PromptTokenizer,
    texts: Sequence[str],
    *,
    instruction: str | None = None,
    batch_tokens: int,
) -> Float[Tensor, "text layer dim"]:
    """The input of a head over layers for each text: its pooled states by layer, in the order of the texts, on the model's device."""
    tokenized = list(tokenizer.tokenize(texts, instruction))
    reads = backbone.layer_reads()
    states: list[Tensor] = [torch.empty(0)] * len(texts)
    for batch in plan([len(text.ids) for text in tokenized], batch_tokens):
        values = backbone.read(collate([tokenized[index] for index in batch], tokenizer.pad_id), reads)
        stacked = torch.stack([values[read] for read in reads], dim=1)
        require_finite(stacked.flatten(1).cpu().numpy(), batch, backbone.dtype)
        for index, layers in zip(batch, stacked, strict=True):
            states[index] = layers
    return torch.stack(states)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _read(
    backbone: Backbone,
    texts: Sequence[TokenizedText],
    designs: list[Design],
    tokenizer: DesignTokenizer,
    beginnings: Sequence[Beginning | None] = (),
) -> dict[Design, Raw]:
    """The features of each design: from one pass, or the mean over the passes of its prompts."""
    raws = []
    sparse = any(design.is_sparse for design in designs)
    for place, (prompt, beginning) in enumerate(zip(tokenizer.parts, beginnings or [None] * len(tokenizer.parts), strict=True)):
        parts = [text.part(place) for text in texts]
        batch = collate(parts, tokenizer.pad_id, beginning)
        if sparse:
            batch = replace(batch, own=prompt.own_tokens(parts))
        raws.append(backbone.raw(batch, [_under(design, tokenizer, place) for design in designs]))
    return {design: mean_of([raw[_under(design, tokenizer, place)] for place, raw in enumerate(raws)]) for design in designs}


def _under(design: Design, tokenizer: DesignTokenizer, place: int) -> Design:
    """The design with only the prompt of this place."""
    if len(design.prompts) != len(tokenizer.parts):
        raise ValueError(f"These tokens are of the prompt '{tokenizer.name}', and a design has others.")
    return design.under(design.prompts[place])


def _find_beginnings(
    backbone: Backbone, designs: list[Design], tokenizer: DesignTokenizer, texts: Sequence[TokenizedText]
) -> list[Beginning | None]:
    """What all texts begin with, in each prompt."""
    return [
        find_beginning(
            backbone,
            [text.part(place) for text in texts],
            partial(features_of, backbone, [_under(design, tokenizer, place) for design in designs], prompt),
        )
        for place, prompt in enumerate(tokenizer.parts)
    ]


def after_each(text: TokenizedText, lengths: Sequence[int]) -> TokenizedText:
    """The tokens of a text after so many in each prompt."""
    parts = [after(text.part(place), length) for place, length in enumerate(lengths)]
    return parts[0] if len(parts) == 1 else together(parts)


def features_of(
    backbone: Backbone,
    designs: list[Design],
    tokenizer: DesignTokenizer,
    texts: Sequence[TokenizedText],
    beginning: Beginning | None,
) -> list[Tensor]:
    """The features of every design, for texts that share a batch and, in every prompt, a beginning."""
    # of words, the states that predict them: which values are the largest may turn on rounding
    dense = list(dict.fromkeys(Design(one.attention, one.prompt, one.pooling) if one.is_sparse else one for one in designs))
    raws = _read(backbone, list(texts), dense, tokenizer, [beginning] * len(tokenizer.parts))
    return [values for raw in raws.values() for values in raw.parts]


def _together(raws: list[Raw]) -> Raw:
    parts = ([part.cpu() for raw in raws if (part := getattr(raw, field.name)) is not None] for field in fields(Raw))
    return Raw(*(torch.cat(part) if part else None for part in parts))


def _width(backbone: Backbone, tokenizer: DesignTokenizer, design: Design, fitted: Fit) -> int:
    raw = _read(backbone, [next(tokenizer.tokenize(["a"]))], [design], tokenizer)[design]
    return int(vectors(design, raw, fitted).shape[1])
