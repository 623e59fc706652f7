"""Dropout for SimCSE, added to any decoder from outside and checked.

Configurations of LLMs have no dropout, or give it many names. A config key that an architecture does not know does nothing; then both
views of a sentence are equal, and training learns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import dropout

from unmask.errors import UnmaskError
from unmask.models.attention import attention_function, hidden_of, replaced_attention

_NAME = "unmask_dropout"
Acted = Counter[str]  # how often dropout was applied, by the class of the module


@contextmanager
def layer_dropout(model: nn.Module, layers: Sequence[nn.Module], rate: float) -> Iterator[Acted]:
    """Drop from each layer's contribution to the residual stream while the model trains: h + dropout(layer(h) - h)."""
    acted: Acted = Counter()

    def drop(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not layer.training:
            return output
        acted[type(layer).__name__] += 1
        before: Tensor = args[0] if args else kwargs["hidden_states"]
        after = hidden_of(output)
        dropped = before + dropout(after - before, rate)
        return (dropped, *output[1:]) if isinstance(output, tuple) else dropped

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_hook(drop, with_kwargs=True).remove)
        yield acted


@contextmanager
def attention_dropout(model: Any, layers: Sequence[nn.Module], rate: float) -> Iterator[Acted]:
    """Drop attention probabilities while the model trains, by giving the model's own attention function a dropout rate.

    Raises UnmaskError if transformers has registered no attention function for it, as for eager attention.
    """
    inner = attention_function(model)
    if inner is None:
        used = model.config._attn_implementation
        raise UnmaskError(f"Dropout on attention needs sdpa or flash attention, not '{used}'; use simcse.where = \"layer\".")
    acted: Acted = Counter()

    def attend(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        acted[type(module).__name__] += module.training
        return inner(module, *args, **{**kwargs, "dropout": rate if module.training else 0.0})

    with replaced_attention(model, _NAME, attend):
        yield acted


DROPOUTS = {"layer": layer_dropout, "attention": attention_dropout}


def require_two_views(embed: Callable[[], Tensor], acted: Acted) -> None:
    """Raise UnmaskError if dropout was not applied, or if embedding the same text twice gives the same vector.

    There would be nothing to learn. Vectors alone do not show it: a model may have a little dropout itself.
    """
    first, second = embed(), embed()
    if not acted.total() or bool((first == second).all()):
        raise UnmaskError(
            "Both views of a sentence are equal, so SimCSE would learn nothing: dropout does not act in this model. "
            'Try simcse.where = "layer".'
        )
