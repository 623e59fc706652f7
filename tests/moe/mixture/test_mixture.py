"""A mixture is its experts, gated: against each expert in PEFT, against the base, and against the sum by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from tests.moe.mixture.models import FAMILY, language_model, saved_experts, tokens
from tests.proofs import ALL
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.moe.mixture.gating import Routing, gates
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.moe.mixture.model import override_routing

ROUTERS = ["block", "layer", "final"]


def logits(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **options).logits  # type: ignore[no-any-return]


def one_expert(family: str, folder: Path, ids: torch.Tensor) -> torch.Tensor:
    from peft import PeftModel

    return logits(PeftModel.from_pretrained(language_model(family), folder), ids)


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", FAMILY)
def test_one_expert_alone_is_that_expert_and_none_is_the_base(family: str, tmp_path: Path) -> None:
    model = language_model(family)
    ids = tokens(model)
    base = logits(model, ids)
    experts = saved_experts(tmp_path, model)
    mixture = Mixture(model, experts)
    for expert in experts:
        with mixture.only(expert.name):
            found = logits(model, ids)
        assert (found - one_expert(family, expert.folder, ids)).abs().max() < 1e-4
        assert (found - base).abs().max() > 1e-2
    with mixture.without_experts():
        assert torch.equal(logits(model, ids), base)
    with mixture.with_gates(torch.zeros_like):
        assert torch.allclose(logits(model, ids), base, atol=1e-6)


def test_another_thread_does_not_embed_under_an_override(tokenizer: Any, tmp_path: Path) -> None:
    """Without the lock, the thread would embed by the base model alone, since the state of a mixture is shared."""
    model = language_model(vocab_size=512)
    mixture = Mixture(model, saved_experts(tmp_path, model))
    embedder = Embedder.from_model(mixture.body, tokenizer, "mean")
    expected, vectors = embedder.encode(["a b c"]), []
    thread = Thread(target=lambda: vectors.append(embedder.encode(["a b c"])))
    with mixture.without_experts():
        thread.start()
        thread.join(timeout=1)
        assert vectors == [], "it waits"
    thread.join()
    assert (vectors[0] == expected).all()


@pytest.mark.sample(2)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("router", ROUTERS)
def test_a_layer_is_read_with_its_experts(router: Any, attention: str, tokenizer: Any, tmp_path: Path) -> None:
    """A final router runs the base model first. What is read, and where the pass ends, must be of the pass after it."""
    model = language_model(vocab_size=512, num_hidden_layers=3)
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(router))
    embedder = Embedder.from_model(mixture.body, tokenizer, f"{attention}/plain/last@2")
    ids = torch.tensor([tokenizer("a b c")["input_ids"]])
    with embedder.backbone.turn(), torch.no_grad():
        expected = mixture.body(ids, output_hidden_states=True, use_cache=False).hidden_states[2][0, -1]
    assert torch.allclose(torch.from_numpy(embedder.encode(["a b c"])[0]), expected, atol=1e-5)
    assert embedder.backbone.proof.summary == f"{attention}, proven in 3 layers with and without padding"


@pytest.mark.parametrize("family", FAMILY)
def test_maps_that_read_the_same_input_share_a_product(family: str, tmp_path: Path) -> None:
    """What maps share is found on the loaded model, changes nothing, and is undone where factors train; nothing of a pass stays behind."""
    model = language_model(family)
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(top_k=2))
    ids = tokens(model)
    shared = logits(model, ids)
    sizes = [0 if point.shared_down is None else point.shared_down.shape[0] // (3 * 2) for point in mixture.points.values()]
    expected = {"olmoe": {3}, "qwen2-moe": {3, 0}}.get(family, {3, 2})
    assert set(sizes) == expected, "query, key, value; gate, up, unless the block gives them other states than its input"
    assert all(point.now.strength is None for point in mixture.points.values())
    for point in mixture.points.values():
        point.unshare()
    assert torch.allclose(logits(model, ids), shared, atol=1e-5)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_map_is_the_base_and_the_gated_sum_of_its_experts(router: Any, tmp_path: Path) -> None:
    model = language_model()
    experts = saved_experts(tmp_path, model)
    mixture = Mixture(model, experts, Routing(router, top_k=2))
    for weight in mixture.routers.values():
        torch.nn.init.normal_(weight.weight)
    name = "model.layers.1.mlp.down_proj"
    seen: dict[str, Any] = {}
    stack: Any = model.get_submodule(name)
    stack.register_forward_hook(lambda _, given, output: seen.update(input=given[0], output=output))
    point = mixture.points["model.layers.1.mlp"]
    point.register_forward_hook(lambda _, __, output: seen.update(logits=output))
    ids = tokens(model)
    logits(model, ids)
    alpha = gates(seen["logits"].reshape(*ids.shape, 3), Routing(top_k=2))
    expected = stack.base(seen["input"])
    for place, expert in enumerate(experts):
        down, up = expert.factors[name]
        expected = expected + alpha[..., place : place + 1] * (seen["input"] @ down.T @ up.T)
    assert torch.allclose(seen["output"], expected, atol=1e-5)
    assert alpha.argmax(dim=-1).unique().numel() > 1, "tokens have to go to different experts"


@pytest.mark.parametrize("family", FAMILY)
def test_a_text_is_the_same_alone_in_a_batch_and_padded(family: str, tmp_path: Path) -> None:
    model = language_model(family)
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(top_k=3))
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.3)
    ids = tokens(model, 1, 6)
    alone = logits(model, ids)
    for left in (True, False):
        fill = torch.zeros(1, 3, dtype=torch.long)
        padded = torch.cat([fill, ids] if left else [ids, fill], dim=1)
        mask = torch.ones_like(padded)
        mask[:, slice(0, 3) if left else slice(6, None)] = 0
        places = (mask.cumsum(dim=1) - 1).clamp_min(0)
        found = logits(
            model,
            torch.cat([padded, tokens(model, 1, 9)]),
            attention_mask=torch.cat([mask, torch.ones_like(mask)]),
            position_ids=torch.cat([places, torch.arange(9)[None]]),
        )
        assert torch.allclose(found[:1][mask.bool()], alone[0], atol=1e-4)


# experts are chosen token by token, whatever the number of texts: each of both has each value once
@pytest.mark.sample(8)
@pytest.mark.parametrize(("top_k", "texts"), itertools.product((1, 2), (1, 3)) if ALL else [(1, 3), (2, 1)])
@pytest.mark.parametrize("router", [*ROUTERS, "block-sequence", "final-sequence"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral-sliding"])
def test_generating_with_a_cache_is_generating_without(
    family: str, router: Any, top_k: int, texts: int, tmp_path: Path
) -> None:
    model = language_model(family)
    kind, _, level = router.partition("-")
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(kind, top_k=top_k, level=level or "token"))
    for one in mixture.routers.values():
        torch.nn.init.normal_(one.weight, std=0.5)
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "do_sample": False,
        "pad_token_id": 0,
        "output_logits": True,
        "eos_token_id": None,
    }
    ids = tokens(model, texts)
    with torch.no_grad():
        cached, plain = (
            model.generate(input_ids=ids, use_cache=use, return_dict_in_generate=True, **options) for use in (True, False)
        )
    assert torch.equal(cached.sequences, plain.sequences)
    for one, other in zip(cached.logits, plain.logits, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("router", ROUTERS)
def test_gradient_checkpointing_changes_no_gradient(router: Any, tmp_path: Path) -> None:
    found = []
    for checkpointing in (False, True):
        model = language_model()
        experts = saved_experts(tmp_path, model)
        mixture = Mixture(model, experts, Routing(router, top_k=2))
        for one in mixture.routers.values():
            one.weight.requires_grad_(True)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        ids = tokens(model)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        found.append([one.weight.grad.clone() for one in mixture.routers.values() if one.weight.grad is not None])
    assert found[0] and len(found[0]) == len(found[1])
    assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(*found, strict=True))
    assert any(float(one.abs().max()) > 0 for one in found[0])


@pytest.mark.parametrize("length", [1, 5, 12])
def test_a_mixture_that_has_encoded_trains_its_router(length: int, tmp_path: Path) -> None:
    """What it keeps for few tokens was made in inference mode, which no gradient may pass."""
    model = language_model()
    mixture = Mixture(model, saved_experts(tmp_path, model))
    ids = tokens(model, 1, length)
    with torch.inference_mode():
        encoded = model(input_ids=ids, use_cache=False).logits.clone()
    [weight] = mixture.router_weights
    weight.requires_grad_(True)
    output = model(input_ids=ids, use_cache=False).logits
    output.square().sum().backward()
    assert torch.allclose(output.detach(), encoded, atol=1e-5)
    assert weight.grad is not None and weight.grad.abs().max() > 0


@pytest.mark.parametrize(("router", "points"), [("block", 6), ("layer", 6), ("final", 6)])
def test_routing_points_are_read_as_routers_are(router: Any, points: int, tmp_path: Path) -> None:
    from unmask.models.routers import find_routers

    model = language_model()
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(router))
    assert len(find_routers(mixture.body)) == len(mixture.points) == points
    with torch.no_grad():
        found = mixture.body(input_ids=tokens(model), output_router_logits=True).router_logits
    assert [tuple(one.shape) for one in found] == [(27, 3)] * points
    fresh = language_model()
    assert not find_routers(fresh.model), "other models of the class are as they were"
    assert "router_logits" not in fresh.model(input_ids=tokens(fresh), output_router_logits=True)


@pytest.mark.sample(2)
@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_final_router_is_x_lora(family: str, top_k: int, tmp_path: Path) -> None:
    """PEFT's X-LoRA, with the same experts and the same router, gives the same logits."""
    from peft import XLoraConfig, get_peft_model

    model = language_model(family)
    experts = saved_experts(tmp_path, model)
    mixture = Mixture(model, experts, Routing("final", top_k))
    weight = mixture.routers["router"].weight
    torch.nn.init.normal_(weight, std=0.5)
    other = language_model(family)
    other.config.use_cache = False
    adapters = {str(place): str(expert.folder) for place, expert in enumerate(experts)}
    size = other.config.hidden_size
    config = XLoraConfig(task_type="CAUSAL_LM", hidden_size=size, xlora_depth=1, adapters=adapters, top_k_lora=top_k)
    xlora = get_peft_model(other, config).eval()
    [router] = [one for name, one in xlora.named_modules() if name.endswith("internal_xlora_classifier.layers.0")]
    with torch.no_grad():
        router.weight.copy_(weight)
        router.bias.zero_()
        ids = tokens(model)
        theirs = xlora(input_ids=ids).logits
    ours = logits(model, ids)
    assert torch.allclose(ours, theirs, atol=1e-4)
    with mixture.without_experts():
        assert not torch.allclose(logits(model, ids), theirs, atol=1e-2)


