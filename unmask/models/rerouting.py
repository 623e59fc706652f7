"""Rerouting: training-free changes of a causal forward pass that show early tokens a summary of the whole text.

    causal+kv@13-17        in layers 13 to 17, every token can also attend to the key and the value of the last token (KV-Embedding,
                           arXiv 2601.01046); causal+kv@13-17:1.5 adds 1.5 to the logits of that attention
    causal+prepend@2-7     a placeholder precedes the text; before each of layers 2 to 7 its state becomes that of the last token
                           (Token Prepending, arXiv 2412.11556)
    causal+prepend@2-7:64  the same with a placeholder for each block of 64 tokens, which becomes the state of the block's last token
                           (after Hierarchical Token Prepending, arXiv 2511.14868)

Layers count from 1. The copied key keeps its position. The state of a placeholder is zero until the first of its layers, since an arbitrary
token would have a meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from unmask.errors import UnmaskError, unknown
from unmask.models.attention import attention_function, replaced_attention

KINDS = ("kv", "prepend")
_FORM = re.compile(r"(?P<kind>[a-z]+)@(?P<first>\d+)-(?P<last>\d+)(:(?P<number>-?\d+(\.\d+)?))?")


@dataclass(frozen=True)
class Rerouting:
    """What is shown to early tokens, and in which layers.

    bias: added to the attention logits of the copied key. block: tokens of a block that has a placeholder of its own; None is one for all.
    """

    kind: str
    first: int
    last: int
    bias: float = 0.0
    block: int | None = None

    @classmethod
    def parse(cls, name: str) -> Rerouting:
        """The rerouting of a name such as `kv@13-17`. Raises UnmaskError."""
        match = _FORM.fullmatch(name)
        if match is None:
            raise UnmaskError(
                f"'{name}' is not a rerouting: it has the form kv@13-17 or prepend@2-7, with the first and the last layer."
            )
        kind, number = match["kind"], match["number"]
        if kind not in KINDS:
            raise unknown("rerouting", kind, KINDS)
        first, last = int(match["first"]), int(match["last"])
        if not 1 <= first <= last:
            raise UnmaskError(f"'{name}' does not work: layers count from 1, and the first is not above the last.")
        if kind == "kv":
            return cls(kind, first, last, bias=float(number or 0))
        if number is not None and not (number.isdecimal() and int(number) > 0):
            raise UnmaskError(f"'{name}' does not work: the number behind 'prepend' is the length of a block in tokens.")
        return cls(kind, first, last, block=int(number) if number else None)

    def require_layers(self, depth: int) -> None:
        """Raise UnmaskError if a model with this number of layers lacks one of them."""
        if self.last > depth:
            raise UnmaskError(
                f"'{self.kind}@{self.first}-{self.last}' names layer {self.last}, but this model has {depth} layers."
            )


@dataclass(frozen=True)
class Placeholders:
    """Tokens of a batch whose states become those of later ones: the text of each, its position, and that of the later token."""

    texts: Int[Tensor, " placeholder"]
    positions: Int[Tensor, " placeholder"]
    sources: Int[Tensor, " placeholder"]


@contextmanager
def reroute(
    model: Any,
    layers: Sequence[nn.Module],
    rerouting: Rerouting,
    last: Int[Tensor, " text"],
    placeholders: Placeholders | None = None,
) -> Iterator[set[int]]:
    """Run the model with a rerouting. Yields the layers that it has reached so far.

    last: the position of the last token of each text.
    """
    reached: set[int] = set()
    if rerouting.kind == "kv":
        inner = attention_function(model)
        if inner is None:
            used = model.config._attn_implementation
            raise UnmaskError(f"Rerouted keys and values need sdpa attention, and {type(model).__name__} uses '{used}'.")
        numbers = {id(module): number for number, layer in enumerate(layers, start=1) for module in layer.modules()}

        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **options: Any
        ) -> Any:
            number = numbers.get(id(module), 0)
            if not rerouting.first <= number <= rerouting.last:
                return inner(module, query, key, value, attention_mask, *args, **options)
            reached.add(number)
            key, value = (torch.cat([_at(part, last), part], dim=2) for part in (key, value))
            mask = _with_first_column(attention_mask, query, rerouting.bias)
            return inner(module, query, key, value, mask, *args, **{**options, "is_causal": False})

        with replaced_attention(model, f"unmask_rerouting_{id(model)}", attend):
            yield reached
        return
    assert placeholders is not None
    rows, here, there = placeholders.texts, placeholders.positions, placeholders.sources

    def summarise(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        states = (args[0] if args else kwargs["hidden_states"]).clone()
        if number == 1:
            states[rows, here] = 0.0
        if rerouting.first <= number <= rerouting.last:
            reached.add(number)
            states[rows, here] = states[rows, there]
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

    with ExitStack() as hooks:
        for number in {1, *range(rerouting.first, rerouting.last + 1)}:
            hook = layers[number - 1].register_forward_pre_hook(
                lambda _, args, kwargs, number=number: summarise(number, args, kwargs), with_kwargs=True
            )
            hooks.callback(hook.remove)
        yield reached


def _at(states: Tensor, positions: Tensor) -> Tensor:
    """Keys or values of shape (text, head, token, dim) at one position of each text."""
    index = positions[:, None, None, None].to(states.device).expand(-1, states.shape[1], 1, states.shape[3])
    return states.gather(2, index)


def _with_first_column(mask: Tensor | None, query: Tensor, bias: float) -> Tensor:
    """The mask of a causal pass with one more key in front, which every token attends to."""
    texts, _, tokens, _ = query.shape
    if mask is None:  # nothing is padded, and the kernel would have been told to be causal
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril().expand(texts, 1, tokens, tokens)
    if bias == 0.0 and mask.dtype == torch.bool:
        return torch.cat([mask.new_ones(*mask.shape[:3], 1), mask], dim=3)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, float("-inf"))
    return torch.cat([mask.new_full((*mask.shape[:3], 1), bias), mask], dim=3)
