"""Contrastive learning: vectors of related texts are pulled together, others pushed apart. In SimCSE a text is related to itself."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from unmask.embedder_module import EmbedderModule
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.training import processes
from unmask.training.collate import PairCollator
from unmask.training.data import DataSet, DataSource, Example
from unmask.training.dropout import DROPOUTS, require_two_views
from unmask.training.labels import read_related
from unmask.training.schedule import ScheduledExample, contrastive_schedule, require_full_batch
from unmask.training.stages.stage import Options, PreparedStage, StageOptions, TeacherName, TrainableModel, TrainingStage
from unmask.training.teachers import Encode, Teacher, loaded, sentence_transformer_encoder, shares

if TYPE_CHECKING:
    from unmask.training.losses import ChunkedLoss


_FEWEST = 3  # texts of a batch: with two, each is the other's only neighbour, whatever its vector


class PoolingOptions(StageOptions):
    """Options of stages on vectors of texts."""

    temperature: float = Field(default=0.05, gt=0)
    """Divides the cosines."""
    cache_tokens: int = Field(default=2048, ge=1)
    """A step with more tokens than this is computed in parts of this size by GradCache, which bounds memory whatever the batch."""
    similar: int = Field(default=1, ge=1)
    """A batch is made of groups of this many examples whose first texts share rare words, and which are harder to tell apart than
    examples at random (1: at random). Source: topic-aware sampling (TAS-B, arXiv 2104.06967), which groups by vectors of a model; here
    TF-IDF is enough."""

    @model_validator(mode="after")
    def _check_groups(self) -> PoolingOptions:
        if self.accumulate > 1:
            raise ValueError(
                "a batch in parts compares fewer texts: leave accumulate out, cache_tokens already limits the memory"
            )
        if self.batch % self.similar:
            raise ValueError(f"a batch of {self.batch} is not made of whole groups of {self.similar} (similar)")
        return self


class PoolingStage(TrainingStage[Options]):
    """A stage that trains vectors of texts, and the head of a design that has one. Every batch comes from one data set."""

    pools = True
    views_per_text: ClassVar[int] = 1
    """Texts that a batch holds for each text of an example."""

    def require_learnable(self, options: Options, sets: Sequence[DataSet]) -> None:
        """Raise UnmaskError for a data set that cannot fill a batch, or whose batches are so small that the loss is always 0."""
        for data in sets:
            require_full_batch(data, options.batch)
            texts = options.batch * len(data.examples[0].texts) * self.views_per_text
            if texts < _FEWEST:
                raise UnmaskError(
                    f"A batch of {options.batch} from data set '{data.name}' holds {texts} texts, and to tell near texts from others takes "
                    f"{_FEWEST}: raise {self.name}.batch, or use data with negatives."
                )


def prepare_pooling(
    options: PoolingOptions,
    model: TrainableModel,
    sets: Sequence[DataSet],
    seed: int,
    *,
    loss: Callable[[nn.Module], ChunkedLoss],
    labels: Callable[[dict[str, Any]], Any],
    teachers: Mapping[str, Callable[[], Encode]] = MappingProxyType({}),
    are_views: bool = False,
) -> PreparedStage:
    """A stage whose batches each come from one data set.

    loss: from the module to its loss. labels: what the loss needs of a batch besides the vectors. teachers: what loads each encoder whose
    vectors a batch holds under this name; names with one loader share it. They are loaded when training begins, so a stage that is done
    does not need them; loading may raise UnmaskError. are_views: of PairCollator. Raises UnmaskError for data that cannot fill a batch.
    """
    embedder = model.embedder
    longest = embedder.backbone.within_positions(options.max_length)
    prompt = embedder.design.require_one_prompt("Training")
    tokenizer = PromptTokenizer(embedder.tokenizer, prompt, longest, embedder.backbone.vocabulary)
    module = EmbedderModule(embedder)
    loss_of_module = loss(module)

    def objective(_: nn.Module, inputs: dict[str, Any], __: Any) -> Tensor:
        return loss_of_module(inputs["chunks"], labels(inputs))  # type: ignore[no-any-return]

    rows = contrastive_schedule(sets, options.steps, options.batch, seed, options.similar)
    collate = PairCollator(tokenizer, options.cache_tokens, are_views=are_views)
    for data in sets:  # an instruction that the prompt does not take, or a limit that leaves no room, shows before training
        collate([ScheduledExample(data, data.examples[0])])
    parts = shares(rows, options.batch // processes.count())
    by_loader = {
        load: Teacher(load, ([text for row in part for text in row.example.texts] for part in parts))
        for load in dict.fromkeys(teachers.values())
    }
    collate = replace(collate, teachers={name: by_loader[load] for name, load in teachers.items()})
    return PreparedStage(module, rows, collate, objective, partial(loaded, by_loader.values()))


class InfoNCEOptions(PoolingOptions):
    """InfoNCE on cosines, with in-batch negatives and negatives from the data (LLM2Vec, section 4)."""

    false_negative_margin: float | None = None
    """Leave out a negative whose cosine exceeds the positive's by more than this (None: keep all)."""
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """The loss is averaged over these leading dimensions and all dimensions."""


class ContrastiveOptions(InfoNCEOptions):
    """InfoNCE of pairs, CoSENT of pairs with scores. Guide and teacher are sentence-transformers models: `minilm`, a folder (of a saved
    embedder, too) or a hub id. They read texts without the instructions of the data."""

    guide: str | None = Field(default=None, min_length=1)
    """Its cosines decide which negatives `false_negative_margin` (with a guide, 0 by default) leaves out (GISTEmbed, arXiv 2402.16829)."""
    teacher: str | None = Field(default=None, min_length=1)
    """Adds the loss of stage `distill` against this teacher (as in jina-embeddings-v5, arXiv 2602.15547)."""
    teacher_weight: float = Field(default=1.0, gt=0)
    teacher_temperature: float = Field(default=0.2, gt=0)


