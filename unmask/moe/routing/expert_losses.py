"""Expert losses: what texts lose without each expert (ablation). Saved as `experts.json`.

A removed expert is replaced for each token that it would act on: the best expert that was not chosen takes over its gate. If all experts
act, the gates of the others grow so that their sum stays the same. So only the choice of experts changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.encoding.batching import collate, plan
from unmask.encoding.encoder import Encoder
from unmask.encoding.tokenization import TokenizedText
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.files import refuse_foreign
from unmask.io.seals import CHECKSUM
from unmask.io.terminal import progress_bar
from unmask.models.decoder import model_lock
from unmask.models.loading import dtype_name
from unmask.models.routers import Router, why_no_routers
from unmask.moe.mixture.gating import gates
from unmask.moe.routing.labelled_texts import LabelledTexts
from unmask.moe.routing.record import (
    EXPERTS,
    RECORD,
    ExpertLosses,
    LabelLosses,
    Point,
    RecordSettings,
    Removal,
    read_expert_losses,
)
from unmask.moe.routing.recording import check_folder, routing_points
from unmask.moe.routing.text_bootstrap import mean_interval

_LOGITS_AT_ONCE = 2**26


@dataclass(frozen=True, eq=False)
class Ablation:
    """What texts lose without each expert."""

    points: tuple[Point, ...]
    removals: tuple[Removal, ...]
    loss: Float[NDArray[np.float64], " text"]
    """Mean negative log-likelihood per token of each text, in nats."""
    changes: Float[NDArray[np.float64], "removal text"]
    """Of the loss, for each removal."""

    def by_label(self, labels: Sequence[str], seed: int = 0) -> LabelLosses:
        """The losses for each value of a label. labels: the value of each text."""
        values, codes = np.unique(labels, return_inverse=True)
        masks = [codes == code for code in range(len(values))]
        return LabelLosses(
            tuple(map(str, values)),
            tuple(mean_interval(self.loss[mask], seed=seed) for mask in masks),
            tuple(tuple(mean_interval(change[mask], seed=seed) for mask in masks) for change in self.changes),
        )


def without_expert(
    weights: Float[Tensor, "row expert"], scores: Float[Tensor, "row expert"], expert: int
) -> Float[Tensor, "row expert"]:
    """Gates without one expert, with the sum that they had. weights: the gates, 0 for experts that do not act. scores: of the router."""
    gate = weights[:, expert : expert + 1].clone()
    rest = weights.clone()
    rest[:, expert] = 0
    free = weights == 0
    free[:, expert] = False
    best = scores.float().masked_fill(~free, -torch.inf).argmax(dim=-1, keepdim=True)
    replaced = rest.scatter_add(-1, best, gate)
    total = rest.sum(dim=-1, keepdim=True)
    grown = rest * torch.where(total > 0, (total + gate) / total.clamp_min(1e-12), torch.ones_like(total))
    return torch.where(free.any(dim=-1, keepdim=True), replaced, grown)


@contextmanager
def route_around(model: Any, routers: Sequence[Router], points: Sequence[int], expert: int) -> Iterator[None]:
    """Route around an expert at some routing points inside a `with` block. model: the decoder.

    Raises UnmaskError for a model whose experts cannot be replaced.
    """
    mixture = getattr(model, "mixture", None)
    if mixture is not None:
        if set(points) != set(range(len(routers))):
            raise UnmaskError("An expert of this mixture is one for all blocks: remove it at all routing points.")

        def gate_function(logits: Tensor) -> Tensor:
            weights = gates(logits, mixture.routing)
            return without_expert(weights.flatten(0, -2), logits.flatten(0, -2), expert).reshape(weights.shape)

        with mixture.with_gates(gate_function):
            yield
        return
    with model_lock(model), ExitStack() as hooks:
        for point in points:
            hook = _hook(routers[point], expert)
            hooks.callback(routers[point].module.register_forward_hook(hook).remove)
        yield


def _hook(router: Router, expert: int) -> Any:
    """A forward hook that replaces an expert in the output of a router."""

    def hook(module: nn.Module, _: Any, output: Any) -> Any:
        parts = list(output) if isinstance(output, tuple) else []
        index_parts = [index for index, part in enumerate(parts) if isinstance(part, Tensor) and not part.is_floating_point()]
        if len(index_parts) != 1 or router.weight is not None:
            raise UnmaskError(f"{type(module).__name__} does not say which experts it chooses, so none can be removed.")
        indices, scores = parts[index_parts[0]], router.scores(output).float()
        if indices.shape[1] < scores.shape[1]:
            best = scores.scatter(1, indices, -torch.inf).argmax(dim=-1, keepdim=True)
            parts[index_parts[0]] = torch.where(indices == expert, best, indices)
        else:  # all experts act, so none is free to take over
            same_shape = [index for index, part in enumerate(parts) if index != index_parts[0] and part.shape == indices.shape]
            if len(same_shape) != 2 or indices.shape[1] < 2:
                raise UnmaskError(f"{type(module).__name__} does not say how strongly its experts act, so none can be removed.")
            gates_part = parts[same_shape[1]]  # the gates come after the scores
            rest = gates_part.masked_fill(indices == expert, 0)
            parts[same_shape[1]] = rest * (
                gates_part.sum(dim=-1, keepdim=True) / rest.sum(dim=-1, keepdim=True).clamp_min(1e-12)
            )
        return tuple(parts)

    return hook


def ablate_experts(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    all_points: bool = False,
    batch_tokens: int = 2048,
) -> Ablation:
    """Remove each expert in turn, and measure the loss of texts.

    encoder: of a causal model with the output layer that predicts tokens. texts: of two tokens or more. all_points: an expert is removed at
    all routing points at once, for experts that have one origin, such as a branch; else at one point after the other. LoRA experts are
    always removed at all points, and the experts of their base stay. Raises UnmaskError for a dense model, and for routers that do not
    say what they choose.
    """
    backbone = encoder.backbone
    if not backbone.routers:
        raise UnmaskError(f"'{encoder.source.model}' {why_no_routers(backbone.model)}.")
    try:
        point_of = routing_points(backbone)
    except UnmaskError as error:
        raise UnmaskError(f"No expert can be removed: {error}") from error
    mixture = getattr(backbone.model, "mixture", None)
    if mixture is not None:
        point_of = {module: point for module, point in point_of.items() if module in set(mixture.points.values())}
    points = tuple(point_of.values())
    if all_points or mixture is not None:
        every = tuple(range(len(points)))
        removals = tuple(Removal(every, expert) for expert in range(max(point.experts for point in points)))
    else:
        removals = tuple(Removal((index,), expert) for index, point in enumerate(points) for expert in range(point.experts))
    router_of = {router.module: router for router in backbone.routers}
    routers = [router_of[module] for module in point_of]  # in the order in which they run
    tokenized = list(encoder.prompt_tokenizer("plain").tokenize(texts))
    losses = []
    with progress_bar("removing experts", 1 + len(removals)) as advance:
        for removal in (None, *removals):
            with route_around(backbone.model, routers, removal.points, removal.expert) if removal else ExitStack():
                losses.append(text_losses(encoder.language_model, tokenized, batch_tokens))
            advance(1)
    if not np.isfinite(losses).all():
        raise UnmaskError("A loss is not finite. Use --dtype float32; if that does not help, the weights are damaged.")
    return Ablation(points, removals, losses[0], np.stack(losses[1:]) - losses[0])


@torch.inference_mode()  # type: ignore[untyped-decorator]
def text_losses(model: Any, texts: Sequence[TokenizedText], batch_tokens: int = 2048) -> NDArray[np.float64]:
    """Mean negative log-likelihood per token of each text, in nats, shape (text,)."""
    device, losses = next(model.parameters()).device, np.zeros(len(texts))
    budget = min(batch_tokens, max(1, _LOGITS_AT_ONCE // model.get_output_embeddings().weight.shape[0]))
    for batch in plan([len(text.ids) for text in texts], budget):
        inputs = collate([texts[index] for index in batch], 0)
        ids, attention_mask = inputs.ids.to(device), inputs.attention_mask.to(device)
        logits = model(input_ids=ids, attention_mask=attention_mask.long(), use_cache=False).logits[:, :-1].float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").reshape(len(batch), -1)
        mask = attention_mask[:, 1:]
        losses[batch] = ((loss * mask).sum(dim=1) / mask.sum(dim=1)).double().cpu().numpy()
    return losses


def measure_experts(
    encoder: Encoder,
    labelled: LabelledTexts,
    folder: Path,
    *,
    all_points: bool = False,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> ExpertLosses:
    """Remove each expert in turn, and write `experts.json` into a folder. all_points: see `ablate_experts`.

    Labels of words are left out: a loss belongs to a text. Raises UnmaskError for a dense model, for a folder with other files or with
    a routing record or losses of another model, and if no text has two tokens.
    """
    if labelled.token_labels:
        warnings.warn(
            f"Labels of words are ignored, since losses are per text: {', '.join(labelled.token_labels)}.", stacklevel=2
        )
    weights = str(encoder.provenance["weights"])
    check_folder(folder)
    refuse_foreign(folder / EXPERTS, [CHECKSUM])
    for content, before in (("a routing record", RecordSettings.read(folder / RECORD)), ("losses", read_expert_losses(folder))):
        if before is not None and before.weights != weights:
            raise UnmaskError(f"'{folder}' holds {content} of '{before.model}' with other weights: give another folder.")
    tokenized = encoder.prompt_tokenizer("plain").tokenize([text.text for text in labelled.texts])
    sizes = [len(tokens.ids) for tokens in tokenized]
    texts = [text for text, size in zip(labelled.texts, sizes, strict=True) if size > 1]
    if not texts:
        raise UnmaskError("No text has two tokens, so there is no loss to measure.")
    ablation = ablate_experts(encoder, [text.text for text in texts], all_points=all_points, batch_tokens=batch_tokens or 2048)
    mixture = getattr(encoder.backbone.model, "mixture", None)
    losses = ExpertLosses(
        model=encoder.source.model,
        weights=weights,
        dtype=dtype_name(encoder.backbone.model),
        max_length=encoder.prompt_tokenizer("plain").max_length,
        seed=seed,
        sources=labelled.sources,
        texts=len(texts),
        tokens=sum(size for size in sizes if size > 1),
        left_out=len(labelled.texts) - len(texts),
        points=ablation.points,
        experts=tuple(expert.name for expert in mixture.experts) if mixture else None,
        loss=mean_interval(ablation.loss, seed=seed),
        removals=ablation.removals,
        changes=tuple(mean_interval(change, seed=seed) for change in ablation.changes),
        labels={
            name: ablation.by_label([text.values[index] for text in texts], seed) for index, name in enumerate(labelled.labels)
        },
        provenance=encoder.provenance | {"attention": encoder.backbone.attention},
    )
    folder.mkdir(parents=True, exist_ok=True)
    losses.write(folder / EXPERTS)
    return losses
