"""Ablation: what an expert is for, by the loss of texts when it is removed.

A removed expert is replaced for each token that it would act on: the best expert that was not chosen takes its place, with its gate. If all
experts act, the gates of the others grow so that their sum stays. So the strength of the experts is as before, and only who acts changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.encoding.backbone import Backbone
from unmask.encoding.batching import collate, plan
from unmask.encoding.tokenization import MAX_LENGTH, PromptTokenizer, TokenizedText
from unmask.errors import UnmaskError
from unmask.io.terminal import progress_bar
from unmask.mixture.gating import gates
from unmask.models.decoder import body_of, model_lock
from unmask.models.routers import why_no_routers
from unmask.models.routing import Router
from unmask.probing.routing.recording import routing_points
from unmask.statistics.routing.text_bootstrap import Measured, bootstrap_texts, measured

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LOGITS_AT_ONCE = 2**26


@dataclass(frozen=True)
class Ablation:
    """Loss by label, and how it changes without each expert.

    labels: the values of the label. loss: mean negative log-likelihood per token of the texts of each label, in nats. changes: for each
    expert, its change for each label, paired by text. points: the routing points at which it is removed.
    """

    labels: tuple[str, ...]
    loss: tuple[float, ...]
    experts: tuple[int, ...]
    points: tuple[int, ...]
    changes: tuple[tuple[Measured, ...], ...]

    @property
    def dominance(self) -> float:
        """How far labels differ in the expert whose removal hurts them most: 0 if it is the same for all, 1 if no two share it."""
        most = np.argmax([[change.value for change in own] for own in self.changes], axis=0)
        different = min(len(self.labels), len(self.experts)) - 1
        return (len(np.unique(most)) - 1) / different if different else 0.0

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"dominance": self.dominance}


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
        best = scores.scatter(1, indices, -torch.inf).argmax(dim=-1, keepdim=True)
        if indices.shape[1] >= scores.shape[1]:
            raise UnmaskError("All experts of this model act on every token, so none can be replaced.")
        parts[places[0]] = torch.where(indices == expert, best, indices)
        return tuple(parts)

    return hook


def ablate_experts(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    experts: Sequence[int] | None = None,
    points: Sequence[int] | None = None,
    max_length: int = MAX_LENGTH,
    batch_tokens: int = 2048,
    seed: int = 0,
) -> Ablation:
    """Remove each expert in turn, at all routing points or at some, and measure the loss of texts by label.

    model: with the output layer that predicts tokens. Raises UnmaskError for a dense model, for labels that do not match the texts, and for
    texts of fewer than two tokens.
    """
    backbone = Backbone(body_of(model), "causal")
    body, routers = backbone.model, backbone.routers
    if not routers:
        raise UnmaskError(f"{type(body).__name__} {why_no_routers(body)}.")
    if len(texts) != len(labels):
        raise UnmaskError(f"There are {len(texts)} texts and {len(labels)} labels; each text needs one.")
    number = max(point.experts for point in routing_points(backbone).values())
    chosen = tuple(range(number)) if experts is None else tuple(experts)
    places = tuple(range(len(routers))) if points is None else tuple(points)
    tokenized = list(PromptTokenizer(tokenizer, "plain", max_length).tokenize(texts))
    if any(len(text.ids) < 2 for text in tokenized):
        raise UnmaskError("A text of one token has no loss: leave out texts of fewer than two tokens.")
    with progress_bar("removing experts", 1 + len(chosen)) as advance:
        whole = text_losses(model, tokenized, batch_tokens)
        advance(1)
        changes = []
        for expert in chosen:
            with removed(body, routers, places, expert):
                changes.append(text_losses(model, tokenized, batch_tokens) - whole)
            advance(1)
    values, codes = np.unique(labels, return_inverse=True)
    own = [codes == place for place in range(len(values))]
    return Ablation(
        tuple(map(str, values)),
        tuple(float(whole[mask].mean()) for mask in own),
        chosen,
        places,
        tuple(tuple(_mean(change[mask], seed) for mask in own) for change in changes),
    )


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
