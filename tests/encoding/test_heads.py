"""Heads: every head with attention reads the unmasked positions and nothing else, computes its formula, and trains as a whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.cases import cases as in_one_test
from unmask.encoding.heads import (
    HEADS,
    CompressionTokens,
    Head,
    HeadOptions,
    LayerAttention,
    build_head,
)
from unmask.errors import UnmaskError

HIDDEN, DEPTH, TEXTS = 12, 5, 4
Array = NDArray[np.float64]
SMALL = {"latents": 3, "heads": 2, "dim": 8, "mlp": 0.5}
QUERIES = ["cross-attention", "layer-attention"]
ATTENDING = [kind for kind, head in HEADS.items() if head is not CompressionTokens]  # see test_compression_tokens.py
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((kind, changes) for kind in ATTENDING for changes in ({}, {"mlp": 0.0}, {"latents": 1, "heads": 1})),
    *((kind, {"conditioned": True}) for kind in QUERIES),
    ("layer-attention", {"layer_matrix": False}),
]
kinds = pytest.mark.parametrize("kind", ATTENDING)
queries = pytest.mark.parametrize("kind", QUERIES)
variants = in_one_test("kind, changes", VARIANTS)


def small(kind: str, shake: bool = True, **changes: Any) -> Head:
    """A small head; shaken, every parameter is away from its start, so that no part is hidden by being zero or tiny."""
    head = build_head(kind, HIDDEN, DEPTH, HeadOptions(**{**SMALL, **changes}))
    with torch.no_grad():
        for parameter in head.parameters() if shake else ():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return head


def batch(head: Head, positions: int = DEPTH) -> dict[str, Tensor]:
    """States of which all but the first text miss some positions, and a condition if the head takes one."""
    mask = torch.ones(TEXTS, positions).bool()
    mask[1, 3:], mask[2, :2], mask[3, [0, 2, 3, 4]] = False, False, False
    inputs = {"states": torch.randn(TEXTS, positions, HIDDEN) * 3 + 1, "mask": mask}
    return inputs | ({"condition": torch.randn(TEXTS, HIDDEN) * 50} if head.options.conditioned else {})


def rows(inputs: dict[str, Tensor], *which: int) -> dict[str, Tensor]:
    return {name: value[list(which)] for name, value in inputs.items()}


def gradients(head: Head, states: Tensor, mask: Tensor, condition: Tensor | None = None) -> dict[str, Tensor]:
    head.zero_grad()
    states = states.clone().requires_grad_()
    vectors = head(states, mask, condition)
    (vectors * torch.linspace(-1, 1, HIDDEN)).sin().sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in head.named_parameters() if parameter.grad is not None}
    assert states.grad is not None
    return found | {"states": states.grad.masked_fill(~mask.unsqueeze(-1), 0.0)}


# --- the formula, by hand


def layer_norm(row: Array, weight: Array | float = 1.0, bias: Array | float = 0.0) -> Array:
    centred = row - row.mean()
    return np.asarray(centred / math.sqrt((centred**2).mean() + 1e-5) * weight + bias)


def reference(head: Head, states: Array, condition: Array | None) -> tuple[Array, Array]:
    """One text of real positions only, with loops: its vector and its attention (head, query, key)."""
    p = {name: value.detach().double().numpy() for name, value in head.named_parameters()}
    latents = [layer_norm(row, p["latent_norm.weight"], p["latent_norm.bias"]) for row in p["latents"]]
    states = states + p["layers"][: len(states)] if "layers" in p else states
    normed = [layer_norm(row, p["state_norm.weight"], p["state_norm.bias"]) for row in states]
    swapped = head.kind == "latent-attention"
    asking, asked = (normed, latents) if swapped else (latents, normed)
    if condition is not None:
        asking = [row + p["conditioning"] @ layer_norm(condition) for row in asking]
    count, dim = head.options.heads, p["attend.query.weight"].shape[0]
    attention, outputs = np.zeros((count, len(asking), len(asked))), []
    for i, query in enumerate(asking):
        found = np.zeros(dim)
        for number in range(count):
            part = slice(number * dim // count, (number + 1) * dim // count)
            q = p["attend.query.weight"][part] @ query
            scores = [math.exp(q @ (p["attend.key.weight"][part] @ key) / math.sqrt(dim // count)) for key in asked]
            for j, score in enumerate(scores):
                attention[number, i, j] = score / sum(scores)
                found[part] += attention[number, i, j] * (p["attend.value.weight"][part] @ asked[j])
        output = (states[i] if swapped else p["latents"][i]) + p["attend.output.weight"] @ found
        if "mlp.gate.weight" in p:
            inner = layer_norm(output, p["mlp.norm.weight"], p["mlp.norm.bias"])
            gate = np.array([g * 0.5 * (1 + math.erf(g / math.sqrt(2))) for g in p["mlp.gate.weight"] @ inner])
            output = output + p["mlp.down.weight"] @ (gate * (p["mlp.up.weight"] @ inner))
        outputs.append(output)
    return np.mean(outputs, axis=0), attention


@variants
def test_is_its_formula(kind: str, changes: dict[str, Any]) -> None:
    head = small(kind, **changes)
    inputs = batch(head)
    inputs["mask"][:] = True
    vectors = head(**inputs).detach()
    for row in range(TEXTS):
        one = {name: value[row].double().numpy() for name, value in inputs.items()}
        vector, attention = reference(head, one["states"], one.get("condition"))
        np.testing.assert_allclose(vectors[row], vector, rtol=1e-5, atol=1e-5)
        if kind in QUERIES:  # here all positions count; a masked one gets exactly 0
            np.testing.assert_allclose(head.attention(**rows(inputs, row))[0].detach(), attention, atol=1e-5)


# --- what every head promises


@variants
def test_a_vector_does_not_depend_on_the_batch_or_on_padding(kind: str, changes: dict[str, Any]) -> None:
    head = small(kind, **changes)
    inputs = batch(head)
    together = head(**inputs)
    for row in range(TEXTS):
        text = rows(inputs, row)
        if kind != "layer-attention":  # a head over layers has no padding
            states, mask = text["states"], text["mask"]
            text |= {"states": states[mask][None], "mask": mask[mask][None]}
        torch.testing.assert_close(head(**text)[0], together[row], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head(**rows(inputs, 2, 0, 3, 1)), together[[2, 0, 3, 1]], rtol=1e-5, atol=1e-5)


@variants
@in_one_test("garbage", [1e30, float("nan"), float("inf"), float("-inf")])
def test_masked_positions_change_neither_values_nor_gradients(kind: str, changes: dict[str, Any], garbage: float) -> None:
    head = small(kind, **changes)
    inputs = batch(head)
    soiled = inputs | {"states": inputs["states"].masked_fill(~inputs["mask"].unsqueeze(-1), garbage)}
    assert torch.equal(head(**soiled), head(**inputs))
    clean = gradients(head, **inputs)
    for name, gradient in gradients(head, **soiled).items():
        assert torch.equal(gradient, clean[name]), name


@variants
def test_gradients_reach_every_parameter_from_the_start(kind: str, changes: dict[str, Any]) -> None:
    head = small(kind, shake=False, **changes)
    found = gradients(head, **batch(head))
    single = {"attend.query.weight", "attend.key.weight", "latent_norm.weight", "latent_norm.bias"}
    for name, _ in head.named_parameters():
        if kind == "latent-attention" and changes.get("latents") == 1 and name in single:
            continue  # a softmax over one latent is 1, so queries and keys have nothing to learn
        assert found[name].abs().max() > 0, name


@variants
@pytest.mark.parametrize("autocast", [False, True])
def test_computes_in_fp32_beside_a_bf16_model(kind: str, changes: dict[str, Any], autocast: bool) -> None:
    head = small(kind, **changes)
    half = {name: value if name == "mask" else value.bfloat16() for name, value in batch(head).items()}
    full = {name: value if name == "mask" else value.float() for name, value in half.items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        vectors = head(**half)
    assert vectors.dtype == torch.float32
    assert torch.equal(vectors, head(**full))


# --- attention


@queries
def test_conditions_train_from_the_unconditioned_head_and_zero_is_none(kind: str) -> None:
    torch.manual_seed(3)
    plain = small(kind, shake=False)
    torch.manual_seed(3)
    head = small(kind, shake=False, conditioned=True)
    inputs = batch(head)
    expected = plain(inputs["states"], inputs["mask"])
    torch.testing.assert_close(head(**inputs), expected)
    torch.nn.init.normal_(head.get_parameter("conditioning"))
    inputs["condition"][0] = 0
    vectors = head(**inputs)
    torch.testing.assert_close(vectors[0], expected[0])
    assert not torch.allclose(vectors[1], expected[1], atol=1e-3)


def test_attention_is_on_the_unmasked_positions_only() -> None:
    head = small("cross-attention")
    inputs = batch(head)
    weights = head.attention(**inputs)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(TEXTS, 2, 3))
    assert torch.equal(weights.movedim(-1, 1).amax(dim=(2, 3)) > 0, inputs["mask"])


# --- options

CHANGES: dict[str, dict[str, Any]] = {
    "latents": {"latents": 5},
    "heads": {"heads": 4},
    "dim": {"dim": 4},
    "mlp": {"mlp": 1.0},
    "mlp_bias": {"mlp_bias": True},
    "layer_matrix": {"layer_matrix": False},
    "conditioned": {"conditioned": True},
}


@kinds
@pytest.mark.parametrize(
    "option", sorted(HeadOptions.model_fields.keys() - {"centred", "read"})
)  # training starts with `centred`
def test_every_option_changes_the_vectors_or_is_refused(kind: str, option: str) -> None:
    applies = {"layer_matrix": kind == "layer-attention", "conditioned": kind != "latent-attention"}
    if not applies.get(option, True):
        with pytest.raises(UnmaskError, match=f"{option}=.* changes nothing"):
            small(kind, **CHANGES[option])
        return
    made: list[Tensor] = []
    for changes in ({}, CHANGES[option]):
        torch.manual_seed(1)
        head = small(kind, **changes)
        torch.manual_seed(2)
        made.append(head(**batch(head)).detach())
    assert not torch.allclose(*made, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("cross_attention", {}, "Did you mean 'cross-attention'"),
        ("cross-attention", {"heads": 5, "dim": 12}, "dim 12 is not divisible by 5 heads.*: 1, 2, 3, 4, 6, 12"),
        ("latent-attention", {"latents": 0}, "latents of at least 1"),
        ("cross-attention", {"mlp": 0.001}, "Use 0 for no MLP"),
        ("latent-attention", {"mlp": 0.0, "mlp_bias": True}, "mlp_bias=True changes nothing"),
        ("layer-attention", {}, "for 5 layers, not 4"),
        ("cross-attention", {"conditioned": True}, "is conditioned"),
    ],
)
def test_sizes_and_inputs_that_do_not_fit_are_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        small(kind, **changes)(torch.zeros(1, 4, HIDDEN), torch.ones(1, 4).bool())


# --- the start


def cosine(vectors: Tensor) -> float:
    """Mean cosine between different texts."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return float(((unit @ unit.T).sum() - len(unit)) / (len(unit) * (len(unit) - 1)))


def test_centring_takes_off_what_all_texts_share() -> None:
    head = small("layer-attention", shake=False)
    assert isinstance(head, LayerAttention)
    states, mask = torch.randn(30, DEPTH, HIDDEN), torch.ones(30, DEPTH).bool()
    states[..., 3] += 2000  # the massive dimension of a trained LLM
    assert cosine(head(states, mask).detach()) > 0.99
    head.centre(states[:15])
    assert cosine(head(states[15:], mask[15:]).detach()) < 0.2
    small("layer-attention", centred=True)
    for kind, without in (("layer-attention", {"layer_matrix": False}), ("cross-attention", {})):
        with pytest.raises(UnmaskError, match="centred=True changes nothing without a layer matrix"):
            small(kind, centred=True, **without)
