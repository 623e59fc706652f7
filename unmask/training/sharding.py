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

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.training import processes
from unmask.training.recipe import Mntp, Recipe
from unmask.training.trainee import Trainee


def require_shardable(recipe: Recipe, design: Design) -> None:
    """Raise UnmaskError if a recipe asks for shards that would change nothing, or with what does not work in shards."""
    if not recipe.shard:
        return
    if processes.count() == 1:
        raise UnmaskError(
            "shard = true splits the weights over several processes, and there is one: start torchrun, or leave it out."
        )
    stages = [recipe.stage(name) for name in recipe.stages]
    reasons = {
        f"the head of '{design.name}'": design.needs_head,
        f"'{design.name}', which leaves the model before its last layer": isinstance(design.layer, int),
        "stage 'simcse', whose dropout acts inside the layers": "simcse" in recipe.stages,
        'mntp.mask = "new", which enlarges the embeddings': any(isinstance(one, Mntp) and one.mask == "new" for one in stages),
        "evaluation during training (evaluate_every)": any(one.evaluate_every for one in stages),
        "checkpointing": any(one.checkpointing for one in stages),
    }
    for what, given in reasons.items():
        if given:
            raise UnmaskError(f"shard = true does not support {what}: leave one of the two out.")


def shard(trainee: Trainee, module: nn.Module) -> None:
    """Split the weights of a trainee over the processes, in place; module: what the stage trains, as the loop is given it.

    Raises UnmaskError for a mixture of experts: an expert that no token of one process reaches has no gradient to share there.
    """
    from torch.distributed.fsdp import fully_shard

    backbone = trainee.backbone
    if backbone.routers:
        raise UnmaskError(f"shard = true does not support {type(backbone.model).__name__}, a mixture of experts: leave it out.")
    for layer in backbone.layers:
        fully_shard(layer)
    # a head that predicts tokens may share its weights with the embeddings, so both belong to one root
    fully_shard(module if module is trainee.language_model else backbone.model)


def is_sharded(module: nn.Module) -> bool:
    """Whether weights of a module are split over the processes."""
    return any(isinstance(weight, DTensor) for weight in module.parameters())


def whole(weight: Tensor) -> Tensor:
    """A weight as it is without shards; all processes have to ask for it."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight  # type: ignore[no-any-return]


def agreed_chunks(chunks: Sequence[dict[str, Tensor]], cached: bool) -> tuple[list[dict[str, Tensor]], bool]:
    """As many chunks in every process, by halving the largest, and GradCache in all if one needs it; the rows keep their order."""
    wanted = torch.tensor([len(chunks), int(cached)], device=chunks[0]["input_ids"].device)
    torch.distributed.all_reduce(wanted, torch.distributed.ReduceOp.MAX)
    count, any_cached = wanted.tolist()
    found = list(chunks)
    while len(found) < count:  # every process has equally many texts, so there is one to halve
        place = max(range(len(found)), key=lambda index: len(found[index]["input_ids"]))
        rows = len(found[place]["input_ids"]) // 2
        found[place : place + 1] = [
            {name: value[:rows] for name, value in found[place].items()},
            {name: value[rows:] for name, value in found[place].items()},
        ]
    return found, bool(any_cached)
