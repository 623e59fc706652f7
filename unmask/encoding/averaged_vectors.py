"""Averaged vectors: designs with several prompts, from the stored vectors of each prompt. A prompt that was read before costs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from unmask.designs.design import Design
from unmask.encoding.encode import Tally, Vectors
from unmask.encoding.features import Fit, Raw, mean_of, vectors
from unmask.encoding.forward_pass import SharedVectors


@dataclass
class AveragedVectors:
    """Vectors of designs that average the same prompts, for the texts of one task.

    passes: by prompt, with the features of every design under it (`Design.features_under`).
    """

    passes: Mapping[str, SharedVectors]
    fits: Mapping[Design, Fit]

    def get(self, design: Design, texts: Sequence[str], instruction: str | None) -> Vectors:
        """Vectors of one design, float32 of shape (text, dim). An instruction goes to the prompts that take one."""
        raw = mean_of(self._raw(design, prompt, texts, instruction) for prompt in design.prompts)
        found: Vectors = vectors(design, raw, self.fits[design]).numpy()
        return found

    def _raw(self, design: Design, prompt: str, texts: Sequence[str], instruction: str | None) -> Raw:
        parts = {
            feature.features: torch.from_numpy(self.passes[prompt].get(feature, texts, instruction))
            for feature in design.features_under(prompt)
        }
        return Raw(parts.get("hidden"), parts.get("routing"))

    @property
    def tally(self) -> Tally:
        """The texts of the task, their tokens under all prompts, and the texts that were cut under the longest prompt."""
        tallies = {prompt: shared.tally for prompt, shared in self.passes.items()}
        return Tally(
            texts=max(tally.texts for tally in tallies.values()),
            truncated=max(tally.truncated for tally in tallies.values()),
            tokens=sum(tally.tokens for tally in tallies.values()),
            by_prompt={prompt: tally.tokens for prompt, tally in tallies.items()},
        )
