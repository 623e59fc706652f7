"""Forward pass: the designs that share an attention and a prompt read a batch of texts in one pass over the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unmask.designs.design import ATTENTIONS, Attention, Design, plain_attention
from unmask.designs.prompts import Prompts
from unmask.encoding.backbone import Backbone, PrefixCache
from unmask.encoding.batching import collate
from unmask.encoding.features import Fit, Raw, mean_of, vectors
from unmask.encoding.prefix_cache import find_prefix, without_prefix
from unmask.encoding.tokenization import DesignTokenizer, TokenizedText, together
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray

Vectors = NDArray[np.float32]
PassKey = tuple[Attention, Prompts]
"""Attention and prompt: designs with the same key share their forward passes."""
_MAX_NAMED = 5  # rows that an error lists


def group_by_pass(designs: Iterable[Design]) -> dict[PassKey, list[Design]]:
    """Designs that share forward passes. Causal attention comes first, so that the attention is switched at most once.

    Within an attention, designs with several prompts come last: they reuse what was computed for each of these prompts.
    """
    groups: dict[PassKey, list[Design]] = {}
    for design in sorted(
        designs,
        key=lambda design: (ATTENTIONS.index(plain_attention(design.attention)), design.attention, len(design.prompts) > 1),
    ):
        groups.setdefault((design.attention, design.prompt), []).append(design)
    return groups


@dataclass(frozen=True)
class ForwardPass:
    """Designs with the same attention and prompt, each with its fit. Designs with several prompts take one pass per prompt."""

    backbone: Backbone
    tokenizer: DesignTokenizer
    fits: Mapping[Design, Fit]

    @property
    def prompts(self) -> int:
        """Number of prompts, and so of passes over the model."""
        return len(self.tokenizer.parts)

    def vectors(
        self, texts: Sequence[TokenizedText], prefixes: Sequence[PrefixCache | None] = (), backbone: Backbone | None = None
    ) -> dict[Design, Vectors]:
        """The vectors of texts that fit one batch. They are not checked for NaN.

        prefixes: the cached tokens before the texts in each prompt. backbone: a replica that computes in place of the original.
        """
        raws = self.features(texts, prefixes, backbone=backbone)
        return {design: vectors(design, raw, self.fits[design]).float().cpu().numpy() for design, raw in raws.items()}

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def features(
        self,
        texts: Sequence[TokenizedText],
        prefixes: Sequence[PrefixCache | None] = (),
        designs: Iterable[Design] | None = None,
        backbone: Backbone | None = None,
    ) -> dict[Design, Raw]:
        """The features of each design (by default of every design), from one pass, or averaged over the passes of its prompts."""
        designs, raws = list(self.fits if designs is None else designs), []
        for index, (prompt, prefix) in enumerate(zip(self.tokenizer.parts, prefixes or [None] * self.prompts, strict=True)):
            parts = [text.part(index) for text in texts]
            batch = collate(parts, self.tokenizer.pad_id, prefix)
            if any(design.is_sparse for design in designs):
                batch = replace(batch, word_ids=prompt.word_ids(parts))
            raws.append((backbone or self.backbone).raw(batch, [design.under(design.prompts[index]) for design in designs]))
        return {
            design: mean_of([raw[design.under(design.prompts[index])] for index, raw in enumerate(raws)]) for design in designs
        }

    def comparable(self, texts: Sequence[TokenizedText], prefixes: Sequence[PrefixCache | None] = ()) -> list[Tensor]:
        """Features that show whether a prefix cache changes the result."""
        # for lexical designs, the states that predict the words: which values are the largest may depend on rounding
        dense = dict.fromkeys(
            Design(design.attention, design.prompt, design.pooling) if design.is_sparse else design for design in self.fits
        )
        return [values for raw in self.features(texts, prefixes, dense).values() for values in raw.parts]

    def find_prefixes(self, texts: Sequence[TokenizedText]) -> list[PrefixCache | None]:
        """The prefix that all texts share in each prompt, where caching it pays."""
        prefixes = []
        for index, prompt in enumerate(self.tokenizer.parts):
            fits = {design.under(design.prompts[index]): fit for design, fit in self.fits.items()}
            comparable = ForwardPass(self.backbone, prompt, fits).comparable
            prefixes.append(find_prefix(self.backbone, [text.part(index) for text in texts], comparable))
        return prefixes

    def width(self, design: Design) -> int:
        """Number of dimensions of a design's vectors."""
        raw = self.features([next(self.tokenizer.tokenize(["a"]))], designs=[design])[design]
        return int(vectors(design, raw, self.fits[design]).shape[1])


def after_prefixes(text: TokenizedText, lengths: Sequence[int]) -> TokenizedText:
    """The text without its first tokens in each prompt."""
    parts = [without_prefix(text.part(index), length) for index, length in enumerate(lengths)]
    return parts[0] if len(parts) == 1 else together(parts)


def require_finite(values: NDArray[np.floating], indices: Sequence[int], dtype: torch.dtype, label: str = "text") -> None:
    """Raise UnmaskError if a vector holds NaN or infinity. indices: of the texts in the caller's list, from 0."""
    bad = sorted(indices[row] for row in np.flatnonzero(~np.isfinite(values).all(axis=1)).tolist())
    if bad:
        rest = f" and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
        raise UnmaskError(
            f"A vector is not finite (NaN or infinity), of {label} {', '.join(map(str, bad[:_MAX_NAMED]))}{rest} (counted from 0). "
            f"{remedy_for(dtype)}"
        )


def remedy_for(dtype: torch.dtype) -> str:
    """What to do about vectors that are not finite."""
    remedies = {
        torch.float16: "whose largest number is 65504. Use --dtype bfloat16 or --dtype float32",
        torch.float32: "so its weights are damaged. Load or train it again",
    }
    remedy = remedies.get(dtype, "which is coarse. Use --dtype float32; if that does not help, its weights are damaged")
    return f"The model computes in {str(dtype).removeprefix('torch.')}, {remedy}."