def test_a_sequence_is_routed_by_the_mean_of_the_text_so_far(tmp_path: Path) -> None:
    model = language_model()
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(level="sequence", top_k=2))
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.5)
    ids = tokens(model)
    point = mixture.points["model.layers.0.self_attn"]
    with mixture.record_logits() as heard:
        whole = logits(model, ids)
    states: list[Any] = []
    point.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    assert torch.equal(logits(model, ids), whole)
    said = states[0] @ mixture.routers["router"].weight.T
    means = torch.stack([said[:, : end + 1].mean(dim=1) for end in range(ids.shape[1])], dim=1)
    assert torch.allclose(heard[0], means, atol=1e-5)
    other = ids.clone()
    other[:, 6:] = 5
    assert torch.allclose(logits(model, other)[:, :6], whole[:, :6], atol=1e-5), "the future decides nothing"
    with pytest.raises(UnmaskError, match="were made for level=sequence"):
        mixture.routing = Routing()


def test_a_shared_expert_always_acts_at_full_strength(tmp_path: Path) -> None:
    model = language_model()
    ids = tokens(model)
    *experts, always = saved_experts(tmp_path, model)
    mixture = Mixture(model, experts, Routing(), shared=always)
    assert mixture.routers["router"].weight.shape[0] == 2
    with mixture.with_gates(torch.zeros_like):
        alone = logits(model, ids)
    with mixture.only("a"):
        both = logits(model, ids)
    model = language_model()
    three = Mixture(model, [*experts, always])
    with three.only("c"):
        assert torch.allclose(logits(model, ids), alone, atol=1e-5)
    with three.with_gates(lambda scores: torch.tensor([1.0, 0.0, 1.0]).expand(scores.shape)):
        assert torch.allclose(logits(model, ids), both, atol=1e-5)
    with pytest.raises(UnmaskError, match="the same name"):
        Mixture(language_model(), experts, shared=experts[0])


