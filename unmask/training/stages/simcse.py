"""SimCSE: two dropout masks, and words that one view repeats, give two views of one text, which are a positive pair."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field

from unmask.errors import UnmaskError
from unmask.training.data import DataSet, Example
from unmask.training.schedule import ScheduledExample
from unmask.training.stages.contrastive import ContrastiveOptions, prepare_pairs
from unmask.training.stages.pooling import PoolingStage
from unmask.training.stages.stage import Prepared, TrainableModel


class SimcseOptions(ContrastiveOptions):
    """Unsupervised SimCSE: a sentence and itself under another dropout are the positive pair (LLM2Vec, section 3).

    dropout: its rate. where: on the "attention" probabilities as in the paper, or on what each "layer" adds to the residual stream.
    repeat: up to this share of the words of one view, and up to two in a short text, stand twice, so that length does not betray the pair
    (0: none; ESimCSE, arXiv 2109.04380, section 3.1, uses 0.32).
    """

    dropout: float = Field(default=0.1, gt=0, lt=1)
    where: Literal["layer", "attention"] = "layer"
    repeat: float = Field(default=0.0, ge=0, lt=1)


class Simcse(PoolingStage[SimcseOptions]):
    """Sentences as pairs of two views."""

    name = "simcse"
    options = SimcseOptions
    too_easy = (
        "Make it harder: simcse.similar = 8 puts similar sentences into one batch, simcse.repeat = 0.32 repeats words in one view, and a "
        "larger simcse.dropout makes the views differ more. Or train fewer steps."
    )

    def require_learnable(self, options: SimcseOptions, sets: Sequence[DataSet]) -> None:
        """Raise UnmaskError for a batch that cannot be filled, and for one sentence: its second view has no other candidate."""
        super().require_learnable(options, sets)
        if options.batch == 1:
            raise UnmaskError(
                "A batch of 1 holds no other sentence to tell apart, so its loss is always 0: raise simcse.batch."
            )

    def unshardable(self, options: SimcseOptions) -> str | None:
        """Hooks on layers do not reach shards."""
        return "stage 'simcse', whose dropout acts inside the layers"

    def prepare(self, options: SimcseOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
        """Two views of each sentence, with dropout around training. Training raises UnmaskError if dropout does not act."""
        from unmask.training.collate import ViewCollator
        from unmask.training.dropout import DROPOUTS, require_two_views
        from unmask.training.stages.simcse import two_views

        pairs = prepare_pairs(options, model, sets, seed)
        collator: Any = pairs.collate
        collate = ViewCollator(collator.tokenizer, options.cache_tokens)
        rows = two_views(pairs.rows, options.repeat, seed)
        backbone = model.embedder.backbone

        @contextmanager
        def dropping() -> Iterator[None]:
            with DROPOUTS[options.where](backbone.model, backbone.layers, options.dropout) as acted:
                pairs.module.train()
                chunk = collate(rows[:2])["chunks"][0]
                with torch.no_grad(), torch.random.fork_rng():
                    require_two_views(lambda: pairs.module(dict(chunk))["sentence_embedding"], acted)
                yield

        return replace(pairs, rows=rows, collate=collate, around=dropping)


_WORD = re.compile(r"\s*\S+")


def two_views(rows: Sequence[ScheduledExample], repeat: float, seed: int) -> list[ScheduledExample]:
    """Each sentence of a schedule as a pair: itself, and itself with some words twice (`with_repeated_words`).

    The choice of words depends on the seed and the place in the schedule only, so a resumed run sees what an unbroken one sees.
    """
    return [
        replace(
            row, example=Example(row.example.row, (text, with_repeated_words(text, repeat, random.Random(f"{seed}:{index}"))))
        )
        for index, row in enumerate(rows)
        for text in row.example.texts
    ]


def with_repeated_words(text: str, share: float, generator: random.Random) -> str:
    """A text in which some words stand twice: n of its N words, n drawn from 0 to max(2, share N); share 0 changes nothing.

    A text of one word, as in a language without spaces, repeats characters. Source: ESimCSE (arXiv 2109.04380), section 3.1, which
    repeats the tokens of a subword vocabulary.
    """
    if not share:
        return text
    words = _WORD.findall(text)
    space, units = (" ", words) if len(words) > 1 else ("", list(text))
    number = min(len(units), generator.randint(0, max(2, int(share * len(units)))))
    twice = set(generator.sample(range(len(units)), number))
    return "".join(unit + space + unit.lstrip() if index in twice else unit for index, unit in enumerate(units))