def _prepare_pairs(
    options: InfoNCEOptions,
    model: TrainableModel,
    sets: Sequence[DataSet],
    seed: int,
    *,
    teachers: Mapping[str, Callable[[], Encode]] = MappingProxyType({}),
    are_views: bool = False,
    **of_teacher: float,
) -> PreparedStage:
    from unmask.training.losses import RankingLabels, RankingLoss

    if max(options.matryoshka, default=0) > model.embedder.dim:
        raise UnmaskError(f"matryoshka asks for {max(options.matryoshka)} dimensions, and a vector has {model.embedder.dim}.")
    return prepare_pooling(
        options,
        model,
        sets,
        seed,
        loss=lambda module: RankingLoss(
            module,
            options.temperature,
            options.cache_tokens,
            options.false_negative_margin,
            options.matryoshka,
            **of_teacher,
        ),
        labels=lambda batch: RankingLabels(**{name: batch[name] for name in RankingLabels._fields if name in batch}),
        teachers=teachers,
        are_views=are_views,
    )


class Contrastive(PoolingStage[ContrastiveOptions]):
    """Pairs, triples and texts with labels, with in-batch negatives, and pairs with scores."""

    name = "contrastive"
    options = ContrastiveOptions

    def teachers(self, options: ContrastiveOptions) -> dict[str, TeacherName]:
        """The guide and the teacher."""
        names = {"guide": options.guide, "teacher": options.teacher}
        return {role: TeacherName(name, None) for role, name in names.items() if name}

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """Pairs, triples, texts with labels, or pairs with scores."""
        return read_related(name, source, root, seed)

    def prepare(self, options: ContrastiveOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Batches that each come from one data set. If guide and teacher are the same, it is loaded once."""
        names = {role: teacher.model for role, teacher in self.teachers(options).items()}
        loaders = {name: partial(sentence_transformer_encoder, name, model.embedder.backbone.device) for name in names.values()}
        margin = 0.0 if options.guide and options.false_negative_margin is None else options.false_negative_margin
        return _prepare_pairs(
            options.model_copy(update={"false_negative_margin": margin}),
            model,
            sets,
            seed,
            teachers={role: loaders[name] for role, name in names.items()},
            teacher_weight=options.teacher_weight,
            teacher_temperature=options.teacher_temperature,
        )


class SimcseOptions(InfoNCEOptions):
    """Unsupervised SimCSE: a sentence and itself under another dropout are the positive pair (LLM2Vec, section 3)."""

    dropout: float = Field(default=0.1, gt=0, lt=1)
    where: Literal["layer", "attention"] = "layer"
    """On the "attention" probabilities as in the paper, or on what each "layer" adds to the residual stream."""
    repeat: float = Field(default=0.0, ge=0, lt=1)
    """Up to this share of the words of one view, and up to two in a short text, are repeated, so that length does not betray the pair
    (0: none; ESimCSE, arXiv 2109.04380, section 3.1, uses 0.32)."""


class Simcse(PoolingStage[SimcseOptions]):
    """Sentences as pairs of two views."""

    name = "simcse"
    options = SimcseOptions
    views_per_text = 2

    def prepare(self, options: SimcseOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Two views of each sentence, with dropout around training. Training raises UnmaskError if dropout does not act."""
        pairs = _prepare_pairs(options, model, sets, seed, are_views=True)
        rows = two_views(pairs.rows, options.repeat, seed)
        backbone = model.embedder.backbone

        @contextmanager
        def with_dropout() -> Iterator[None]:
            with DROPOUTS[options.where](backbone.model, backbone.layers, options.dropout) as acted:
                pairs.module.train()
                chunk = pairs.collate(rows[:2])["chunks"][0]
                with torch.no_grad(), torch.random.fork_rng():
                    require_two_views(lambda: pairs.module(dict(chunk))["sentence_embedding"], acted)
                yield

        return replace(pairs, rows=rows, around=with_dropout)


def two_views(rows: Sequence[ScheduledExample], repeat: float, seed: int) -> list[ScheduledExample]:
    """Each sentence of a schedule as a pair: itself, and itself with some words repeated (`repeat_words`).

    The choice of words depends only on the seed and the position in the schedule, so a resumed run sees what an unbroken one sees.
    """
    return [
        replace(
            row,
            example=Example(row.example.row, (text, repeat_words(text, repeat, random.Random(f"{seed}:{position}")))),
        )
        for position, row in enumerate(rows)
        for text in row.example.texts
    ]


def repeat_words(text: str, share: float, generator: random.Random) -> str:
    """A text in which n of its N words are repeated, n uniform from 0 to max(2, share N); share 0 changes nothing.

    A text of one word, as in a language without spaces, repeats characters. Source: ESimCSE (arXiv 2109.04380), section 3.1, which
    repeats the tokens of a subword vocabulary.
    """
    if not share:
        return text
    words = re.findall(r"\s*\S+", text)
    space, units = (" ", words) if len(words) > 1 else ("", list(text))
    count = min(len(units), generator.randint(0, max(2, int(share * len(units)))))
    repeated = set(generator.sample(range(len(units)), count))
    return "".join(unit + space + unit.lstrip() if index in repeated else unit for index, unit in enumerate(units))