def test_choices(tmp_path: Path) -> None:
    model = language_model()
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing())
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.5)
    point = mixture.points["model.layers.0.mlp"]
    ids = tokens(model)

    seen: list[torch.Tensor] = []
    point.register_forward_hook(lambda point, *_: seen.append(point.now.strength))

    def strengths(choice: str) -> torch.Tensor:
        with override_routing(mixture, choice):
            logits(model, ids)
        return seen[-1][..., ::2]  # of rank 2: each expert stands there twice

    learned = strengths("learned")
    assert torch.equal(learned, strengths("top-1")) and bool((learned.count_nonzero(dim=-1) == 1).all())
    assert bool((strengths("top-2").count_nonzero(dim=-1) == 2).all())
    both = strengths("top-2 renormalised")
    assert bool((both.count_nonzero(dim=-1) == 2).all()) and torch.allclose(both.sum(dim=-1), torch.tensor(1.0))
    assert torch.allclose(strengths("all").sum(dim=-1), torch.tensor(1.0))
    renormalised = strengths("renormalised")
    assert torch.allclose(renormalised.sum(dim=-1), torch.tensor(1.0)) and not torch.equal(renormalised, learned)
    assert torch.equal(strengths("uniform"), torch.full_like(learned, 1 / 3))
    assert torch.equal(strengths("b"), torch.tensor([0.0, 1.0, 0.0]).expand_as(learned))
    with pytest.raises(UnmaskError, match="Did you mean 'random'"):
        strengths("randon")
    with pytest.raises(UnmaskError, match="'top-4' needs 4 experts; this mixture has 3"):
        strengths("top-4")
    assert mixture.routing == Routing(), "afterwards all is as it was"


