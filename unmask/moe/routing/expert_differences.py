"""Expert differences: how different the experts of a model are, by what they output for the same tokens and by their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.encoding.batching import collate
from unmask.encoding.loaded_model import LoadedModel
from unmask.errors import UnmaskError
from unmask.models.routers import why_no_routers
from unmask.moe.routing.expert_record import LayerDifference, OutputDifferences
from unmask.moe.routing.statistics.distinctness import output_cka, output_cosine, subspace_overlap
from unmask.moe.routing.statistics.text_bootstrap import Measured, bootstrap_texts, mean_of
from unmask.statistics.intervals import jackknife_interval

if TYPE_CHECKING:
    from unmask.moe.mixture.expert_folder import Expert

Cosine = tuple[float, NDArray[np.float64], float]
"""A mean cosine, its resamples, and what chance gives."""
Cka = tuple[float, NDArray[np.float64]]
"""A CKA, and its values without each text."""


def output_differences(
    model: LoadedModel, texts: Sequence[str], seed: int = 0, max_length: int | None = None
) -> OutputDifferences:
    """Compare the outputs of all experts on the tokens of some texts, at each routing point of a native mixture.

    Every expert gets every token, whatever the router says. All outputs of one layer are in memory: a few thousand tokens are enough.
    Intervals are over texts: of cosines by bootstrap, of CKA by jackknife. Raises UnmaskError for a dense model, and for experts
    that cannot be called one by one.
    """
    backbone = model.backbone
    tokenized = list(model.prompt_tokenizer("plain", max_length).tokenize(texts))
    inputs: dict[str, list[Tensor]] = {}
    names = {module: name for name, module in backbone.model.named_modules()}
    modules = {names[router.module]: _experts_beside(backbone.model, names[router.module]) for router in backbone.routers}
    if not modules:
        raise UnmaskError(f"'{model.source.model}' {why_no_routers(backbone.model)}.")
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
        raise UnmaskError(f"The experts of '{model.source.model}' cannot be called one by one.")
    found = {name: _compare(name, _outputs(modules[name], torch.cat(given)), lengths, seed) for name, given in inputs.items()}
    return OutputDifferences(
        mean_of([cosine for cosine, _ in found.values()]),
        _cka_of([cka for _, cka in found.values()]),
        tuple(LayerDifference(name, mean_of([cosine]), _cka_of([cka])) for name, (cosine, cka) in found.items()),
    )


def factor_overlaps(experts: Sequence[Expert]) -> dict[str, float]:
    """For each linear map, the overlap of the directions that two LoRA experts write to: 1 if they are the same, r / dim by chance.

    There are no intervals: an overlap is a property of the weights, and no texts were drawn to measure it. Raises ValueError for fewer
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
        raise UnmaskError(f"'{router}' has no module of experts beside it, so their outputs cannot be compared.")
    return experts


def _keeper(kept: list[Tensor]) -> Any:
    def keep(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        hidden = next(part for part in (*args, *named.values()) if isinstance(part, Tensor) and part.is_floating_point())
        kept.append(hidden.reshape(-1, hidden.shape[-1]))

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
        chosen = torch.full((len(hidden), 1), expert, device=hidden.device)
        outputs.append(experts(hidden, chosen, ones).float().cpu().numpy())
    return np.stack(outputs)


def _compare(name: str, outputs: NDArray[np.float32], lengths: NDArray[np.int64], seed: int) -> tuple[Cosine, Cka]:
    """The measures of one layer, with what the intervals need: resamples of the cosine, and CKA without each text."""
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
