"""Ways to train a router (from prototypes, balanced, jointly with the experts), and where it sends tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.moe.experts.conftest import COLOURS, DOMAINS, SUMS
from tests.moe.experts.test_training import LORA, SHORT, mixture_of
from tests.moe.mixture.models import language_model, saved_experts
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.experts.expert_usage import first_choices, measure_usage
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.lessons.lessons import tokenize_lessons
from unmask.moe.experts.likelihood import response_likelihood
from unmask.moe.experts.mixing import Ingredients, fresh_mixture, train_mixture
from unmask.moe.experts.router import Balance, BalanceLoss, RouterOptions, mean_states, start_from_prototypes, train_router
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture, load_mixture


@pytest.mark.sample(1)
@pytest.mark.parametrize("router", ["block", "layer", "final"])
def test_prototypes_know_the_domains_before_training(router: Any, base: Path, tmp_path: Path) -> None:
    mixture, tokenizer = mixture_of(base, tmp_path, Routing(router))
    tokens = {name: tokenize_lessons(tokenizer, lessons, 512) for name, lessons in DOMAINS.items()}
    by_chance = measure_usage(mixture, tokenizer, DOMAINS)
    start_from_prototypes(mixture, tokenizer, tokens)
    known = measure_usage(mixture, tokenizer, DOMAINS)
    assert known.own == 1.0
    assert known.information > by_chance.information + 0.02
    with pytest.raises(UnmaskError, match="'sums' has none"):
        start_from_prototypes(mixture, tokenizer, {"colours": tokens["colours"]})


def test_a_mean_state_is_the_mean_of_what_a_block_is_given(base: Path, tmp_path: Path) -> None:
    mixture, tokenizer = mixture_of(base, tmp_path, Routing("layer"))
    lessons = tokenize_lessons(tokenizer, DOMAINS["sums"][:3] + DOMAINS["colours"][:1], 512)
    found = mean_states(mixture, lessons, 0)
    name, states = "model.layers.1.mlp", []
    hook = mixture.model.get_submodule(name).register_forward_pre_hook(lambda _, given: states.append(given[0][0]))
    with torch.no_grad(), mixture.without_experts():
        for lesson in lessons:
            mixture.body(input_ids=torch.tensor([lesson.ids]))
    hook.remove()
    assert torch.allclose(found[name], torch.cat(states).mean(dim=0), atol=1e-5)


def test_balance_by_hand() -> None:
    logits = torch.tensor([[[2.0, 0.0], [2.0, 0.0], [0.0, 3.0], [9.0, 9.0]]])
    real = torch.tensor([[True, True, True, False]])
    share = torch.tensor([2 / 3, 1 / 3])
    mean = logits[real].softmax(dim=-1).mean(dim=0)
    loss = BalanceLoss([logits], Balance(0.5, "pass"), 1, passes=1)(real)
    assert torch.allclose(loss, 0.5 * 2 * (share * mean).sum())


def test_joint_experts_learn_and_are_plain_experts_afterwards(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    source = Source(str(base), dtype="float32")
    learning = replace(SHORT, steps=30, lr=5e-3)
    options = RouterOptions(joint=True, lr=1e-2)
    train_mixture(
        Ingredients(), DOMAINS, tmp_path / "joint", Routing(top_k=2), source, lora=LORA, learning=learning, options=options
    )
    mixture, tokenizer = load_mixture(tmp_path / "joint", source)
    lessons = [lesson for some in DOMAINS.values() for lesson in some]
    found = response_likelihood(mixture.model, tokenizer, lessons).mean()
    with mixture.without_experts():
        untrained = response_likelihood(mixture.model, tokenizer, lessons).mean()
    assert found < 0.6 * untrained
    with mixture.only("expert1"):
        alone = response_likelihood(mixture.model, tokenizer, lessons)
    model, _ = load_base_language_model(source)
    adapted = PeftModel.from_pretrained(model, tmp_path / "joint" / "experts" / "expert1")
    assert torch.allclose(torch.tensor(response_likelihood(adapted, tokenizer, lessons)), torch.tensor(alone), atol=1e-4)
    with pytest.raises(UnmaskError, match="cannot start from prototypes"):
        train_mixture(
            Ingredients(), DOMAINS, tmp_path / "other", Routing(), source, options=RouterOptions(start="prototypes", joint=True)
        )


def learned_jointly(base: Path, folder: Path, routing: Routing, learning: Learning, lr: float | None) -> list[torch.Tensor]:
    """The weights of experts and router before joint training, and those afterwards."""
    mixture, tokenizer = fresh_mixture(Source(str(base), dtype="float32"), list(DOMAINS), routing, LORA, 0)
    torch.manual_seed(0)
    for weight in mixture.expert_weights:  # while B is zero, neither A nor the router has a gradient
        torch.nn.init.normal_(weight, std=0.1)

    def weights() -> list[torch.Tensor]:
        both = (mixture.expert_weights, mixture.router_weights)
        return [torch.cat([weight.detach().flatten() for weight in some]) for some in both]

    before = weights()
    train_router(mixture, tokenizer, DOMAINS, folder, learning=learning, options=RouterOptions(joint=True, lr=lr))
    return [*before, *weights()]


@pytest.mark.parametrize("router", ["block", "layer", "final"])
def test_in_joint_training_the_router_has_its_own_rate(router: Any, base: Path, tmp_path: Path) -> None:
    """The first step of Adam moves a weight by the learning rate, if the gradient is not tiny."""
    learning = replace(SHORT, steps=1, lr=1e-3)
    for lr, expected in ((None, 1e-3), (0.02, 0.02)):
        experts, routers, new_experts, new_routers = learned_jointly(base, tmp_path / f"{lr}", Routing(router), learning, lr)
        assert (new_experts - experts).abs().median() == pytest.approx(1e-3, rel=0.02)
        assert (new_routers - routers).abs().median() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("family", ["llama", "olmoe"])
def test_first_choices_by_hand(family: str, tokenizer: Any, tmp_path: Path) -> None:
    model = language_model(family, vocab_size=512, max_position_embeddings=512)
    mixture = Mixture(model, saved_experts(tmp_path, model, ["colours", "sums"]), Routing(top_k=1))
    torch.nn.init.normal_(mixture.routers["router"].weight, std=0.5)
    lessons = [SUMS[0], replace(COLOURS[0], output=" ".join([COLOURS[0].output] * 9))]
    everywhere, answering, strength = first_choices(mixture, tokenizer, lessons, 512, batch_tokens=60)  # each in its own batch
    gates = []
    for index, tokens in enumerate(tokenize_lessons(tokenizer, lessons, 512)):
        points: list[torch.Tensor] = []
        hooks = [
            point.register_forward_hook(
                lambda point, hidden, _, points=points: points.append(point.router(hidden[0]).flatten(0, -2))
            )
            for point in mixture.points.values()
        ]
        with torch.no_grad():
            mixture.body(torch.tensor([tokens.ids]))
        for hook in hooks:
            hook.remove()
        logits = torch.stack(points)
        for counts, start in ((everywhere, 0), (answering, tokens.start)):
            shares = (logits.argmax(dim=-1) == 0)[:, start:].float().mean(dim=1).numpy()
            assert np.allclose(counts[index], np.stack([shares, 1 - shares], axis=1), atol=1e-6)
        gates.append(logits.softmax(dim=-1).amax(dim=-1).flatten())
    assert strength == pytest.approx(float(torch.cat(gates).mean()), rel=1e-5)
