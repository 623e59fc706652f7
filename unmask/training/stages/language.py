"""What stages that predict tokens share: they train on chunks of text, with the head of the language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from unmask.training.data import DataSet
from unmask.training.stages.stage import Options, StageOptions, TrainableModel, TrainingStage


class LanguageOptions(StageOptions):
    """Options of stages on text alone. chunks: `blocks` joins all texts and cuts every max_length tokens, `sentences` keeps each text."""

    chunks: Literal["blocks", "sentences"] = "blocks"


class LanguageStage(TrainingStage[Options]):
    """A stage that predicts tokens."""

    predicts_tokens: ClassVar[bool] = True


def scheduled_chunks(
    options: LanguageOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int
) -> tuple[list[tuple[int, list[int]]], tuple[int, int]]:
    """Token ids in the order in which they train, each with its place in that order; and how many texts are cut, of how many."""
    from unmask.training.collate import chunk_tokens
    from unmask.training.schedule import language_schedule

    texts = [example.texts[0] for data in sets for example in data.examples]
    longest = model.embedder.backbone.within_positions(options.max_length)
    blocks = options.chunks == "blocks"
    # a sentence is read one token beyond the limit, which shows whether it is longer
    chunks_of_texts = chunk_tokens(model.embedder.tokenizer, texts, longest if blocks else longest + 1, blocks)
    chunks = chunks_of_texts if blocks else [chunk[:longest] for chunk in chunks_of_texts]
    order = language_schedule([len(chunk) for chunk in chunks], options.steps, options.batch, seed)
    cut = sum(len(chunk) > longest for chunk in chunks_of_texts), len(chunks_of_texts)
    return [(number, chunks[index]) for number, index in enumerate(order)], cut
