"""Processes: several that train one model together, as `torchrun` starts them. Alone, everything here does nothing.

Every process holds the whole model and its share of each batch. Gradients are averaged once a step, after the last backward pass:
DistributedDataParallel would average in every backward pass, of which GradCache makes one for each part of a batch, and their
number differs between processes when parts are cut by tokens. It also stops at an expert that no token of a batch was sent to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.io.files import only_run_in

_TOGETHER = 1 << 24  # elements that are averaged in one message


def count() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process is the one that writes files and speaks."""
    return count() == 1 or os.environ.get("RANK", "0") == "0"


def meet() -> None:
    """Connect the processes, each to its own GPU where there are any."""
    if count() > 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.accelerator.is_available())


def wait() -> None:
    """Go on when every process has come here: what the first one wrote can then be read by all."""
    if count() > 1:
        torch.distributed.barrier()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold a folder for this run: the first process does, for all. Raises UnmaskError if another run holds it."""
    if is_first():
        with only_run_in(folder):
            yield
    else:
        yield


def agreed(value: Any) -> Any:
    """What the first process says."""
    if count() == 1:
        return value
    shared = [value]
    torch.distributed.broadcast_object_list(shared)
    return shared[0]


@torch.no_grad()  # type: ignore[untyped-decorator]
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Average the gradients of all processes in place; where one has none, it counts as zero, and where all have none, none is made.

    Those of weights in shards are averaged already, where the shards are made (sharding.py).
    """
    training = [parameter for parameter in parameters if parameter.requires_grad and not hasattr(parameter, "full_tensor")]
    if count() == 1 or not training:
        return
    present = torch.tensor([float(parameter.grad is not None) for parameter in training], device=training[0].device)
    torch.distributed.all_reduce(present)
    gradients: list[Tensor] = []
    for parameter, has in zip(training, present.tolist(), strict=True):
        if has:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(parameter.grad)
    for group in _groups(gradients):
        flat = torch.cat([gradient.flatten() for gradient in group])
        torch.distributed.all_reduce(flat)
        flat /= count()
        for gradient, averaged in zip(group, flat.split([parameter.numel() for parameter in group]), strict=True):
            gradient.copy_(averaged.view_as(gradient))


def _groups(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one precision, as many together as make a message."""
    group: list[Tensor] = []
    for gradient in sorted(gradients, key=lambda part: str(part.dtype)):
        full = sum(part.numel() for part in group) + gradient.numel() > _TOGETHER
        if group and (full or group[0].dtype != gradient.dtype):
            yield group
            group = []
        group.append(gradient)
    if group:
        yield group
