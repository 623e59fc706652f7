"""Attention: set causal or bidirectional on the config of a loaded decoder, and prove that the model obeys.

`config.is_causal = False` makes most decoders bidirectional. Some silently stay causal, in some layers, or only with or without
padding. So it is measured: the input of layer k is changed at the last token, and its output is compared at the earlier tokens. Every
layer is given its own undisturbed input with that change, whatever the layer below made, so two passes of a short text prove all layers.
A third pass has a different second text and different padding, and must change nothing: neither in the layers, nor before, between
or after them. If some layers of a bidirectional model hardly look ahead, all of this is repeated under causal attention, for comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.designs.design import Attention
from unmask.errors import AttentionError, UnmaskError
from unmask.models.decoder import vocabulary_of
from unmask.models.placement import main_device

_TOKENS = 8  # well inside any sliding window, so that the first token can see the last one
_PADS = 3
# Change of an earlier state's element, relative to the larger of itself and the layer's median element. Measured on 36 configurations and
# on trained models: attention moves some element by 0.026 and more, a re-ordered sum by less than 1e-5 (fp32) or one unit in the last
# place. In bf16 such a unit is at most 2^-7 of an element, and the threshold is two of them.
_THRESHOLD = {torch.float32: 1e-3, torch.float64: 1e-6}
_LOW_PRECISION_THRESHOLD = 2**-6
# A trained layer may look ahead so little that its change is smaller than that. Such a layer is compared with itself under causal
# attention. There only re-ordered sums change it. So attention is a change that is more than this many times as large, and larger than
# what re-ordered sums alone can do on another machine.
_TIMES_CAUSAL = 2
_REORDERED = {torch.float32: 1e-5, torch.float64: 1e-10}
_LOW_PRECISION_REORDERED = 2**-7


@dataclass(frozen=True)
class AttentionProof:
    """Measurements on the loaded model: for each layer, the relative change of earlier states, without and with padding.

    leak: the relative change of the embeddings and of each layer's output when the padding and the other text of the batch change.
    causal_layers: layers without attention to set. causal_branches: layers whose attention looks ahead, next to a state space or
    convolution that looks back only.
    """

    attention: Attention
    unpadded: tuple[float, ...]
    padded: tuple[float, ...]
    leak: tuple[float, ...]
    causal_layers: tuple[int, ...]
    causal_branches: tuple[int, ...] = ()

    @property
    def summary(self) -> str:
        """One line for a report."""
        summary = f"{self.attention}, proven in {len(self.unpadded)} layers with and without padding"
        if self.attention == "bidirectional" and self.causal_layers:
            summary += f"; layers {_ranges(self.causal_layers)} have no attention to set and stay causal"
        if self.causal_branches:
            summary += (
                f"; in layers {_ranges(self.causal_branches)} a state space or convolution next to the attention stays causal"
            )
        return summary

    @property
    def hybrid(self) -> bool:
        """Whether a bidirectional model keeps layers or branches that look back only (linear attention, state spaces)."""
        return self.attention == "bidirectional" and bool(self.causal_layers or self.causal_branches)


def set_attention(model: nn.Module, attention: Attention) -> None:
    """Set the attention on the config object(s) that the loaded model's layers read."""
    for config in attention_configs(model):
        # EmbeddingGemma is bidirectional by a switch of its own; is_causal = False would widen its windows by a token
        config.is_causal = attention == "causal" or getattr(config, "use_bidirectional_attention", None) is True


def attention_configs(model: nn.Module) -> list[Any]:
    """The config of a model, and the config of its text decoder if that is a separate object."""
    config: Any = model.config
    return list({id(part): part for part in (config, config.get_text_config(decoder=True))}.values())


