"""Overrides: a mixture under another routing, to show what its routing is worth.

| name | gates |
|---|---|
| learned | as the mixture was saved |
| top-K | the K best experts of the router, not renormalised |
| top-K renormalised | the same, with gates that sum to 1 |
| all | every expert, with the router's probabilities as gates ("soft") |
| renormalised | as saved, and made to sum to 1: keeps which expert acts, drops how strongly |
| random | as saved, shuffled among the experts for each token and block: the same strength, another expert |
| uniform | 1 / n for each expert |
| NAME | one expert alone at full strength (the oracle, if it is the expert of the domain) |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.errors import UnmaskError, unknown
from unmask.moe.mixture.gating import GateFunction, Routing, gates
from unmask.moe.mixture.model import Mixture

NAMED = ("learned", "all", "renormalised", "random", "uniform")
_RANKED = re.compile(r"top-([1-9]\d{0,5})( renormalised)?")


def check_override(choice: str, experts: Sequence[str]) -> None:
    """Raise UnmaskError for a routing that a mixture of these experts does not have."""
    ranked = _RANKED.fullmatch(choice)
    if ranked and int(ranked[1]) > len(experts):
        raise UnmaskError(f"'{choice}' needs {ranked[1]} experts; this mixture has {len(experts)}.")
    if not ranked and choice not in (*NAMED, *experts):
        raise unknown("choice", choice, [*NAMED, "top-2", "top-2 renormalised", *experts])


@contextmanager
def override_routing(mixture: Mixture, choice: str, seed: int = 0) -> Iterator[None]:
    """Use another routing inside a `with` block. Raises UnmaskError for an unknown name."""
    check_override(choice, [expert.name for expert in mixture.experts])
    if ranked := _RANKED.fullmatch(choice):
        using = mixture.with_routing(top_k=int(ranked[1]), renormalise=bool(ranked[2]))
    elif choice == "learned":
        using = mixture.with_routing()
    elif choice == "all":
        using = mixture.with_routing(top_k=len(mixture.experts))
    elif choice == "renormalised":
        using = mixture.with_routing(renormalise=True)
    elif gate_function := {"random": shuffle_gates(mixture.routing, seed), "uniform": uniform_gates}.get(choice):
        using = mixture.with_gates(gate_function)
    else:
        using = mixture.only(choice)
    with using:
        yield


def uniform_gates(logits: Float[Tensor, "*batch expert"]) -> Float[Tensor, "*batch expert"]:
    """A gate of 1 / n for every expert."""
    return torch.full(logits.shape, 1 / logits.shape[-1], device=logits.device)


def shuffle_gates(routing: Routing, seed: int) -> GateFunction:
    """The gates of a routing, in a random order of the experts for each token: other experts act, as strongly as before."""
    generator = torch.Generator().manual_seed(seed)

    def gate_function(logits: Float[Tensor, "*batch expert"]) -> Float[Tensor, "*batch expert"]:
        order = torch.rand(logits.shape, generator=generator).argsort(dim=-1).to(logits.device)
        return gates(logits, routing).gather(-1, order)

    return gate_function
