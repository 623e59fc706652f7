"""Output layer: what turns the last state of a decoder into a logit for each token of its vocabulary (the language-model head).

A loaded decoder has none. Its output layer is found when a design first needs it: the input embeddings where both are tied, else it is
read from the model's files. Some models then scale the logits (Granite, Cohere) or bound them (Gemma 2). What a model does is measured,
and the logits must equal the model's own logits, or the model is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.models.decoder import body_of, model_lock
from unmask.models.identity import base_of_loaded, source_of
from unmask.models.loading import dtype_name, load_output_embeddings
from unmask.models.placement import main_device
from unmask.models.source import has_adapter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

_SMALL, _LARGE = 2.0**-10, 2.0**20  # logits at which a bound does nothing, and at which it is all there is
_GRID = (-40.0, -3.0, -0.5, 0.0, 0.5, 3.0, 40.0)
_PROBE, _COMPARED = 8, 1024  # tokens that the proof reads, and logits that it compares after each
_ROUNDING = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.03}  # of the largest logit


@dataclass(frozen=True)
class OutputLayer:
    """Rows of weights, one for each token of the vocabulary, and what follows: logit = bound tanh(scale (w h + bias) / bound).

    tied: whether the input embeddings share the weights. bound: None leaves the logits unbounded.
    """

    weight: Float[Tensor, "token dim"]
    bias: Float[Tensor, " token"] | None
    tied: bool
    scale: float = 1.0
    bound: float | None = None

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self.weight.shape[0])

    def logits(self, state: Float[Tensor, " dim"], ids: Sequence[int]) -> Float[Tensor, " chosen"]:
        """The logits of some tokens after one state, in fp32. Only their rows of the weights are read."""
        rows = torch.tensor(ids, dtype=torch.long, device=self.weight.device)
        raw = self.weight[rows].float() @ state.float()
        return self.completed(raw if self.bias is None else raw + self.bias[rows].float())

    def completed(self, raw: Tensor) -> Tensor:
        """Scaled and bounded logits."""
        scaled = raw * self.scale
        return scaled if self.bound is None else self.bound * torch.tanh(scaled / self.bound)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def find_output_layer(model: PreTrainedModel) -> OutputLayer:
    """The output layer of a loaded decoder, on its device. Its logits are checked against the full language model.

    Raises UnmaskError for a decoder that has no output layer, or whose output layer was not saved, or does more than `OutputLayer`.
    """
    language_model = _around(model)
    head = language_model.get_output_embeddings()
    parameter_names = [name for name, _ in head.named_parameters()]  # CTRL has a bias in addition to tied weights
    tied = head.weight is language_model.get_input_embeddings().weight and parameter_names == ["weight"]
    loaded = _loaded(model, tied)
    for name in parameter_names:
        setattr(head, name, nn.Parameter(getattr(loaded, name).detach().to(model.device), requires_grad=False))
    setattr(
        language_model, next(name for name, child in language_model.named_children() if child is body_of(language_model)), model
    )
    if any(weight.is_meta for weight in language_model.parameters()):
        raise UnmaskError(
            f"{type(model).__name__} has further layers between its states and its logits, so its language-model head cannot be read alone."
        )
    layer = OutputLayer(head.weight, getattr(head, "bias", None), tied)
    with model_lock(model):
        layer = _measured(language_model, head, layer)
        _prove(language_model, model, layer)
    return layer


def _around(model: Any) -> Any:
    """The language model of this kind of decoder, without memory for weights."""
    from transformers import AutoModelForCausalLM

    source = source_of(model)
    try:
        with torch.device("meta"):
            language_model = AutoModelForCausalLM.from_config(
                model.config, trust_remote_code=source is not None and source.trust_remote_code
            )
        # the class of a mixture of LoRA experts is made for it, from the class of its base
        kind = type(model) if getattr(model, "mixture", None) is None else type(model).__base__
        if kind is type(body_of(language_model)) and isinstance(language_model.get_output_embeddings(), nn.Module):
            return language_model.eval()
    except (ValueError, StopIteration):
        pass
    raise UnmaskError(f"{type(model).__name__} has no language-model head, so it cannot predict the words of a text.")


def _loaded(model: Any, tied: bool) -> nn.Module:
    """The layer that holds the weights of the output layer."""
    source = source_of(model)
    if source is not None and has_adapter(source):
        layer = load_output_embeddings(replace(source, dtype=dtype_name(model), device="cpu", device_map=None))
    elif tied:
        layer = model.get_input_embeddings()
    elif (base := base_of_loaded(model)) is not None:
        layer = load_output_embeddings(replace(base, dtype=dtype_name(model), device="cpu", device_map=None))
    else:
        raise UnmaskError(
            f"{type(model).__name__} was given without its language-model head: load it with Embedder.from_pretrained."
        )
    if not isinstance(layer, nn.Linear | nn.Embedding):
        raise UnmaskError(
            "The adapter changes the language-model head, which unmask reads only from merged weights. Load the model by "
            "Embedder.from_pretrained(MODEL, adapter=ADAPTER, merge=True) each time: a saved embedder holds no language-model head."
        )
    return layer


class _Given(nn.Module):
    """Stands in for the output layer, and returns logits that are given."""

    def __init__(self, layer: nn.Module, logits: Tensor) -> None:
        super().__init__()
        self.weight, self.logits = layer.weight, logits  # some models ask for the precision of the weights

    def forward(self, _: Tensor) -> Tensor:
        return self.logits


def _measured(language_model: Any, head: nn.Module, layer: OutputLayer) -> OutputLayer:
    """The same layer with the model's scale and bound of logits, measured by feeding it known logits."""
    probes = torch.tensor([_SMALL, _LARGE, *_GRID], device=layer.weight.device)
    language_model.set_output_embeddings(_Given(head, probes[None, None]))
    try:
        small, large, *_ = answered = _logits(language_model, [0])[0].float()
    finally:
        language_model.set_output_embeddings(head)
    scale = float(small) / _SMALL
    bound = None if abs(float(large) - scale * _LARGE) <= 1e-3 * abs(scale * _LARGE) else abs(float(large))
    measured = replace(layer, scale=scale, bound=bound)
    if scale <= 0 or not torch.allclose(measured.completed(probes), answered, rtol=1e-4, atol=1e-6):
        raise _unknown(language_model)
    return measured


def _prove(language_model: Any, model: Any, layer: OutputLayer) -> None:
    """Raise UnmaskError unless the logits of the layer equal the language model's."""
    ids = [(7919 * token + 3) % layer.vocabulary for token in range(_PROBE)]
    expected = _logits(language_model, ids).float()
    states = model(input_ids=torch.tensor([ids], device=layer.weight.device), use_cache=False).last_hidden_state[0]
    token_ids = range(0, layer.vocabulary, max(1, layer.vocabulary // _COMPARED))
    computed = torch.stack([layer.logits(state, token_ids) for state in states])
    limit = _ROUNDING.get(model.dtype, _ROUNDING[torch.float32])
    if not (computed - expected[:, token_ids]).abs().max() <= limit * expected.abs().max():
        raise _unknown(language_model)


def _logits(language_model: Any, ids: Sequence[int]) -> Float[Tensor, "token logit"]:
    inputs = torch.tensor([list(ids)], device=main_device(body_of(language_model)))
    return language_model(input_ids=inputs, use_cache=False).logits[0]  # type: ignore[no-any-return]


def _unknown(language_model: Any) -> UnmaskError:
    return UnmaskError(
        f"{type(language_model).__name__} computes its logits in a way that unmask does not know, so they cannot be used."
    )
