"""Stages: what each kind of training makes of its data, and what it minimises. One loop runs them all (loop.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.encoding.tokenization import PromptTokenizer, mask_id
from unmask.errors import UnmaskError
from unmask.st_module import UnmaskModule
from unmask.training import processes
from unmask.training.collate import MaskingCollator, NextTokenCollator, PairCollator, TwiceCollator, chunk_tokens
from unmask.training.data import DataSet, read_pairs, read_sentences
from unmask.training.dropout import DROPOUTS, require_two_views
from unmask.training.losses import RankingLoss
from unmask.training.recipe import Contrastive, LanguageStage, Mntp, NextToken, Recipe, Simcse, Stage
from unmask.training.schedule import Row, contrastive_schedule, language_schedule
from unmask.training.sharding import agreed_chunks
from unmask.training.targets import target_logits
from unmask.training.trainee import Trainee

Objective = Callable[[nn.Module, dict[str, Any], Any], Tensor]


@dataclass(frozen=True)
class Prepared:
    """A stage that is ready for the loop: the module that trains, the schedule, how rows become tensors, what is minimised."""

    module: nn.Module
    rows: Sequence[Any]
    collate: Callable[[Sequence[Any]], dict[str, Any]]
    objective: Objective
    around: Callable[[], AbstractContextManager[None]] = nullcontext


def attention_of(stage: str, design_attention: str) -> Any:
    """MNTP looks both ways, next-token prediction back only; the others attend as the design does."""
    return {"mntp": "bidirectional", "next-token": "causal"}.get(stage, design_attention)


def read_sets(recipe: Recipe, stage: str, root: Path, seed: int) -> list[DataSet]:
    """The data of a stage, checked row by row. Raises UnmaskError with file, line and reason."""
    read = read_pairs if stage == "contrastive" else read_sentences
    return [read(name, recipe.data[name], root, seed) for name in recipe.stage(stage).data]


def prepare(name: str, stage: Stage, trainee: Trainee, sets: Sequence[DataSet], seed: int) -> Prepared:
    """Make a stage ready. Raises UnmaskError for data that cannot fill a batch, and for a SimCSE whose views are equal."""
    return PREPARE[name](stage, trainee, sets, seed)


def _pairs(stage: Any, trainee: Trainee, sets: Sequence[DataSet], seed: int) -> Prepared:
    stage_: Contrastive = stage
    embedder = trainee.embedder
    longest = embedder.backbone.within_positions(stage_.max_length)
    tokenizer = PromptTokenizer(embedder.tokenizer, embedder.design.prompt, longest)
    module = UnmaskModule(embedder)
    agree = agreed_chunks if trainee.recipe.shard else None
    loss = RankingLoss(module, stage_.temperature, stage_.cache_tokens, stage_.false_negative_margin, stage_.matryoshka, agree)

    def objective(model: nn.Module, inputs: dict[str, Any], _: Any) -> Tensor:
        loss.model = model  # as the loop has wrapped it
        return loss(inputs["chunks"], inputs["order"])  # type: ignore[no-any-return]

    rows = contrastive_schedule(sets, stage_.steps, stage_.batch, seed)
    collate = PairCollator(tokenizer, stage_.cache_tokens)
    for data in sets:  # an instruction that the prompt does not take, or a limit that leaves no room, shows before training
        collate([Row(data, data.examples[0])])
    return Prepared(module, rows, collate, objective)


def _simcse(stage: Any, trainee: Trainee, sets: Sequence[DataSet], seed: int) -> Prepared:
    stage_: Simcse = stage
    pairs = _pairs(stage_, trainee, sets, seed)
    twice = TwiceCollator(pairs.collate.tokenizer, stage_.cache_tokens)  # type: ignore[attr-defined]

    @contextmanager
    def dropping() -> Iterator[None]:
        with DROPOUTS[stage_.where](trainee.backbone.model, trainee.backbone.layers, stage_.dropout) as acted:
            pairs.module.train()
            chunk = twice(pairs.rows[:2])["chunks"][0]
            with torch.no_grad(), torch.random.fork_rng():
                require_two_views(lambda: pairs.module(dict(chunk))["sentence_embedding"], acted)
            yield

    return Prepared(pairs.module, pairs.rows, twice, pairs.objective, dropping)


def _chunks(stage: LanguageStage, trainee: Trainee, sets: Sequence[DataSet], seed: int) -> list[tuple[int, list[int]]]:
    texts = [example.texts[0] for data in sets for example in data.examples]
    longest = trainee.backbone.within_positions(stage.max_length)
    chunks = chunk_tokens(trainee.embedder.tokenizer, texts, longest, stage.chunks == "blocks")
    order = language_schedule([len(chunk) for chunk in chunks], stage.steps, stage.batch, seed)
    return [(place, chunks[index]) for place, index in enumerate(order)]


def _predict(trainee: Trainee) -> Objective:
    def objective(model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        mask = inputs.pop("attention_mask")
        padding = {} if bool(mask.all()) else {"attention_mask": mask}
        with trainee.backbone.computing():
            return model(**inputs, **padding, num_items_in_batch=items, use_cache=False).loss  # type: ignore[no-any-return]

    return objective


def _predict_masked(trainee: Trainee) -> Objective:
    """The model's own shifted loss, computed where tokens are masked."""

    def objective(model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        labels = inputs.pop("labels")
        with trainee.backbone.computing():
            logits, targets, _ = target_logits(model, inputs, labels)
            size: dict[str, Any] = {"vocab_size": logits.shape[-1], "num_items_in_batch": items}
            return model.loss_function(logits, None, shift_labels=targets, **size)  # type: ignore[no-any-return, operator]

    return objective


def _mntp(stage: Any, trainee: Trainee, sets: Sequence[DataSet], seed: int) -> Prepared:
    stage_: Mntp = stage
    tokenizer, model = trainee.embedder.tokenizer, trainee.language_model
    assert model is not None
    mask, around = mask_token(stage_, tokenizer, model)
    collate = MaskingCollator(
        stage_, mask, trainee.embedder.prompt.pad_id, len(tokenizer), set(tokenizer.all_special_ids), seed
    )
    return Prepared(model, _chunks(stage_, trainee, sets, seed), collate, _predict_masked(trainee), around)


def _next_token(stage: Any, trainee: Trainee, sets: Sequence[DataSet], seed: int) -> Prepared:
    stage_: NextToken = stage
    model: Any = trainee.language_model

    mixed = bool(trainee.backbone.routers) and stage_.balance > 0
    if mixed and not hasattr(model, "router_aux_loss_coef"):
        raise UnmaskError(f"{type(model).__name__} has no load-balancing loss, so set next-token.balance = 0.")

    @contextmanager
    def balanced() -> Iterator[None]:
        # models read the weight once, when they are made, and add the whole term to every part of a step
        before = (model.config.output_router_logits, model.router_aux_loss_coef)
        share = stage_.balance / (stage_.accumulate * processes.count())
        model.config.output_router_logits, model.router_aux_loss_coef = True, share
        try:
            yield
        finally:
            model.config.output_router_logits, model.router_aux_loss_coef = before

    collate = NextTokenCollator(trainee.embedder.prompt.pad_id)
    around = balanced if mixed else nullcontext
    return Prepared(model, _chunks(stage_, trainee, sets, seed), collate, _predict(trainee), around)


PREPARE: dict[str, Callable[[Any, Trainee, Sequence[DataSet], int], Prepared]] = {
    "next-token": _next_token,
    "mntp": _mntp,
    "simcse": _simcse,
    "contrastive": _pairs,
}


def mask_token(stage: Mntp, tokenizer: Any, model: Any) -> tuple[int, Callable[[], AbstractContextManager[None]]]:
    """The id that stands for a masked token, and what has to surround training for it to exist.

    A new token gets the mean of all embeddings for the time of the stage. Raises UnmaskError for a token that the tokenizer lacks.
    """
    if stage.mask == "_":
        return mask_id(tokenizer, stage.mask), nullcontext
    if stage.mask == "eos":
        if tokenizer.eos_token_id is None:
            raise UnmaskError('mask = "eos" needs an end-of-sequence token, and this tokenizer has none: use "_" or "new".')
        return int(tokenizer.eos_token_id), nullcontext
    size = model.get_input_embeddings().num_embeddings

    @contextmanager
    def enlarged() -> Iterator[None]:
        mean = model.get_input_embeddings().weight.detach().float().mean(dim=0)
        model.resize_token_embeddings(size + 1, mean_resizing=False)
        with torch.no_grad():
            model.get_input_embeddings().weight[size] = mean
            model.get_output_embeddings().weight[size] = mean
        try:
            yield
        finally:
            model.resize_token_embeddings(size)

    return size, enlarged