@contextmanager
def attention_kept(model: nn.Module) -> Iterator[None]:
    """Restore the attention of a model at the end of a `with` block."""
    before = [(config, vars(config).get("is_causal")) for config in attention_configs(model)]
    try:
        yield
    finally:
        for config, causal in before:
            if causal is None:  # never set: models are causal by default
                vars(config).pop("is_causal", None)
            else:
                config.is_causal = causal


def prove_attention(model: nn.Module, layers: Sequence[nn.Module], attention: Attention) -> AttentionProof:
    """Prove that every layer attends as requested, with and without padding, and that no text sees padding or another text.

    Raises AttentionError with the layers if a causal layer looks ahead, if no bidirectional layer does, if padding changes what a layer
    sees, or if padding or another text leaks into a text; also if the model does not run under this attention, or cannot be read.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise AttentionError(f"{name} is an encoder-decoder: its decoder reads the states of an encoder, which has seen the whole text. "
                             "unmask cannot read it. Use a decoder or an encoder.")  # fmt: skip
    second_text_and_padding = torch.arange(_TOKENS + _PADS) >= torch.tensor([[_TOKENS], [0]])
    try:
        clean, moved = _passes(model, layers, 0, _last(0))
        unpadded = _dependences(clean, moved)
        clean, moved, neighbours = _passes(model, layers, _PADS, _last(_PADS), second_text_and_padding)
        padded, leak = _dependences(clean, moved), _leaks(clean, neighbours)
    except (UnmaskError, torch.OutOfMemoryError):
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:  # code that gets no causal mask, say
        reason = str(error).partition("\n")[0]
        if isinstance(error, RuntimeError) and re.search("CUDA|alloc|memory", reason):  # the machine failed, not the model
            raise
        raise AttentionError(
            f"{name} does not run with {attention} attention ({reason}). Use the other attention, or another model."
        ) from error
    threshold = _THRESHOLD.get(next(model.parameters()).dtype, _LOW_PRECISION_THRESHOLD)
    ahead, ahead_padded = ([value > threshold for value in values] for values in (unpadded, padded))
    if attention == "bidirectional" and any(ahead) and not all(ahead + ahead_padded):
        ahead = [a or b for a, b in zip(ahead, _more_than_causal(model, layers, 0, unpadded), strict=True)]
        ahead_padded = [a or b for a, b in zip(ahead_padded, _more_than_causal(model, layers, _PADS, padded), strict=True)]
    causal = tuple(k for k, sees in enumerate(ahead, start=1) if not sees)
    branches = [k for k, layer in enumerate(layers, start=1) if k not in causal and _has_causal_convolution(layer)]
    proof = AttentionProof(attention, unpadded, padded, leak, causal, tuple(branches if attention == "bidirectional" else ()))
    _refuse(model, proof, ahead, ahead_padded, [value > threshold for value in leak])
    return proof


def _more_than_causal(model: nn.Module, layers: Sequence[nn.Module], pads: int, values: Sequence[float]) -> list[bool]:
    """For each layer, whether it changes more than it does under causal attention."""
    with attention_kept(model):
        set_attention(model, "causal")
        causal = _dependences(*_passes(model, layers, pads, _last(pads)))
    least = _REORDERED.get(next(model.parameters()).dtype, _LOW_PRECISION_REORDERED)
    return [value > max(_TIMES_CAUSAL * noise, least) for value, noise in zip(values, causal, strict=True)]


def _last(pads: int) -> Tensor:
    """A mask of the last real token of both texts."""
    return torch.arange(_TOKENS + pads).expand(2, -1) == _TOKENS - 1


def _refuse(model: nn.Module, proof: AttentionProof, ahead: list[bool], padded: list[bool], leak: list[bool]) -> None:
    name, attention = type(model).__name__, proof.attention
    looking = [k for k, sees in enumerate(ahead, start=1) if sees]
    differ = [
        k
        for k, (without_padding, with_padding) in enumerate(zip(ahead, padded, strict=True), start=1)
        if without_padding != with_padding
    ]
    if attention == "causal" and all(padded):
        raise AttentionError(f"This model ({name}) is an encoder: every layer looks ahead, and cannot be made causal. To compare with "
                             "it, give it to `unmask compare` with -r. To embed with it, use a bidirectional design. That pools the text's "
                             "own tokens, without [CLS] and [SEP], so its vectors differ from those with -r.")  # fmt: skip
    if differ:
        raise AttentionError(f"{name} attends differently with and without padding in layers {_ranges(differ)}, so {attention} "
                             "embeddings of it would depend on the batch. Use the other attention, or another model.")  # fmt: skip
    if any(leak):
        leaking = [k for k, leaks in enumerate(leak) if leaks and k]
        locations = " and ".join([*["its embeddings"] * leak[0], *[f"layers {_ranges(leaking)}"] * bool(leaking)])
        raise AttentionError(
            f"{name} lets padding or other texts change a text in {locations}, so it cannot be used in batches."
        )
    if attention == "causal" and looking:
        raise AttentionError(f"{name} was set to causal, but layers {_ranges(looking)} look ahead. Use a bidirectional design.")
    if attention == "bidirectional" and not looking:
        raise AttentionError(f"{name} stays causal in every layer: it has no attention that can be made bidirectional. "
                             "Use a causal design.")  # fmt: skip
    stubborn = [k for k in proof.causal_layers if attention == "bidirectional" and _has_softmax_attention(model, k)]
    if stubborn:
        raise AttentionError(f"{name} was set to bidirectional, but its attention in layers {_ranges(stubborn)} "
                             "stays causal. Use a causal design.")  # fmt: skip


def _has_softmax_attention(model: nn.Module, layer: int) -> bool:
    """Whether the config says that a layer has softmax attention, which should obey. (Llama 4's chunked attention does not obey.)"""
    config: Any = model.config
    kinds = getattr(config.get_text_config(decoder=True), "layer_types", None)
    kind = str(kinds[layer - 1]) if kinds else "full_attention"
    return kind.endswith("attention") and not kind.startswith("linear")


def _has_causal_convolution(layer: nn.Module) -> bool:
    """Whether a convolution in a layer looks back only. State spaces and linear attention begin with one (Falcon-H1, Zamba 2)."""
    convolutions = [module for module in layer.modules() if isinstance(module, nn.Conv1d)]
    return any(2 * int(conv.padding[0]) != conv.dilation[0] * (conv.kernel_size[0] - 1) for conv in convolutions)


@dataclass(frozen=True)
class _Pass:
    """What went through a model, in one pass of two texts.

    inputs: what came to each layer. between: of the first text, what came to each layer and what left the model. outputs: of the first
    text, what each layer gave at the tokens before the last.
    """

    inputs: list[Tensor]
    between: list[Tensor]
    outputs: list[Tensor]


def _passes(model: nn.Module, layers: Sequence[nn.Module], pads: int, *disturbed: Tensor) -> list[_Pass]:
    """An undisturbed pass, and a disturbed one for each mask. There, the tokens of the mask are others, and so is each layer's input.

    Masks have the shape (text, token).
    """
    device = main_device(model)
    vocabulary = vocabulary_of(model)
    # the text twice: with one text, some models read no mask
    ids = ((torch.arange(_TOKENS + pads, device=device) * 7 + 3) % vocabulary).expand(2, -1)
    inputs_of_model: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if pads:
        inputs_of_model["attention_mask"] = (torch.arange(_TOKENS + pads, device=device) < _TOKENS).long().expand(2, -1)
    with torch.inference_mode():
        clean = _through(model, layers, inputs_of_model)
        passes = [clean]
        for mask in disturbed:
            other_ids = torch.where(mask.to(device), (ids + 1) % vocabulary, ids)
            inputs = [_disturbed(hidden, mask) for hidden in clean.inputs]
            passes.append(_through(model, layers, {**inputs_of_model, "input_ids": other_ids}, inputs))
    if len(clean.inputs) != len(layers):
        raise AttentionError(f"{type(model).__name__} has {len(layers)} layers but calls them {len(clean.inputs)} times in a forward pass, "
                             "so their states cannot be read. Use another model.")  # fmt: skip
    if not all(output.isfinite().all() for output in clean.outputs):
        precision = str(next(model.parameters()).dtype).removeprefix("torch.")
        raise AttentionError(f"The states of {type(model).__name__} are not finite (NaN or infinity) in {precision}, so nothing can be "
                             "read from them. Use another --dtype: bfloat16 or float32.")  # fmt: skip
    return passes


def _dependences(clean: _Pass, moved: _Pass) -> tuple[float, ...]:
    """For each layer, how much its output changed at the tokens before the last."""
    return tuple(map(_change, clean.outputs, moved.outputs))


def _leaks(clean: _Pass, moved: _Pass) -> tuple[float, ...]:
    """How much the first text changed in the embeddings, and in each layer: in its output, or on the way from there."""
    embeddings, *later = map(_change, clean.between, moved.between)
    return (embeddings, *map(max, later, _dependences(clean, moved)))


def _change(before: Tensor, after: Tensor) -> float:
    """The largest change of an element, relative to the larger of itself and the median element."""
    # the median, not the largest: trained models have a few enormous values that would hide every change
    size = before.abs().maximum(before.abs().median().clamp_min(1e-12))
    # a state that turns into NaN has changed
    return float(((after - before).abs() / size).nan_to_num(nan=float("inf")).max())


def _through(
    model: nn.Module, layers: Sequence[nn.Module], model_inputs: dict[str, Any], replaced: Sequence[Tensor] | None = None
) -> _Pass:
    """Send texts through a model. replaced: what each layer is given in place of its input."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def give(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = args[0] if args else kwargs["hidden_states"]
        if hidden.dim() != 3:
            raise AttentionError(
                f"{type(model).__name__} keeps several states for each token, which unmask cannot read. Use another model."
            )
        new = hidden if replaced is None else replaced[len(inputs)]
        inputs.append(hidden.clone())  # a layer may change its input, which is the output of the one below, in place
        return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        outputs.append(_of_the_first_text(hidden_of(output), _TOKENS - 1))

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(give, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(keep).remove)
        final = model(**model_inputs).last_hidden_state
    return _Pass(inputs, [_of_the_first_text(states, _TOKENS) for states in (*inputs, final)], outputs)


def _of_the_first_text(states: Tensor, tokens: int) -> Tensor:
    return states[0, :tokens].float().flatten().clone()


def _disturbed(hidden: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.to(hidden.device).unsqueeze(-1), hidden.flip(-1), hidden)


def hidden_of(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The hidden states in the output of a decoder layer: the output itself, or the first of a tuple."""
    return output[0] if isinstance(output, tuple) else output


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 -> '1-3, 7'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


AttentionFunction = Callable[..., Any]
"""Takes the attention module, queries, keys, values and the mask, each of shape (text, head, token, ..)."""


def attention_function(model: Any) -> AttentionFunction | None:
    """The function that a model calls, or None if transformers has registered none for it, as for eager attention."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    function: AttentionFunction | None = ALL_ATTENTION_FUNCTIONS.get(model.config._attn_implementation)
    return function


@contextmanager
def replaced_attention(model: Any, name: str, function: AttentionFunction) -> Iterator[None]:
    """Use another attention function inside a `with` block. It gets the same masks as the model's own function.

    name: the name under which transformers registers it.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    used = model.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(name, function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[used])
    configs = {id(part): part for part in (model.config, model.config.get_text_config(decoder=True))}.values()
    before = [(part, part._attn_implementation) for part in configs]
    try:
        for part in configs:
            part._attn_implementation = name
        yield
    finally:
        for part, implementation in before:
            part._attn_implementation = implementation
