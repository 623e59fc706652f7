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
from unmask.moe.mixture.model import Mixture
from unmask.moe.mixture.override import override_routing

ROUTERS = ["block", "layer", "final"]


def logits(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **options).logits  # type: ignore[no-any-return]


def mixture_of(folder: Path, routing: Routing | None = None, family: str = "llama", **changes: Any) -> Mixture:
    """A mixture of three experts whose routers are not flat."""
    model = language_model(family, **changes)
    mixture = Mixture(model, saved_experts(folder, model), routing)
    torch.manual_seed(1)
    for router in mixture.routers.values():
        torch.nn.init.normal_(router.weight, std=0.5)
    return mixture


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
def test_linear_layers_that_read_the_same_input_share_a_product(family: str, tmp_path: Path) -> None:
    """What they share is found on the loaded model, changes nothing, and is undone where factors train; nothing of a pass stays behind."""
    model = language_model(family)
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(top_k=2))
    ids = tokens(model)
    shared = logits(model, ids)
    sizes = [0 if point.joint_down is None else point.joint_down.shape[0] // (3 * 2) for point in mixture.points.values()]
    expected = {"olmoe": {3}, "qwen2-moe": {3, 0}}.get(family, {3, 2})
    assert set(sizes) == expected, "query, key, value; gate, up, unless the block gives them other states than its input"
    assert all(point.state.rank_gates is None for point in mixture.points.values())
    for point in mixture.points.values():
        point.prepare_training()
    assert torch.allclose(logits(model, ids), shared, atol=1e-5)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_linear_layer_is_the_base_and_the_gated_sum_of_its_experts(router: Any, tmp_path: Path) -> None:
    mixture = mixture_of(tmp_path, Routing(router, top_k=2))
    model, experts = mixture.model, mixture.experts
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
    model = mixture_of(tmp_path, Routing(top_k=3), family).model
    ids = tokens(model, 1, 6)
    alone = logits(model, ids)
    for left in (True, False):
        gap = torch.zeros(1, 3, dtype=torch.long)
        padded, mask = (torch.cat([gap, part] if left else [part, gap], dim=1) for part in (ids, torch.ones_like(ids)))
        positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
        batch = logits(
            model,
            torch.cat([padded, tokens(model, 1, 9)]),
            attention_mask=torch.cat([mask, torch.ones_like(mask)]),
            position_ids=torch.cat([positions, torch.arange(9)[None]]),
        )
        assert torch.allclose(batch[:1][mask.bool()], alone[0], atol=1e-4)


# experts are chosen token by token, whatever the number of texts: each of both has each value once
@pytest.mark.sample(8)
@pytest.mark.parametrize(("top_k", "texts"), itertools.product((1, 2), (1, 3)) if ALL else [(1, 3), (2, 1)])
@pytest.mark.parametrize("router", [*ROUTERS, "block-sequence", "final-sequence"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral-sliding"])
def test_generating_with_a_cache_is_generating_without(
    family: str, router: Any, top_k: int, texts: int, tmp_path: Path
) -> None:
    kind, _, level = router.partition("-")
    model = mixture_of(tmp_path, Routing(kind, top_k=top_k, level=level or "token"), family).model
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    ids = tokens(model, texts)
    with torch.no_grad():
        cached, plain = (
            model.generate(input_ids=ids, use_cache=use, return_dict_in_generate=True, output_logits=True, **options)
            for use in (True, False)
        )
    assert torch.equal(cached.sequences, plain.sequences)
    for one, other in zip(cached.logits, plain.logits, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("length", [1, 12])
def test_gradients_are_those_of_a_mixture_that_never_encoded(router: Any, length: int, tmp_path: Path) -> None:
    """Also under gradient checkpointing. What is kept for few tokens was made in inference mode, which no gradient may pass."""
    gradients = []
    for checkpointing in (False, True):
        mixture = mixture_of(tmp_path, Routing(router, top_k=2))
        model, ids = mixture.model, tokens(mixture.model, 1, length)
        if checkpointing:
            with torch.inference_mode():
                model(input_ids=ids, use_cache=False)
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for weight in mixture.router_weights:
            weight.requires_grad_(True)
        model.train()
        model(input_ids=ids, use_cache=False).logits.square().sum().backward()
        gradients.append([weight.grad.clone() for weight in mixture.router_weights if weight.grad is not None])
    assert gradients[0] and len(gradients[0]) == len(gradients[1])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
        assert float(one.abs().max()) > 0


@pytest.mark.parametrize("router", ROUTERS)
def test_routing_points_are_read_as_routers_are(router: Any, tmp_path: Path) -> None:
    from unmask.models.routers import find_routers

    model = language_model()
    mixture = Mixture(model, saved_experts(tmp_path, model), Routing(router))
    assert len(find_routers(mixture.body)) == len(mixture.points) == 6
    with torch.no_grad():
        found = mixture.body(input_ids=tokens(model), output_router_logits=True).router_logits
    assert [tuple(one.shape) for one in found] == [(27, 3)] * 6
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
    mixture = mixture_of(tmp_path, Routing(level="sequence", top_k=2))
    model, ids = mixture.model, tokens(mixture.model)
    states: list[Any] = []
    mixture.points["model.layers.0.self_attn"].register_forward_pre_hook(lambda _, given: states.append(given[0]))
    with mixture.record_logits() as recorded:
        whole = logits(model, ids)
    scores = states[0] @ mixture.routers["router"].weight.T
    means = torch.stack([scores[:, : end + 1].mean(dim=1) for end in range(ids.shape[1])], dim=1)
    assert torch.allclose(recorded[0], means, atol=1e-5)
    other = ids.clone()
    other[:, 6:] = 5
    assert torch.allclose(logits(model, other)[:, :6], whole[:, :6], atol=1e-5), "later tokens decide nothing"
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
    mixture = mixture_of(tmp_path)
    ids = tokens(mixture.model)
    seen: list[torch.Tensor] = []
    mixture.points["model.layers.0.self_attn"].register_forward_hook(lambda point, *_: seen.append(point.state.rank_gates))

    def strengths(choice: str) -> torch.Tensor:
        with override_routing(mixture, choice):
            logits(mixture.model, ids)
        return seen[-1][..., ::2]  # of rank 2: each expert is there twice

    learned = strengths("learned")
    assert torch.equal(learned, strengths("top-1"))
    for choice, acting, total in (
        ("top-1", 1, None), ("top-2", 2, None), ("top-2 renormalised", 2, 1.0), ("all", 3, 1.0), ("renormalised", 1, 1.0),
    ):  # fmt: skip
        found = strengths(choice)
        assert bool((found.count_nonzero(dim=-1) == acting).all())
        assert total is None or torch.allclose(found.sum(dim=-1), torch.tensor(total))
    shuffled = strengths("random")
    assert torch.equal(shuffled.amax(dim=-1), learned.amax(dim=-1)) and not torch.equal(shuffled, learned)
    assert torch.equal(strengths("uniform"), torch.full_like(learned, 1 / 3))
    assert torch.equal(strengths("b"), torch.tensor([0.0, 1.0, 0.0]).expand_as(learned))
    for wrong, why in (("randon", "Did you mean 'random'"), ("top-4", "'top-4' needs 4 experts; this mixture has 3")):
        with pytest.raises(UnmaskError, match=why):
            strengths(wrong)
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
    assert blocks == (1 if family == "olmoe" else 2) and len(mixture.deciding_points) == 2, "layers 0 and 1; layer 2"
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


@pytest.mark.parametrize(
    "routing",
    [
        {},
        {"level": "sequence"},
        {"router": "final"},
        {"span": 2, "from_layer": 1, "level": "sequence"},
        {"router": "final", "level": "sequence"},
    ],
    ids=str,
)
def test_a_text_that_continues_by_a_cache_is_routed_as_a_whole(routing: dict[str, Any], tmp_path: Path) -> None:
    """The model makes the cache itself, as it does by default."""
    model = mixture_of(tmp_path, Routing(**routing), num_hidden_layers=3).model
    ids = tokens(model)
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
