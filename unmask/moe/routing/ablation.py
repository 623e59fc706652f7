"""Ablation: what an expert is for, by the loss of texts when it is removed.

A removed expert is replaced for each token that it would act on: the best expert that was not chosen takes its place, with its gate. If all
experts act, the gates of the others grow so that their sum stays. So the strength of the experts is as before, and only who acts changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.encoding.backbone import Backbone
from unmask.encoding.batching import collate, plan
from unmask.encoding.loaded_model import LoadedModel
from unmask.encoding.tokenization import TokenizedText
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.terminal import progress_bar
from unmask.models.decoder import model_lock
from unmask.models.routers import Router, why_no_routers
from unmask.moe.mixture.gating import gates
from unmask.moe.routing.expert_record import LabelLosses, Removal
from unmask.moe.routing.record import Point
from unmask.moe.routing.recording import routing_points
from unmask.moe.routing.statistics.text_bootstrap import Measured, bootstrap_texts, measured

_LOGITS_AT_ONCE = 2**26


@dataclass(frozen=True, eq=False)
class Ablation:
    """What texts lose without each expert.

    points: the routing points. loss: mean negative log-likelihood per token of each text, in nats. without: the same for each removal.
    """

    points: tuple[Point, ...]
    removals: tuple[Removal, ...]
    loss: Float[NDArray[np.float64], " text"]
    without: Float[NDArray[np.float64], "removal text"]

    def whole(self, seed: int = 0) -> Measured:
        """The mean loss over all texts, with all experts."""
        return _mean(self.loss, seed)

    def changes(self, seed: int = 0) -> tuple[Measured, ...]:
        """The mean change of each removal over all texts, paired by text."""
        return tuple(_mean(change, seed) for change in self.without - self.loss)

    def by_label(self, labels: Sequence[str], seed: int = 0) -> LabelLosses:
        """The losses for each value of a label. labels: the value of each text. Raises UnmaskError if they do not match the texts."""
        if len(labels) != len(self.loss):
            raise UnmaskError(f"There are {len(self.loss)} texts and {len(labels)} labels; each text needs one.")
        values, codes = np.unique(labels, return_inverse=True)
        own = [codes == place for place in range(len(values))]
        changes = (tuple(_mean(change[mask], seed) for mask in own) for change in self.without - self.loss)
        return LabelLosses(tuple(map(str, values)), tuple(_mean(self.loss[mask], seed) for mask in own), tuple(changes))


def without_expert(
    weights: Float[Tensor, "row expert"], scores: Float[Tensor, "row expert"], expert: int
) -> Float[Tensor, "row expert"]:
    """Gates without one expert, with the sum that they had. weights: the gates, 0 for experts that do not act. scores: of the router."""
    own = weights[:, expert : expert + 1].clone()
    rest = weights.clone()
    rest[:, expert] = 0
    free = weights == 0
    free[:, expert] = False
    best = scores.float().masked_fill(~free, -torch.inf).argmax(dim=-1, keepdim=True)
    replaced = rest.scatter_add(-1, best, own)
    total = rest.sum(dim=-1, keepdim=True)
    grown = rest * torch.where(total > 0, (total + own) / total.clamp_min(1e-12), torch.ones_like(total))
    return torch.where(free.any(dim=-1, keepdim=True), replaced, grown)


@contextmanager
def removed(model: Any, routers: Sequence[Router], points: Sequence[int], expert: int) -> Iterator[None]:
    """Route around an expert at some routing points inside a `with` block. model: the decoder.

    Raises UnmaskError for a model whose experts cannot be replaced.
    """
    mixture = getattr(model, "mixture", None)
    if mixture is not None:
        if set(points) != set(range(len(routers))):
            raise UnmaskError("An expert of this mixture is one for all blocks: remove it at all routing points.")
        gating = mixture.routing
        with mixture.with_gates(lambda logits: _around(gates(logits, gating), logits, expert)):
            yield
        return
    with model_lock(model), ExitStack() as hooks:
        for point in points:
            hook = _hook(routers[point], expert)
            hooks.callback(routers[point].module.register_forward_hook(hook).remove)
        yield


def _around(weights: Tensor, logits: Tensor, expert: int) -> Tensor:
    flat = without_expert(weights.flatten(0, -2), logits.flatten(0, -2), expert)
    return flat.reshape(weights.shape)


def _hook(router: Router, expert: int) -> Any:
    """Changes what a router says: its weights and indices of the chosen experts."""

    def hook(module: nn.Module, _: Any, output: Any) -> Any:
        parts = list(output) if isinstance(output, tuple) else []
        places = [at for at, part in enumerate(parts) if isinstance(part, Tensor) and not part.is_floating_point()]
        if len(places) != 1 or router.weight is not None:
            raise UnmaskError(f"{type(module).__name__} does not say which experts it chooses, so none can be removed.")
        indices, scores = parts[places[0]], router.scores(output).float()
        if indices.shape[1] < scores.shape[1]:
            best = scores.scatter(1, indices, -torch.inf).argmax(dim=-1, keepdim=True)
            parts[places[0]] = torch.where(indices == expert, best, indices)
        else:  # all experts act, so none is free to take over
            alike = [at for at, part in enumerate(parts) if at != places[0] and part.shape == indices.shape]
            if len(alike) != 2 or indices.shape[1] < 2:
                raise UnmaskError(f"{type(module).__name__} does not say how strongly its experts act, so none can be removed.")
            parts[alike[1]] = _without(parts[alike[1]], indices == expert)  # the gates stand behind the scores
        return tuple(parts)

    return hook


def _without(weights: Tensor, removed: Tensor) -> Tensor:
    """Gates of all experts without some, with the sum that they had."""
    rest = weights.masked_fill(removed, 0)
    return rest * (weights.sum(dim=-1, keepdim=True) / rest.sum(dim=-1, keepdim=True).clamp_min(1e-12))


def ablate_experts(
    model: LoadedModel,
    texts: Sequence[str],
    *,
    together: bool = False,
    max_length: int | None = None,
    batch_tokens: int = 2048,
) -> Ablation:
    """Remove each expert in turn, and measure the loss of texts.

    model: causal, with the output layer that predicts tokens. together: an expert is removed at all routing points at once, for experts
    that have one origin, such as a branch; else at one point after the other. Experts of a mixture of LoRA experts are always removed
    at all points. Raises UnmaskError for a dense model, and for texts of fewer than two tokens.
    """
    backbone = model.backbone
    body = backbone.model
    if not backbone.routers:
        raise UnmaskError(f"'{model.source.model}' {why_no_routers(body)}.")
    points = experts_of(backbone)
    own = {router.module: router for router in backbone.routers}
    routers = [own[module] for module in points]  # in the order in which they run
    tokenized = list(model.prompt_tokenizer("plain", max_length).tokenize(texts))
    if any(len(text.ids) < 2 for text in tokenized):
        raise UnmaskError("A text of one token has no loss: leave out texts of fewer than two tokens.")
    removals = _removals([point.experts for point in points.values()], together or getattr(body, "mixture", None) is not None)
    with progress_bar("removing experts", 1 + len(removals)) as advance:
        loss = text_losses(model.language_model, tokenized, batch_tokens)
        advance(1)
        without = []
        for removal in removals:
            with removed(body, routers, removal.points, removal.expert):
                without.append(text_losses(model.language_model, tokenized, batch_tokens))
            advance(1)
    if not np.isfinite([loss, *without]).all():
        raise UnmaskError("A loss is not finite. Use --dtype float32; if that does not help, the weights are damaged.")
    return Ablation(tuple(points.values()), removals, loss, np.stack(without))


def experts_of(backbone: Backbone) -> dict[nn.Module, Point]:
    """The routing points whose experts can be removed, in the order in which they run. In a mixture of ours, experts of the base stay.

    Raises UnmaskError for routers that do not say what they choose.
    """
    try:
        points = routing_points(backbone)
    except UnmaskError as error:
        raise UnmaskError(f"No expert can be removed: {error}") from error
    mixture = getattr(backbone.model, "mixture", None)
    if mixture is not None:
        ours = set(mixture.points.values())
        points = {module: point for module, point in points.items() if module in ours}
    return points


def _removals(numbers: Sequence[int], together: bool) -> tuple[Removal, ...]:
    """Each expert once. numbers: of experts, by routing point."""
    if together:
        return tuple(Removal(tuple(range(len(numbers))), expert) for expert in range(max(numbers)))
    return tuple(Removal((point,), expert) for point, number in enumerate(numbers) for expert in range(number))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def text_losses(model: Any, texts: Sequence[TokenizedText], batch_tokens: int = 2048) -> NDArray[np.float64]:
    """Mean negative log-likelihood per token of each text, in nats, shape (text,)."""
    device, losses = next(model.parameters()).device, np.zeros(len(texts))
    budget = min(batch_tokens, max(1, _LOGITS_AT_ONCE // model.get_output_embeddings().weight.shape[0]))
    for batch in plan([len(text.ids) for text in texts], budget):
        own = collate([texts[index] for index in batch], 0)
        ids, real = own.ids.to(device), own.real.to(device)
        logits = model(input_ids=ids, attention_mask=real.long(), use_cache=False).logits[:, :-1].float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").reshape(len(batch), -1)
        mask = real[:, 1:]
        losses[batch] = ((loss * mask).sum(dim=1) / mask.sum(dim=1)).double().cpu().numpy()
    return losses


def _mean(values: NDArray[np.float64], seed: int) -> Measured:
    samples = bootstrap_texts(lambda weights: weights @ values / len(values), len(values), seed=seed)
    return measured(float(values.mean()), samples)
