"""Stages that predict tokens: masked next-token prediction (MNTP) with bidirectional attention, and plain language modelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from unmask.encoding.tokenization import mask_id
from unmask.errors import UnmaskError
from unmask.models.decoder import pad_id_of, vocabulary_of
from unmask.training import processes
from unmask.training.collate import Chunk, MaskingCollator, NextTokenCollator, chunk_tokens
from unmask.training.data import DataSet
from unmask.training.schedule import language_schedule
from unmask.training.stages.stage import PreparedStage, StageOptions, TrainableModel, TrainingStage
from unmask.training.targets import target_logits


class LanguageOptions(StageOptions):
    """Options of stages on text alone."""

    chunks: Literal["blocks", "sentences"] = "blocks"
    """`blocks` joins all texts and cuts every max_length tokens, `sentences` keeps each text."""


def _scheduled_chunks(
    options: LanguageOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int
) -> tuple[list[Chunk], int]:
    """Position and token ids of each chunk, in training order; and the id of the padding token."""
    tokenizer, language_model = model.embedder.tokenizer, model.language_model
    assert language_model is not None
    texts = [example.texts[0] for data in sets for example in data.examples]
    longest = model.embedder.backbone.within_positions(options.max_length)
    chunks = chunk_tokens(tokenizer, texts, longest, options.chunks == "blocks")
    order = language_schedule([len(chunk) for chunk in chunks], options.steps, options.batch, seed)
    return [(position, chunks[index]) for position, index in enumerate(order)], pad_id_of(tokenizer, language_model)


class MntpOptions(LanguageOptions):
    """Masked next-token prediction (LLM2Vec, section 2): masked token i is predicted from the state at position i - 1."""

    mask: Literal["_", "eos"] = "_"
    """The token "_" as in the paper, or the end-of-sequence token."""
    masking: Literal["bert", "all"] = "bert"
    """"bert" replaces 80 % of the selected tokens by the mask, 10 % by random ones and keeps 10 %; "all" replaces all."""
    p: float = Field(default=0.2, gt=0, lt=1)
    """Share of tokens that is selected."""


class Mntp(TrainingStage[MntpOptions]):
    """The model's own shifted loss, at masked tokens, with every token visible."""

    name = "mntp"
    options = MntpOptions
    predicts_tokens = True
    attention = "bidirectional"

    def prepare(self, options: MntpOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Chunks, masked by the seed and their position in the schedule."""
        module: Any = model.language_model
        tokenizer, backbone = model.embedder.tokenizer, model.embedder.backbone
        rows, pad_id = _scheduled_chunks(options, model, sets, seed)
        collate = MaskingCollator(
            pad_id,
            share=options.p,
            as_bert=options.masking == "bert",
            mask_id=mask_token(options, tokenizer),
            # some tokenizers know more tokens than the model embeds: gemma-3-1b's has one of the image models more
            vocabulary=min(len(tokenizer), vocabulary_of(module)),
            special=set(tokenizer.all_special_ids),
            seed=seed,
        )

        def objective(language_model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
            labels = inputs.pop("labels")
            with backbone.computing():
                logits, targets, _ = target_logits(language_model, inputs, labels)
                size: dict[str, Any] = {"vocab_size": logits.shape[-1], "num_items_in_batch": items}
                return language_model.loss_function(logits, None, shift_labels=targets, **size)  # type: ignore[no-any-return, operator]

        return PreparedStage(module, rows, collate, objective)


def mask_token(options: MntpOptions, tokenizer: Any) -> int:
    """The id of the mask token. Raises UnmaskError if the tokenizer has no such token."""
    if options.mask == "_":
        return mask_id(tokenizer, options.mask)
    if tokenizer.eos_token_id is None:
        raise UnmaskError('mask = "eos" needs an end-of-sequence token, and this tokenizer has none: use "_".')
    return int(tokenizer.eos_token_id)


class NextTokenOptions(LanguageOptions):
    """Plain next-token prediction."""

    balance: float = Field(default=0.01, ge=0)
    """Weight of the load-balancing loss, on a mixture of experts."""


class NextToken(TrainingStage[NextTokenOptions]):
    """The model's own loss, with the load-balancing loss of a mixture of experts."""

    name = "next-token"
    options = NextTokenOptions
    predicts_tokens = True
    attention = "causal"

    def prepare(self, options: NextTokenOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Unmasked chunks."""
        module: Any = model.language_model
        backbone = model.embedder.backbone
        is_balanced = bool(backbone.routers) and options.balance > 0
        if is_balanced and not hasattr(module, "router_aux_loss_coef"):
            raise UnmaskError(f"{type(module).__name__} has no load-balancing loss, so set next-token.balance = 0.")

        @contextmanager
        def with_balance_loss() -> Iterator[None]:
            # models cache the coefficient when they are built, and add the full auxiliary loss in every micro-batch, so it is divided
            before = (module.config.output_router_logits, module.router_aux_loss_coef)
            share = options.balance / (options.accumulate * processes.count())
            module.config.output_router_logits, module.router_aux_loss_coef = True, share
            try:
                yield
            finally:
                module.config.output_router_logits, module.router_aux_loss_coef = before

        def objective(language_model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
            mask = inputs.pop("attention_mask")
            padding = {} if bool(mask.all()) else {"attention_mask": mask}
            with backbone.computing():
                return language_model(**inputs, **padding, num_items_in_batch=items, use_cache=False).loss  # type: ignore[no-any-return]

        rows, pad_id = _scheduled_chunks(options, model, sets, seed)
        return PreparedStage(
            module, rows, NextTokenCollator(pad_id), objective, with_balance_loss if is_balanced else nullcontext
        )
