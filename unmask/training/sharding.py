"""Sharding: the weights of a model split over the processes that train it (FSDP2), for models that do not fit one device.

The model is loaded whole into the memory of the host, by every process, and each layer goes to its device in shares. While sharded,
weights come together layer by layer in every pass, so all processes must make equally many passes. After a stage its trained weights
are gathered into a file, and the model is loaded whole again, without sharding, and takes them from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from unmask.encoding.backbone import Backbone
from unmask.errors import UnmaskError


def shard(backbone: Backbone, root: nn.Module) -> None:
    """Split the weights of a decoder over the processes, in place. root: the decoder, or the language model that holds it.

    Raises UnmaskError for a mixture of experts: an expert that no token of one process reaches has no gradient to share there.
    """
    from torch.distributed.fsdp import fully_shard

    if backbone.routers:
        raise UnmaskError(f"shard = true does not support {type(backbone.model).__name__}, a mixture of experts: leave it out.")
    for layer in backbone.layers:
        fully_shard(layer)
    fully_shard(root)


def is_sharded(module: nn.Module) -> bool:
    """Whether weights of a module are split over the processes."""
    return any(isinstance(weight, DTensor) for weight in module.parameters())


def whole(weight: Tensor) -> Tensor:
    """A weight without shards. All processes have to call this."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight  # type: ignore[no-any-return]


def agreed_chunks(chunks: Sequence[dict[str, Tensor]], cached: bool) -> tuple[list[dict[str, Tensor]], bool]:
    """Equally many chunks in every process, by halving the largest, and GradCache in all if one needs it. Rows keep their order."""
    largest = torch.tensor([len(chunks), int(cached)], device=chunks[0]["input_ids"].device)
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    count, any_cached = largest.tolist()
    halved = list(chunks)
    while len(halved) < count:  # every process has equally many texts, so there is one to halve
        longest = max(range(len(halved)), key=lambda index: len(halved[index]["input_ids"]))
        rows = len(halved[longest]["input_ids"]) // 2
        halved[longest : longest + 1] = [
            {name: value[:rows] for name, value in halved[longest].items()},
            {name: value[rows:] for name, value in halved[longest].items()},
        ]
    return halved, bool(any_cached)
