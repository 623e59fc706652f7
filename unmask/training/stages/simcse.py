"""SimCSE: two dropout masks give two views of one text, which are a positive pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field

from unmask.training.data import DataSet
from unmask.training.stages.contrastive import ContrastiveOptions, prepare_pairs
from unmask.training.stages.pooling import PoolingStage
from unmask.training.stages.stage import Prepared, TrainableModel


class SimcseOptions(ContrastiveOptions):
    """Unsupervised SimCSE: a sentence and itself under another dropout are the positive pair (LLM2Vec, section 3).

    dropout: its rate. where: on the "attention" probabilities as in the paper, or on what each "layer" adds to the residual stream.
    """

    dropout: float = Field(default=0.1, gt=0, lt=1)
    where: Literal["layer", "attention"] = "layer"


class Simcse(PoolingStage[SimcseOptions]):
    """Sentences as pairs of themselves."""

    name = "simcse"
    options = SimcseOptions

    def unshardable(self, options: SimcseOptions) -> str | None:
        """Hooks on layers do not reach shards."""
        return "stage 'simcse', whose dropout acts inside the layers"

    def prepare(self, options: SimcseOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
        """Pairs of equal sentences, with dropout around training. Training raises UnmaskError if the two views are equal."""
        from unmask.training.collate import TwiceCollator
        from unmask.training.dropout import DROPOUTS, require_two_views

        pairs = prepare_pairs(options, model, sets, seed)
        collator: Any = pairs.collate
        twice = TwiceCollator(collator.tokenizer, options.cache_tokens)
        backbone = model.embedder.backbone

        @contextmanager
        def dropping() -> Iterator[None]:
            with DROPOUTS[options.where](backbone.model, backbone.layers, options.dropout) as acted:
                pairs.module.train()
                chunk = twice(pairs.rows[:2])["chunks"][0]
                with torch.no_grad(), torch.random.fork_rng():
                    require_two_views(lambda: pairs.module(dict(chunk))["sentence_embedding"], acted)
                yield

        return replace(pairs, collate=twice, around=dropping)
