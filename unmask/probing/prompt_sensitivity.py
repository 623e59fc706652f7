"""Prompt sensitivity: how much do similarities change with the prompt, in hidden states (HS) and in routing weights (RW)?

The same pairs of texts are embedded under the nine one-word prompts of MoEE (PromptEOL, and eight that ask for style, sentiment and the
like). A reading is a prompt with HS or RW; the similarities of every two readings are correlated over the pairs (Spearman). MoEE (arXiv
2410.10814, section 3.4) reports means of 0.52 within HS, 0.63 within RW and 0.51 between the two, on STS12: RW are steadier. Steady vectors
need not be good ones, so the correlation with gold scores is given too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.designs.design import Design, Features
from unmask.encoding.encoder import Encoder
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.probing.inputs import Pair, ProbeResult, fingerprint_of_pairs, pair_cosines
from unmask.statistics.bootstrap import interval
from unmask.statistics.correlations import codes_of, correlations, ranks_of, resampled, spearman_matrix
from unmask.statistics.intervals import Estimate

NINE = ("eol", "style", "sentiment", "tone", "intent", "complexity", "subjectivity", "language-style", "grammar")
_NAMES: dict[Features, str] = {"hidden": "HS", "routing": "RW"}
_FEWEST = 10
Square = Float[NDArray[np.float64], "reading reading"]


@dataclass(frozen=True)
class PromptSensitivity(ProbeResult):
    """Rank correlations between readings. A reading is features (HS, RW) under a prompt: HS first, in the order of `prompts`.

    spearman: of every two readings; within: its mean over pairs of prompts, for HS and for RW; between: its mean over every prompt of HS
    with every prompt of RW; same_prompt: its mean over the same prompt of both; steadier: within RW minus within HS; gold: of each reading
    with the gold scores, None without scores. Values that need routing weights are None for a dense model.
    """

    prompts: tuple[str, ...]
    features: tuple[str, ...]
    spearman: tuple[tuple[float, ...], ...]
    within: dict[str, Estimate]
    between: Estimate | None
    same_prompt: Estimate | None
    steadier: Estimate | None
    gold: tuple[Estimate, ...] | None
    pairs: int
    data: str
    provenance: dict[str, Any]

    @property
    def readings(self) -> list[tuple[str, str]]:
        """Features and prompt of each row of `spearman`."""
        return [(features, prompt) for features in self.features for prompt in self.prompts]


def summarise(matrix: Square, prompts: int) -> dict[str, float]:
    """Means of a matrix of readings: within HS and, if RW are there too, within RW, between, same prompt, steadier."""
    upper_triangle = np.triu_indices(prompts, 1)
    means = {"HS": float(matrix[:prompts, :prompts][upper_triangle].mean())}
    if len(matrix) < 2 * prompts:
        return means
    across = matrix[:prompts, prompts : 2 * prompts]
    means["RW"] = float(matrix[prompts : 2 * prompts, prompts : 2 * prompts][upper_triangle].mean())
    return means | {
        "between": float(across.mean()),
        "same prompt": float(across.diagonal().mean()),
        "steadier": means["RW"] - means["HS"],
    }


def probe_prompts(
    encoder: Encoder,
    pairs: Sequence[Pair],
    prompts: Sequence[str] = NINE,
    *,
    seed: int = 0,
) -> PromptSensitivity:
    """Embed pairs under every prompt, by hidden states and, for a mixture of experts, by routing weights, both at the last token.

    Raises UnmaskError for fewer than two prompts or ten pairs.
    """
    if len(set(prompts)) < 2 or len(pairs) < _FEWEST:
        raise UnmaskError(
            f"Comparing prompts needs at least {_FEWEST} pairs and 2 prompts; there are {len(pairs)} and {len(set(prompts))}."
        )
    designs = designs_of(prompts, mixture=bool(encoder.backbone.routers))
    similarities = pair_cosines(encoder, designs, pairs)
    scores = [pair.score for pair in pairs]
    table = similarities if None in scores else np.column_stack([similarities, np.array(scores, np.float64)])
    if None not in scores and len(set(scores)) < 2:
        raise UnmaskError("All pairs have the same score, so no correlation with it exists.")
    readings, matrix = len(designs), spearman_matrix(table)
    codes = codes_of(table)
    samples = np.stack([correlations(ranks_of(codes, counts), counts) for counts in resampled(len(pairs), seed)])
    means = summarise(matrix[:readings, :readings], len(prompts))
    means_of = [summarise(sample[:readings, :readings], len(prompts)) for sample in samples]
    estimates = {name: Estimate(value, interval([summary[name] for summary in means_of])) for name, value in means.items()}
    gold = tuple(Estimate(float(matrix[row, -1]), interval(samples[:, row, -1])) for row in range(readings))
    return PromptSensitivity(
        prompts=tuple(prompts),
        features=tuple(_NAMES[features] for features in dict.fromkeys(design.features for design in designs)),
        spearman=tuple(tuple(row) for row in matrix[:readings, :readings].tolist()),
        within={name: estimates[name] for name in _NAMES.values() if name in estimates},
        between=estimates.get("between"),
        same_prompt=estimates.get("same prompt"),
        steadier=estimates.get("steadier"),
        gold=None if None in scores else gold,
        pairs=len(pairs),
        data=fingerprint_of_pairs(pairs),
        provenance=encoder.provenance | {"max_length": encoder.max_length, "seed": seed},
    )


def designs_of(prompts: Sequence[str], mixture: bool) -> list[Design]:
    """The readings: hidden states of the last layer under each prompt, then routing weights if there is a router."""
    kinds: list[Features] = ["hidden", "routing"] if mixture else ["hidden"]
    return [Design("causal", prompt, "last", features=features) for features in kinds for prompt in prompts]
