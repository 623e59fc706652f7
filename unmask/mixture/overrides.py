"""Choices: other ways to give tokens to the experts of a mixture than the one that it was saved with, to tell what routing is worth.

| name | gates |
|---|---|
| learned | as the mixture was saved |
| top-K | the K best of the router, not renormalised |
| all | every expert, as strongly as the router says ("soft") |
| renormalised | as saved, and made to sum to 1: which expert, apart from how strongly |
| random | as saved, dealt out anew among the experts, token by token: the same strength, another expert |
| uniform | 1 / n each |
| NAME | one expert alone at full strength (with the domain's own expert: the oracle) |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.errors import UnmaskError, unknown
from unmask.mixture.gating import GateFunction, Routing, gates
from unmask.mixture.mixture_folder import Mixture

NAMED = ("learned", "all", "renormalised", "random", "uniform")
_RANKED = re.compile(r"top-([1-9]\d{0,5})")


def check_override(choice: str, experts: Sequence[str]) -> None:
    """Raise UnmaskError for a choice that a mixture of these experts does not have."""
    ranked = _RANKED.fullmatch(choice)
    if ranked and int(ranked[1]) > len(experts):
        raise UnmaskError(f"'{choice}' needs {ranked[1]} experts; this mixture has {len(experts)}.")
    if not ranked and choice not in (*NAMED, *experts):
        raise unknown("choice", choice, [*NAMED, "top-2", *experts])


@contextmanager
def override_routing(mixture: Mixture, choice: str, seed: int = 0) -> Iterator[None]:
    """Let a mixture choose in this way for the time of a `with`. Raises UnmaskError for a name that there is not."""
    number, before = len(mixture.experts), mixture.routing
    names = [expert.name for expert in mixture.experts]
    check_override(choice, names)
    ranked = _RANKED.fullmatch(choice)
    if ranked or choice in ("learned", "all", "renormalised"):
        changed = {"all": {"top_k": number}, "renormalised": {"renormalise": True}, "learned": {}}
        mixture.routing = replace(before, **({"top_k": int(ranked[1])} if ranked else changed[choice]))  # type: ignore[arg-type]
        try:
            yield
        finally:
            mixture.routing = before
        return
    force = {"random": dealt_out(before, seed), "uniform": alike}.get(choice)
    with mixture.with_gates(force) if force else mixture.only(choice):
        yield


def alike(logits: Float[Tensor, "*batch expert"]) -> Float[Tensor, "*batch expert"]:
    """Every expert at 1 / n."""
    return torch.full(logits.shape, 1 / logits.shape[-1], device=logits.device)


def dealt_out(routing: Routing, seed: int) -> GateFunction:
    """The gates of a routing, in a random order of the experts for each token: whoever acts, it is no stronger and no weaker."""
    chance = torch.Generator().manual_seed(seed)

    def force(logits: Float[Tensor, "*batch expert"]) -> Float[Tensor, "*batch expert"]:
        order = torch.rand(logits.shape, generator=chance).argsort(dim=-1).to(logits.device)
        return gates(logits, routing).gather(-1, order)

    return force
