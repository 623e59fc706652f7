"""Next-token prediction: plain language modelling with causal attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from unmask.encoding.backbone import Backbone
from unmask.errors import UnmaskError
from unmask.models.decoder import pad_id_of
from unmask.training.data import DataSet
from unmask.training.stages.language import LanguageOptions, LanguageStage, scheduled_chunks
from unmask.training.stages.stage import Objective, Prepared, TrainableModel


class NextTokenOptions(LanguageOptions):
    """Plain next-token prediction. balance: weight of the load-balancing loss, on a mixture of experts."""

    balance: float = Field(default=0.01, ge=0)


class NextToken(LanguageStage[NextTokenOptions]):
    """The model's own loss, with the load-balancing loss of a mixture of experts."""

    name = "next-token"
    options = NextTokenOptions
    attention = "causal"

    def prepare(self, options: NextTokenOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> Prepared:
        """Unmasked chunks."""
        from unmask.training import processes
        from unmask.training.collate import NextTokenCollator

        module: Any = model.language_model
        backbone = model.embedder.backbone
        balances = bool(backbone.routers) and options.balance > 0
        if balances and not hasattr(module, "router_aux_loss_coef"):
            raise UnmaskError(f"{type(module).__name__} has no load-balancing loss, so set next-token.balance = 0.")

        @contextmanager
        def balanced() -> Iterator[None]:
            # models read the weight once, when they are made, and add the whole term to every part of a step
            before = (module.config.output_router_logits, module.router_aux_loss_coef)
            share = options.balance / (options.accumulate * processes.count())
            module.config.output_router_logits, module.router_aux_loss_coef = True, share
            try:
                yield
            finally:
                module.config.output_router_logits, module.router_aux_loss_coef = before

        rows, cut = scheduled_chunks(options, model, sets, seed)
        collate = NextTokenCollator(pad_id_of(model.embedder.tokenizer, module))
        return Prepared(module, rows, collate, _loss(backbone), balanced if balances else nullcontext, lambda: cut)


def _loss(backbone: Backbone) -> Objective:
    def objective(model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        mask = inputs.pop("attention_mask")
        padding = {} if bool(mask.all()) else {"attention_mask": mask}
        with backbone.computing():
            return model(**inputs, **padding, num_items_in_batch=items, use_cache=False).loss  # type: ignore[no-any-return]

    return objective
