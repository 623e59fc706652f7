"""MNTP: masked next-token prediction with bidirectional attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unmask.encoding.backbone import Backbone
from unmask.encoding.tokenization import mask_id
from unmask.errors import UnmaskError
from unmask.models.decoder import pad_id_of, vocabulary_of
from unmask.training.data import DataSet
from unmask.training.stages.language import LanguageOptions, LanguageStage, scheduled_chunks
from unmask.training.stages.stage import Objective, Prepared, TrainableModel


class MntpOptions(LanguageOptions):
    """Masked next-token prediction (LLM2Vec, section 2): masked token i is predicted from the state at position i - 1.

    mask: "_" as in the paper, "eos", or "new", an added token whose embedding is the mean embedding. masking: "bert" replaces
    80 % of the chosen tokens by the mask, 10 % by random ones and keeps 10 %; "all" replaces all. p: share that is chosen.
    """

    mask: Literal["_", "eos", "new"] = "_"
    masking: Literal["bert", "all"] = "bert"
    p: float = Field(default=0.2, gt=0, lt=1)


class Mntp(LanguageStage[MntpOptions]):
    """The model's own shifted loss, at masked tokens, with every token visible."""

    name = "mntp"
    options = MntpOptions
    attention = "bidirectional"

    def unshardable(self, options: MntpOptions) -> str | None:
        """A new token enlarges the embeddings."""
        return 'mntp.mask = "new", which enlarges the embeddings' if options.mask == "new" else None

    def prepare(self, options: MntpOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
        """Chunks, masked by the seed and their place in the schedule."""
        from unmask.training.collate import MaskingCollator

        tokenizer, module = model.embedder.tokenizer, model.language_model
        assert module is not None
        mask, around = mask_token(options, tokenizer, module)
        special, pad_id = set(tokenizer.all_special_ids), pad_id_of(tokenizer, module)
        # some tokenizers know more tokens than the model embeds: gemma-3-1b's has one of the image models more
        vocabulary = min(len(tokenizer), vocabulary_of(module))
        collate = MaskingCollator(options.p, options.masking == "bert", mask, pad_id, vocabulary, special, seed)
        rows, cut = scheduled_chunks(options, model, sets, seed)
        return Prepared(module, rows, collate, _masked_loss(model.embedder.backbone), around, lambda: cut)


def _masked_loss(backbone: Backbone) -> Objective:
    """The model's own loss, computed only where tokens are masked."""
    from unmask.training.targets import target_logits

    def objective(model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        labels = inputs.pop("labels")
        with backbone.computing():
            logits, targets, _ = target_logits(model, inputs, labels)
            size: dict[str, Any] = {"vocab_size": logits.shape[-1], "num_items_in_batch": items}
            return model.loss_function(logits, None, shift_labels=targets, **size)  # type: ignore[no-any-return, operator]

    return objective


def mask_token(options: MntpOptions, tokenizer: Any, model: Any) -> tuple[int, Callable[[], AbstractContextManager[None]]]:
    """The id of the mask token, and a context in which that token exists.

    A new token has the mean embedding, and is removed when the stage ends. Raises UnmaskError if the tokenizer has no such
    token.
    """
    if options.mask == "_":
        return mask_id(tokenizer, options.mask), nullcontext
    if options.mask == "eos":
        if tokenizer.eos_token_id is None:
            raise UnmaskError('mask = "eos" needs an end-of-sequence token, and this tokenizer has none: use "_" or "new".')
        return int(tokenizer.eos_token_id), nullcontext
    size = vocabulary_of(model)

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