@pytest.mark.sample(2)
@pytest.mark.parametrize("router", ["block", "layer"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "olmoe"])
def test_layers_of_a_span_share_the_decision_of_the_first_one(router: Any, family: str, tmp_path: Path) -> None:
    model = language_model(family, num_hidden_layers=3)
    ids = tokens(model)
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(router, top_k=2, span=2))
    with mixture.record_logits() as recorded:
        shared = logits(model, ids)
    blocks = len(recorded) // 3  # of a layer that carry experts: the attention and the MLP, which olmoe's experts leave out
    assert blocks == (1 if family == "olmoe" else 2) and len(mixture.deciding) == 2, "layers 0 and 1; layer 2"
    assert len(mixture.routers) == (2 if router == "layer" else 1)
    assert all(torch.equal(decision, recorded[0]) for decision in recorded[: 2 * blocks])
    assert torch.equal(recorded[-1], recorded[2 * blocks]) and not torch.equal(recorded[0], recorded[-1])
    # the same decisions, dictated point by point to a mixture in which each block decides
    weights, dictated = mixture.routers, iter([*recorded])
    first = next(iter(weights.values())).weight.detach().clone()
    again = language_model(family, num_hidden_layers=3)
    plain = Mixture(again, saved_experts(tmp_path / "again", again), Routing("block", top_k=2))
    plain.load_routers({"router": first})
    with plain.with_gates(lambda _: gates(next(dictated), plain.routing)):
        assert torch.equal(logits(again, ids), shared)


SHARED = {"span": 2, "from_layer": 1}


@pytest.mark.parametrize(
    "routing",
    [
        {},
        {"level": "sequence"},
        {"router": "final"},
        SHARED,
        SHARED | {"level": "sequence"},
        {"router": "final", "level": "sequence"},
    ],
)
def test_a_text_that_goes_on_by_the_cache_of_its_beginning_is_routed_as_a_whole(
    routing: dict[str, Any], tmp_path: Path
) -> None:
    """The model makes the cache itself, as it does by default."""
    model = language_model(num_hidden_layers=3)
    ids = tokens(model)
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(**routing))
    for router in mixture.routers.values():
        torch.nn.init.normal_(router.weight, std=0.5)
    whole = logits(model, ids)
    with torch.no_grad():
        before = model(input_ids=ids[:, :5])
        after = model(input_ids=ids[:, 5:], past_key_values=before.past_key_values)
    assert torch.allclose(before.logits, whole[:, :5], atol=1e-5) and torch.allclose(after.logits, whole[:, 5:], atol=1e-5)


def test_gates_by_hand() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0]])
    alpha = scores.softmax(dim=-1)[0]
    assert torch.allclose(gates(scores, Routing(top_k=3))[0], alpha)
    assert torch.allclose(gates(scores, Routing(top_k=1))[0], torch.tensor([0.0, alpha[1], 0.0]))
    assert torch.allclose(gates(scores, Routing(top_k=2))[0], torch.tensor([0.0, alpha[1], alpha[2]]))
    assert torch.allclose(gates(scores, Routing(top_k=2, renormalise=True)).sum(), torch.tensor(1.0))
    assert torch.equal(gates(torch.zeros(1, 3), Routing()).count_nonzero(), torch.tensor(1)), "a tie still chooses one"
