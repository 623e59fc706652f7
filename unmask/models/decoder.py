"""Decoder: the parts of a loaded model, found by behaviour and not by name, and the lock that its users share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.io.threads import FairLock, lock_of
from unmask.models.placement import main_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_TOKENS = 8
# Change of an element, relative to the larger of itself and the median. Rounding is less in any precision, another position is more.
_MOVED = 2**-6


def body_of(model: Any) -> Any:
    """What AutoModel would load of a causal language model: the model inside it (`base_model` finds none in Llama 4)."""
    from transformers import PreTrainedModel

    return next(child for child in model.children() if isinstance(child, PreTrainedModel))


def model_lock(model: PreTrainedModel) -> FairLock:
    """The lock of a model: threads that change its state or run it take turns. A decoder and the language model around it share it.

    Their common config carries the lock, since the attention is written there.
    """
    return lock_of(model.config.get_text_config(decoder=True))


def has_hooks(model: PreTrainedModel) -> bool:
    """Whether modules carry hooks (a mixture's routers, accelerate), which may be stateful."""
    return any(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) for module in model.modules())


def find_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The outermost list of as many modules as the config has layers: `layers`, `h`, `blocks`, ... by behaviour, not by name.

    It is looked for in the decoder first: an image or audio tower may be as deep.
    """
    depth = depth_of(model.config.get_text_config(decoder=True))
    for module in chain(model.get_decoder().modules(), model.modules()):
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            _require_whole_layers(model, module)
            return module
    lists = [len(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    raise UnmaskError(
        f"{type(model).__name__} counts {depth} layers in its config, but its longest list of layers has {max(lists, default=0)}, so its "
        "layers cannot be read: models of this kind run the same layers several times for each token. Use another model."
    )


def depth_of(config: Any) -> int:
    """The number of decoder layers. LongCat-Flash counts two for each layer in num_hidden_layers, for its two attentions."""
    depth = getattr(config, "num_layers", None) or getattr(config, "num_hidden_layers", None)
    if depth is None:
        raise UnmaskError(
            f"{type(config).__name__} names no number of layers, so its layers cannot be read. Use another model."
        )
    return int(depth)


def _require_whole_layers(model: PreTrainedModel, layers: nn.ModuleList) -> None:
    """Raise UnmaskError if the modules of a list are parts of layers. XLM has separate lists of attentions and feed-forward layers."""
    parent = next(module for module in model.modules() if any(child is layers for child in module.children()))
    parallel_lists = [child for child in parent.children() if isinstance(child, nn.ModuleList) and len(child) == len(layers)]
    parameters, all_parameters = (
        sum(weight.numel() for part in parts for weight in part.parameters()) for parts in ([layers], parallel_lists)
    )
    if 2 * parameters < all_parameters:
        raise UnmaskError(
            f"{type(model).__name__} has no module for each layer, so its layers cannot be read. Use another model."
        )


def positions_of(model: PreTrainedModel) -> int | None:
    """The number of positions of a model; None if nothing limits them."""
    config = model.config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "max_seq_len")  # MPT uses the second name
    return next((int(number) for name in names if (number := getattr(config, name, None))), None)


def sparse_limit(model: PreTrainedModel) -> int | None:
    """Most tokens of a text that sparse attention reads in full; None for a model without an indexer.

    In a longer text an indexer selects the keys that each token may attend to (DeepSeek sparse attention and its kin). Rounding, which
    differs with the shape of a batch, decides between keys of nearly equal score, and ties are broken anyhow. So the embedding of such a
    text would depend on its batch.
    """
    config = model.config.get_text_config(decoder=True)
    blocks = (getattr(config, "index_topk_blocks", None) or 0) * (getattr(config, "index_block_size", None) or 0)
    limits = [getattr(config, name, None) for name in ("index_topk", "indexer_budget")]
    return next((int(limit) for limit in (*limits, blocks) if limit), None)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def first_position(model: PreTrainedModel) -> int:
    """The position of the first token in a model that counts positions itself; 0 if a model may be given positions that begin with 0.

    Encoders of RoBERTa's kind count the tokens that are not padding, from padding_idx + 1; MRA's count from 2. With positions from 0 they
    have other states, so this is measured. Raises UnmaskError if the model's own positions are others than that.
    """
    if "position_ids" not in signature(model.forward).parameters:
        return 0
    words, size = model.get_input_embeddings(), positions_of(model)
    # duck typing: I-BERT's table does not subclass nn.Embedding
    tables: list[Any] = [module for module in model.modules() if module is not words and hasattr(module, "padding_idx")]
    starts = [table.padding_idx + 1 for table in tables if _rows_of(table) == size and table.padding_idx is not None]
    counted = [buffer.flatten() for name, buffer in model.named_buffers() if name.endswith("position_ids") and buffer.numel()]
    start = max([*starts, *(int(buffer[0]) for buffer in counted)], default=0)
    if start == 0:  # most models: no table of positions has a row for padding, and none is read from a later row
        return 0
    positions = torch.arange(_TOKENS, device=main_device(model))[None]
    ids = (positions * 7 + 3) % vocabulary_of(model)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    reference = model(**inputs).last_hidden_state.float()

    def moves(first: int) -> bool:
        states = model(**inputs, position_ids=positions + first).last_hidden_state.float()
        return bool(((states - reference).abs() > _MOVED * reference.abs().maximum(reference.abs().median())).any())

    if not moves(0):
        return 0
    if moves(start):
        raise UnmaskError(
            f"{type(model).__name__} counts the positions of tokens neither from 0 nor from {start}, so the vector of a text would depend "
            "on the batch. Use another model."
        )
    return start


def _rows_of(table: nn.Module) -> int | None:
    weight = getattr(table, "weight", None)
    return len(weight) if isinstance(weight, Tensor) and weight.dim() == 2 else None


@torch.no_grad()  # type: ignore[untyped-decorator]
def restore_rotary(model: nn.Module) -> None:
    """Compute rotary frequencies again, in fp32, that a cast of the whole model has rounded.

    `model.to(torch.bfloat16)` rounds them with the weights. No file holds them: a model that is loaded in bf16 has them in fp32, so
    without this the vectors of a model would change when it is saved and loaded.
    """
    from transformers import PreTrainedModel

    # the innermost model knows how its modules begin
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    owners = {module: owner for owner in models for module in owner.modules()}
    for module, owner in owners.items():
        rounded = _rounded_buffers(module, owner.config.get_text_config(decoder=True).hidden_size)
        if not rounded or next(module.parameters(), None) is not None:
            continue
        for name, buffer in rounded.items():
            setattr(module, name, buffer.float())
        owner._init_weights(module)
        for name, buffer in rounded.items():
            if torch.equal(getattr(module, name), buffer.float()):  # nothing that is computed from the config
                setattr(module, name, buffer)


def _rounded_buffers(module: nn.Module, width: int) -> dict[str, Tensor]:
    """The buffers in low precision that are not saved with the module.

    width: of a state. A table of such rows is added to embeddings (XGLM's positions), and a model that is loaded has it in low precision.
    """
    buffers = module.named_buffers(recurse=False)
    unsaved = {name: buffer for name, buffer in buffers if name in module._non_persistent_buffers_set}
    low = {name: buffer for name, buffer in unsaved.items() if buffer.is_floating_point() and buffer.itemsize < 4}
    return {name: buffer for name, buffer in low.items() if not (buffer.dim() == 2 and buffer.shape[1] == width)}


def without_head(model: PreTrainedModel) -> PreTrainedModel:
    """The decoder of a model that AutoModel loads with its language-model head, as it does with multimodal Llama 4."""
    from transformers import MODEL_MAPPING

    if model.get_output_embeddings() is None or MODEL_MAPPING.get(type(model.config), None) is not type(model):
        return model
    decoder = model.get_decoder()  # of Llama 4 this has the head, too
    return body_of(decoder) if decoder.get_output_embeddings() is not None else decoder  # type: ignore[no-any-return]


def require_headless(model: PreTrainedModel) -> None:
    """Raise UnmaskError for a language model with its head: it gives logits, where a decoder gives states."""
    if model.get_output_embeddings() is not None:
        raise UnmaskError(
            f"{type(model).__name__} has a language-model head. Load the model with AutoModel, which leaves the head out, "
            "or by its name: Embedder.from_pretrained(NAME)."
        )


def rotary_border(model: PreTrainedModel) -> float:
    """Most tokens of a batch before LongRoPE rotates all of it by other frequencies. Infinite for models without such a border."""
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [kind for kind in (rope, *rope.values()) if isinstance(kind, dict) and kind.get("rope_type") == "longrope"]
    return float(min((kind["original_max_position_embeddings"] for kind in kinds), default=inf))


def pad_id_of(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """The id that pads a batch: the tokenizer's own, or 0 if there is none or the model has no embedding of it.

    A token that was added to the tokenizer alone has no embedding. Padding is masked, so any id that has one will do.
    """
    pad = tokenizer.pad_token_id
    return int(pad) if pad is not None and pad < vocabulary_of(model) else 0


def vocabulary_of(model: PreTrainedModel) -> int:
    """The number of tokens that the input embeddings hold, also where an adapter changes them."""
    return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]


@contextmanager
def no_dropout(model: nn.Module) -> Iterator[None]:
    """Where no gradient is computed, have every part of a model in evaluation mode. Parts that train do so afterwards."""
    training = [part for part in model.modules() if part.training] if torch.is_inference_mode_enabled() else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
