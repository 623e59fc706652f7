"""Several processes that train one model together, started by `torchrun`. With one process, everything here does nothing.

Every process holds the whole model and its share of each batch. Gradients are averaged once a step, after the last backward pass.
DistributedDataParallel would average in every backward pass. GradCache makes one for each part of a batch, and processes may have
different numbers of parts. It also stops at an expert that no token of a batch was sent to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def count() -> int:
    """Number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process is the one that writes files and messages."""
    return count() == 1 or os.environ.get("RANK", "0") == "0"


def connect() -> None:
    """Initialise the process group, each process on its own GPU where there are any."""
    if count() > 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.accelerator.is_available())


def wait() -> None:
    """Wait until every process is here, so that all can read what the first one wrote."""
    if count() > 1:
        torch.distributed.barrier()


def broadcast(value: Any) -> Any:
    """The value of the first process, in all processes."""
    if count() == 1:
        return value
    shared = [value]
    torch.distributed.broadcast_object_list(shared)
    return shared[0]


@torch.no_grad()  # type: ignore[untyped-decorator]
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Average gradients over the processes in place. A missing gradient counts as zero, unless it is missing in all."""
    training = [parameter for parameter in parameters if parameter.requires_grad]
    if count() == 1 or not training:
        return
    present = torch.tensor([float(parameter.grad is not None) for parameter in training], device=training[0].device)
    torch.distributed.all_reduce(present)
    gradients: list[Tensor] = []
    for parameter, has in zip(training, present.tolist(), strict=True):
        if has:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(parameter.grad)
    for gradient in gradients:
        torch.distributed.all_reduce(gradient)
        gradient /= count()
