"""Expert linear: a linear map with all its experts, as one LoRA of n times their rank with a gate on each rank.

h = W x + B (g * A x), A = [A_1; ..; A_n], B = [B_1, .., B_n]. This is the sum over experts of alpha_i B_i A_i x in two products, at
about the cost of one LoRA. A one-hot gate gives that single expert; a gate of zero gives the base.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.moe.mixture.gating import RoutingPoint

Factors = tuple[Tensor, Tensor]
"""A (r, in) and B (out, r) of one expert. B includes the scale."""


class ExpertLinear(nn.Module):
    """A linear map of the base, and every expert's change of it."""

    def __init__(self, base: nn.Linear, experts: Sequence[Factors], point: RoutingPoint) -> None:
        super().__init__()
        self.base = base
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.cat([down for down, _ in experts]).to(**like), requires_grad=False)
        self.up = nn.Parameter(torch.cat([up for _, up in experts], dim=1).to(**like), requires_grad=False)
        self._few: dict[str, Tensor] = {}
        self._point = [point]  # in a list, so that it is no submodule: it belongs to the block, not to each of its maps

    @property
    def point(self) -> RoutingPoint:
        """The routing point that gives the gates."""
        return self._point[0]

    def forward(self, hidden: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch output"]:
        """The map of the base, plus the experts of each token."""
        known = self.base(hidden)
        point = self.point
        if point.control.off:
            return known  # type: ignore[no-any-return]
        low = point.gated(self, hidden)
        if point.now.few:
            return known.add_(low @ self.few("up")[point.now.chosen])
        return torch.addmm(known.flatten(0, -2), low.flatten(0, -2), self.up.to(low.dtype).t()).view(known.shape)

    def refresh(self) -> None:
        """Take over the factors as they are now: their precision has changed."""
        self._few.clear()

    def few(self, name: str) -> Float[Tensor, "rank _"]:
        """A, or B transposed, with a row for each rank, in fp32. Used for few tokens on a CPU.

        A small product on a CPU takes 15 us in bf16 and 3 us in fp32. Such products are most of what experts add to a generated token.
        """
        if name not in self._few:
            factor: Tensor = getattr(self, name).detach().float()
            self._few[name] = (factor if name == "down" else factor.t()).contiguous()
        return self._few[name]
