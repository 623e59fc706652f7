"""Routers are found by what modules do, and what they return is decided once, on the loaded model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tests.families import FAMILIES, Family
from unmask.designs.design import Design
from unmask.encoding.backbone import Backbone, RoutingRead, TokenBatch
from unmask.encoding.pooling import POOLINGS
from unmask.errors import UnmaskError
from unmask.models.routers import find_routers

LAST, SIZE, NUMBER, CHOSEN = POOLINGS["last"], 64, 6, 2
GEMMA4 = Family(
    "gemma4",
    "gemma4_text",
    {
        "head_dim": 16,
        "global_head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
    },
    experts=8,
)


def batch(texts: int = 4, length: int = 9) -> TokenBatch:
    mask = torch.ones(texts, length, dtype=torch.bool)
    return TokenBatch(torch.randint(3, 512, (texts, length), generator=torch.Generator().manual_seed(5)), mask, mask)


def routing(backbone: Backbone, tokens: TokenBatch, kind: str = "softmax") -> Tensor:
    read = RoutingRead(kind, LAST)
    with torch.inference_mode():
        return backbone.read(tokens, [read])[read]


# ---- probabilities or logits ----------------------------------------------------------------------------------------


def test_gemma4_gives_probabilities_that_get_no_second_softmax() -> None:
    backbone = Backbone(GEMMA4.build(dtype=torch.bfloat16), "causal")
    assert [router.probabilities for router in backbone.routers] == [True] * 3
    given: list[Tensor] = []
    for router in backbone.routers:
        router.module.register_forward_hook(lambda _, __, output: given.append(output[0]))
    found = routing(backbone, batch())
    expected = torch.cat([part.reshape(4, 9, 8)[:, -1].float() for part in given], dim=1)
    torch.testing.assert_close(found, expected)


def test_what_a_router_returns_does_not_depend_on_the_batch() -> None:
    model = GEMMA4.build(dtype=torch.bfloat16)
    spoilt = 7

    def rounded(module: nn.Module, args: Any, output: Any) -> Any:
        """Probabilities in bf16, as code of a model's own may give them; those of one token miss the sum of 1 by far."""
        shares = output[0].to(torch.bfloat16).clone()
        if len(shares) > 36:
            shares[spoilt] *= 1.2
        return shares, *output[1:]

    for router in find_routers(model):
        router.module.register_forward_hook(rounded)
    backbone = Backbone(model, "causal")
    tokens = batch(8, 9)
    alone = torch.cat(
        [
            routing(
                backbone,
                TokenBatch(*(part[row : row + 1] for part in (tokens.ids, tokens.attention_mask, tokens.pooling_mask))),
            )
            for row in range(8)
        ]
    )
    assert (alone.unflatten(1, (3, -1)).sum(dim=-1) - 1).abs().max() < 2e-2
    # all but the states' own drift in bf16
    torch.testing.assert_close(routing(backbone, tokens), alone, atol=0.05, rtol=0)


# ---- routers that nothing declares ----------------------------------------------------------------------------------


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, 24, bias=False), nn.Linear(24, SIZE, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(self.up(hidden).relu())  # type: ignore[no-any-return]


class Gate(nn.Module):
    """Scores tokens by a weight of its own, and returns which experts they go to and how strongly."""

    def __init__(self, by_position: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(NUMBER, SIZE))
        self.by_position = by_position

    def forward(self, hidden: Tensor) -> tuple[Tensor | None, ...]:
        logits = linear(hidden.flatten(0, 1).float(), self.weight.float())
        strengths, places = logits.softmax(dim=-1).topk(CHOSEN, dim=-1)
        if self.by_position:
            places = torch.arange(len(logits)).unsqueeze(1).add(torch.arange(CHOSEN)) % NUMBER
        return places, strengths, None


class Block(nn.Module):
    """Routed experts and one that always acts, as code that comes with a model has them."""

    def __init__(self, gate: nn.Module, extra: nn.Module | None = None) -> None:
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(NUMBER)])
        self.gate, self.shared, self.extra = gate, Expert(), extra

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.gate(hidden)
        if isinstance(found, Tensor):
            strengths, places = found.flatten(0, 1).softmax(dim=-1).topk(CHOSEN, dim=-1)
        else:
            places, strengths = found[:2]
        gates = (
            torch.zeros(len(places), NUMBER).to(hidden).scatter(1, places, strengths.to(hidden)).reshape(*hidden.shape[:2], -1)
        )
        routed = sum(gates[..., k : k + 1] * expert(hidden) for k, expert in enumerate(self.experts))
        return self.shared(hidden) + routed  # type: ignore[no-any-return]


def remote(gate: Callable[[], nn.Module], extra: Callable[[], nn.Module] | None = None) -> Any:
    """A decoder whose layers 2 and 3 are such mixtures, and which declares nothing."""
    model = FAMILIES["llama"].build()
    torch.manual_seed(1)
    for layer in model.layers[1:]:
        layer.mlp = Block(gate(), extra() if extra else None)
        for parameter in layer.mlp.parameters():
            nn.init.normal_(parameter, std=0.15)
    return model.eval()


GATES: dict[str, Callable[[], nn.Module]] = {
    "chosen only": Gate,
    "a linear layer": lambda: nn.Linear(SIZE, NUMBER, bias=False),
}


@pytest.mark.parametrize("kind", GATES)
def test_a_gate_beside_experts_is_their_router(kind: str) -> None:
    backbone, tokens = Backbone(remote(GATES[kind]), "causal"), batch()
    gates = [layer.mlp.gate for layer in backbone.layers[1:]]  # type: ignore[union-attr]
    assert [router.module for router in backbone.routers] == gates
    given: list[Tensor] = []
    for gate in gates:
        gate.register_forward_pre_hook(lambda gate, args: given.append(linear(args[0][:, -1].float(), gate.weight.float())))
    found = routing(backbone, tokens)
    logits = torch.cat(given, dim=1)
    expected = logits.unflatten(1, (2, -1)).softmax(dim=-1).flatten(1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert found.shape == (4, 2 * NUMBER)
    if kind == "chosen only":
        chosen = routing(backbone, tokens, "topk")
        assert (chosen != 0).unflatten(1, (2, -1)).sum(dim=-1).tolist() == [[CHOSEN] * 2] * 4


@pytest.mark.parametrize(
    "model",
    [
        lambda: remote(lambda: Gate(by_position=True)),
        lambda: remote(Gate, extra=lambda: nn.Linear(SIZE, NUMBER)),
    ],
    ids=["not by its weight", "two candidates"],
)
def test_experts_without_a_router_that_can_be_read_are_not_called_dense(model: Callable[[], Any]) -> None:
    backbone = Backbone(model(), "causal")
    assert backbone.routers == []
    with pytest.raises(UnmaskError, match=r"has experts \(layers\.1\.mlp and others\), but no router that can be read"):
        backbone.reads(Design.parse("causal/plain/last/routing"))
