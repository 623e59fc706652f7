"""Expert losses: what texts lose without each expert (ablation), and how different the experts are. Saved as `experts.json`.

A removed expert is replaced for each token that it would act on: the best expert that was not chosen takes over its gate. If all experts
act, the gates of the others grow so that their sum stays the same. So only the choice of experts changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.encoding.backbone import Backbone
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
from unmask.moe.routing.formulas import output_cka, output_cosine, subspace_overlap
from unmask.moe.routing.labelled_texts import LabelledText, LabelledTexts
from unmask.moe.routing.record import (
    EXPERTS,
    RECORD,
    ExpertLosses,
    LabelLosses,
    LayerDifference,
    OutputDifferences,
    Point,
    RecordSettings,
    Removal,
    read_expert_losses,
)
from unmask.moe.routing.recording import check_folder, routing_points
from unmask.moe.routing.text_bootstrap import Measured, bootstrap_texts, mean_of, measured
from unmask.statistics.intervals import jackknife_interval

if TYPE_CHECKING:
    from unmask.moe.mixture.expert_folder import Expert


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
        masks = [codes == code for code in range(len(values))]
        changes = (tuple(_mean(change[mask], seed) for mask in masks) for change in self.without - self.loss)
        return LabelLosses(tuple(map(str, values)), tuple(_mean(self.loss[mask], seed) for mask in masks), tuple(changes))


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
            parts[same_shape[1]] = _without(parts[same_shape[1]], indices == expert)  # the gates stand behind the scores
        return tuple(parts)

    return hook


def _without(weights: Tensor, removed: Tensor) -> Tensor:
    """Gates without the removed experts, with the same sum."""
    rest = weights.masked_fill(removed, 0)
    return rest * (weights.sum(dim=-1, keepdim=True) / rest.sum(dim=-1, keepdim=True).clamp_min(1e-12))


def ablate_experts(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    all_points: bool = False,
    batch_tokens: int = 2048,
) -> Ablation:
    """Remove each expert in turn, and measure the loss of texts.

    model: causal, with the output layer that predicts tokens. all_points: an expert is removed at all routing points at once, for experts
    that have one origin, such as a branch; else at one point after the other. Experts of a mixture of LoRA experts are always removed
    at all points. Raises UnmaskError for a dense model, and for texts of fewer than two tokens.
    """
    backbone = encoder.backbone
    body = backbone.model
    if not backbone.routers:
        raise UnmaskError(f"'{encoder.source.model}' {why_no_routers(body)}.")
    points = experts_of(backbone)
    router_of = {router.module: router for router in backbone.routers}
    routers = [router_of[module] for module in points]  # in the order in which they run
    tokenized = list(encoder.prompt_tokenizer("plain").tokenize(texts))
    if any(len(text.ids) < 2 for text in tokenized):
        raise UnmaskError("A text of one token has no loss: leave out texts of fewer than two tokens.")
    removals = _removals([point.experts for point in points.values()], all_points or getattr(body, "mixture", None) is not None)
    with progress_bar("removing experts", 1 + len(removals)) as advance:
        loss = text_losses(encoder.language_model, tokenized, batch_tokens)
        advance(1)
        without = []
        for removal in removals:
            with removed(body, routers, removal.points, removal.expert):
                without.append(text_losses(encoder.language_model, tokenized, batch_tokens))
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


def _removals(numbers: Sequence[int], all_points: bool) -> tuple[Removal, ...]:
    """Each expert once. numbers: of experts, by routing point."""
    if all_points:
        return tuple(Removal(tuple(range(len(numbers))), expert) for expert in range(max(numbers)))
    return tuple(Removal((point,), expert) for point, number in enumerate(numbers) for expert in range(number))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def text_losses(model: Any, texts: Sequence[TokenizedText], batch_tokens: int = 2048) -> NDArray[np.float64]:
    """Mean negative log-likelihood per token of each text, in nats, shape (text,)."""
    device, losses = next(model.parameters()).device, np.zeros(len(texts))
    budget = min(batch_tokens, max(1, _LOGITS_AT_ONCE // model.get_output_embeddings().weight.shape[0]))
    for batch in plan([len(text.ids) for text in texts], budget):
        inputs = collate([texts[index] for index in batch], 0)
        ids, real = inputs.ids.to(device), inputs.real.to(device)
        logits = model(input_ids=ids, attention_mask=real.long(), use_cache=False).logits[:, :-1].float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").reshape(len(batch), -1)
        mask = real[:, 1:]
        losses[batch] = ((loss * mask).sum(dim=1) / mask.sum(dim=1)).double().cpu().numpy()
    return losses


def _mean(values: NDArray[np.float64], seed: int) -> Measured:
    samples = bootstrap_texts(lambda weights: weights @ values / len(values), len(values), seed=seed)
    return measured(float(values.mean()), samples)


Cosine = tuple[float, NDArray[np.float64], float]
"""A mean cosine, its resamples, and what chance gives."""
Cka = tuple[float, NDArray[np.float64]]
"""A CKA, and its values without each text."""


def output_differences(encoder: Encoder, texts: Sequence[str], seed: int = 0) -> OutputDifferences:
    """Compare the expert outputs on the tokens of some texts, at each routing point of a native mixture.

    Every expert gets every token, whatever the router says. All outputs of one layer are in memory: a few thousand tokens are enough.
    Intervals are over texts: of cosines by bootstrap, of CKA by jackknife. Raises UnmaskError for a dense model, and for experts
    that cannot be called one by one.
    """
    backbone = encoder.backbone
    tokenized = list(encoder.prompt_tokenizer("plain").tokenize(texts))
    inputs: dict[str, list[Tensor]] = {}
    names = {module: name for name, module in backbone.model.named_modules()}
    modules = {names[router.module]: _experts_beside(backbone.model, names[router.module]) for router in backbone.routers}
    if not modules:
        raise UnmaskError(f"'{encoder.source.model}' {why_no_routers(backbone.model)}.")
    hooks = [
        module.register_forward_pre_hook(_keeper(inputs.setdefault(name, [])), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        with torch.inference_mode(), backbone.computing():
            for text in tokenized:
                backbone.model(input_ids=collate([text], 0).ids.to(backbone.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    lengths = np.array([len(text.ids) for text in tokenized])
    if not all(inputs.values()):
        raise UnmaskError(f"The experts of '{encoder.source.model}' cannot be called one by one.")
    differences = {
        name: _compare(name, _outputs(modules[name], torch.cat(states)), lengths, seed) for name, states in inputs.items()
    }
    return OutputDifferences(
        mean_of([cosine for cosine, _ in differences.values()]),
        _cka_of([cka for _, cka in differences.values()]),
        tuple(LayerDifference(name, mean_of([cosine]), _cka_of([cka])) for name, (cosine, cka) in differences.items()),
    )


def factor_overlaps(experts: Sequence[Expert]) -> dict[str, float]:
    """For each linear map, the overlap of the directions that two LoRA experts write to: 1 if they are the same, r / dim by chance.

    There are no intervals: an overlap is a property of the weights and does not depend on sampled texts. Raises ValueError for fewer
    than two experts.
    """
    names = experts[0].factors
    return {
        name: subspace_overlap([np.asarray(expert.factors[name][1].detach().float().cpu()) for expert in experts])
        for name in names
    }


def _experts_beside(model: nn.Module, router: str) -> nn.Module:
    experts = getattr(model.get_submodule(router.rpartition(".")[0]), "experts", None)
    if not isinstance(experts, nn.Module):
        raise UnmaskError(f"'{router}' has no sibling module of experts, so their outputs cannot be compared.")
    return experts


def _keeper(states: list[Tensor]) -> Any:
    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = next(part for part in (*args, *kwargs.values()) if isinstance(part, Tensor) and part.is_floating_point())
        states.append(hidden.reshape(-1, hidden.shape[-1]))

    return keep


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _outputs(experts: nn.Module, hidden: Tensor) -> NDArray[np.float32]:
    """The output of each expert for each token at gate 1, (expert, token, dim)."""
    number = next((weight.shape[0] for weight in experts.parameters() if weight.dim() == 3), None)
    if number is None:
        raise UnmaskError(f"{type(experts).__name__} holds no experts side by side, so their outputs cannot be compared.")
    ones = hidden.new_ones(len(hidden), 1)
    outputs = []
    for expert in range(number):
        index = torch.full((len(hidden), 1), expert, device=hidden.device)
        outputs.append(experts(hidden, index, ones).float().cpu().numpy())
    return np.stack(outputs)


def _compare(name: str, outputs: NDArray[np.float32], lengths: NDArray[np.int64], seed: int) -> tuple[Cosine, Cka]:
    """The measures of one layer and, for the intervals, resamples of the cosine and CKA without each text."""
    if not np.isfinite(outputs).all():
        raise UnmaskError(f"The experts of '{name}' give numbers that are not finite. Use --dtype float32.")
    starts = np.cumsum(lengths) - lengths
    sums = np.add.reduceat(output_cosine(outputs), starts)

    def statistic(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(weights @ sums / (weights @ lengths))

    value = float(statistic(np.ones((1, len(lengths))))[0])
    return (value, bootstrap_texts(statistic, len(lengths), seed=seed), 0.0), output_cka(outputs, lengths)


def _cka_of(points: Sequence[Cka]) -> Measured | None:
    """The mean of CKA over routing points; None if there is one text only."""
    value = float(np.mean([value for value, _ in points]))
    if np.isnan(value):
        return None
    return Measured(value, 0.0, jackknife_interval(value, np.mean([left_out for _, left_out in points], axis=0), most=1.0))


_COMPARED = 2000
"""Tokens on which the outputs of experts are compared. All outputs of one layer are in memory."""


def check_experts_folder(folder: Path, weights: str) -> None:
    """Raise UnmaskError for a folder with other files, or with a routing record or losses of another model."""
    check_folder(folder)
    refuse_foreign(folder / EXPERTS, [CHECKSUM])
    for content, before in (("a routing record", RecordSettings.read(folder / RECORD)), ("losses", read_expert_losses(folder))):
        if before is not None and before.weights != weights:
            raise UnmaskError(f"'{folder}' holds {content} of '{before.model}' with other weights: give another folder.")


def measure_experts(
    encoder: Encoder,
    labelled: LabelledTexts,
    folder: Path,
    *,
    all_points: bool = False,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> ExpertLosses:
    """Remove each expert in turn, compare the experts, and write `experts.json` into a folder. all_points: see `ablate_experts`.

    Labels of words are left out: a loss belongs to a text. Raises UnmaskError for a dense model, for a folder with foreign files, and if no
    text has two tokens.
    """
    if labelled.token_labels:
        warnings.warn(
            f"Labels of words are ignored, since losses are per text: {', '.join(labelled.token_labels)}.", stacklevel=2
        )
    weights = str(encoder.provenance["weights"])
    check_experts_folder(folder, weights)
    texts, tokens = _with_loss(encoder, labelled.texts)
    plain = [text.text for text in texts]
    mixture = getattr(encoder.backbone.model, "mixture", None)
    differences = None if mixture else _differences(encoder, _few(plain, tokens, seed), seed)
    ablation = ablate_experts(encoder, plain, all_points=all_points, batch_tokens=batch_tokens or 2048)
    labels = {name: [text.values[index] for text in texts] for index, name in enumerate(labelled.labels)}
    losses = ExpertLosses(
        model=encoder.source.model,
        weights=weights,
        dtype=dtype_name(encoder.backbone.model),
        max_length=encoder.prompt_tokenizer("plain").max_length,
        seed=seed,
        sources=labelled.sources,
        texts=len(texts),
        tokens=sum(tokens),
        left_out=len(labelled.texts) - len(texts),
        points=ablation.points,
        experts=tuple(expert.name for expert in mixture.experts) if mixture else None,
        loss=ablation.whole(seed),
        removals=ablation.removals,
        changes=ablation.changes(seed),
        labels={name: ablation.by_label(values, seed) for name, values in labels.items()},
        differences=differences,
        overlaps=factor_overlaps(mixture.experts) if mixture and len(mixture.experts) > 1 else {},
        provenance=encoder.provenance | {"attention": encoder.backbone.attention},
    )
    folder.mkdir(parents=True, exist_ok=True)
    losses.write(folder / EXPERTS)
    return losses


def _differences(encoder: Encoder, texts: Sequence[str], seed: int) -> OutputDifferences | None:
    """How the outputs of experts differ; None, with a warning, if they cannot be called one by one."""
    if not encoder.backbone.routers:
        return None  # the ablation says why
    try:
        return output_differences(encoder, texts, seed)
    except UnmaskError as error:
        warnings.warn(f"The outputs of experts are not compared: {error}", stacklevel=3)
        return None


def _with_loss(encoder: Encoder, texts: Sequence[LabelledText]) -> tuple[list[LabelledText], list[int]]:
    """The texts of two tokens or more, and their numbers of tokens. Raises UnmaskError if there is none."""
    tokenized = encoder.prompt_tokenizer("plain").tokenize([text.text for text in texts])
    usable = [(text, len(tokens.ids)) for text, tokens in zip(texts, tokenized, strict=True) if len(tokens.ids) > 1]
    if not usable:
        raise UnmaskError("No text has two tokens, so there is no loss to measure.")
    return [text for text, _ in usable], [tokens for _, tokens in usable]


def _few(texts: Sequence[str], tokens: Sequence[int], seed: int) -> list[str]:
    """Texts drawn by the seed, at most as many tokens as fit in memory with every expert's output; one text at least.

    They are drawn, since files are often sorted by source or label.
    """
    sample: list[str] = []
    total = 0
    for index in np.random.default_rng(seed).permutation(len(texts)):
        if sample and total + tokens[index] > _COMPARED:
            break
        sample.append(texts[index])
        total += tokens[index]
    return sample
