"""Ways to train a router: from prototypes, balanced, jointly with the experts, and on from another mixture."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback
from typer.testing import CliRunner

from tests.moe.experts.conftest import DOMAINS
from tests.moe.experts.test_training import LORA, SHORT, expert, mixture_of
from tests.moe.mixture.models import language_model, saved_experts
from tests.training.running import At, die, killed
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.io.seals import SEAL, seal
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.experts import mixing
from unmask.moe.experts.balance import Balance, BalanceLoss
from unmask.moe.experts.expert_usage import measure_usage
from unmask.moe.experts.joint_training import fresh_mixture, write_experts
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.moe.experts.likelihood import response_likelihood
from unmask.moe.experts.mixing import JOINT, Ingredients, Mixed, copy_router_rows, mix, mix_jointly
from unmask.moe.experts.prototypes import mean_states, prototypes, start_from_prototypes
from unmask.moe.experts.router import LEARNING, RouterOptions, train_router
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import ROUTERS, Mixture, build_mixture, load_mixture

PLURALS = [Lesson(f"What is the plural of {thing}?", f"It is {thing}s.", where=thing) for thing in "abcdefghijkl"]


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


def test_prototypes_by_hand() -> None:
    means = torch.tensor([[1.0, 5.0, 0.0], [-1.0, 4.0, 0.0]])
    rows = prototypes(means)
    assert torch.allclose(rows @ means.mean(dim=0), torch.zeros(2), atol=1e-5), "what is common decides nothing"
    said = means @ rows.T
    assert torch.allclose((said.diagonal() - said.flip(1).diagonal()).mean(), torch.tensor(2.0))
    assert torch.equal(prototypes(means[:1]), torch.zeros(1, 3))


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
    loss = BalanceLoss([logits], Balance(0.5, "pass"), 2, 1, passes=1)(real)
    assert torch.allclose(loss, 0.5 * 2 * (share * mean).sum())
    with pytest.raises(UnmaskError, match="nothing to balance"):
        BalanceLoss([], Balance(1.0), 2, 2, passes=1)


def test_over_a_step_two_passes_of_one_domain_each_are_balanced() -> None:
    """Each pass uses one expert alone, the step both alike: a balance of passes complains, one of steps does not."""
    left, right = torch.tensor([[[9.0, 0.0]]]), torch.tensor([[[0.0, 9.0]]])
    real = torch.ones(1, 1, dtype=torch.bool)
    found: dict[str, list[float]] = {"pass": [], "step": []}
    for over in ("pass", "step"):
        heard: list[torch.Tensor] = []
        loss = BalanceLoss(heard, Balance(1.0, over), 2, 1, passes=2)
        for logits in (left, right) * 2:
            heard.append(logits)
            found[over].append(float(loss(real)))
            assert not heard
    assert found["pass"] == pytest.approx([1.0] * 4, abs=1e-3)
    assert found["step"] == pytest.approx([1.0, 0.5] * 2, abs=1e-3), "a step begins to count anew"


def mixed(base: Path, folder: Path, name: str) -> None:
    for domain, lessons in DOMAINS.items():
        expert(base, folder / domain, lessons)
    ingredients = Ingredients(tuple(folder / domain for domain in DOMAINS))
    mix(ingredients, DOMAINS, folder / name, Routing(), Source(str(base), dtype="float32"), learning=SHORT)


@pytest.mark.sample(0)
def test_balance_spreads_tokens(base: Path, tmp_path: Path) -> None:
    """On one domain alone everything goes to its expert, unless a balance is asked for."""
    loads = []
    for weight in (0.0, 3.0):
        mixture, tokenizer = mixture_of(base, tmp_path)
        learning = replace(SHORT, steps=20, lr=3e-2, accumulate=2)
        options = RouterOptions(balance=Balance(weight))
        sums = {"sums": DOMAINS["sums"]}
        train_router(mixture, tokenizer, sums, tmp_path / f"work{weight}", learning=learning, options=options)
        loads.append(measure_usage(mixture, tokenizer, sums).load[0][0])
    assert loads[0] > 0.8 and abs(loads[1] - 0.5) < 0.25


def test_joint_experts_learn_and_are_plain_experts_afterwards(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    from unmask.models.loading import load_base_language_model

    source = Source(str(base), dtype="float32")
    learning = replace(SHORT, steps=30, lr=5e-3)
    mix_jointly(DOMAINS, tmp_path / "joint", Routing(top_k=2), source, lora=LORA, learning=learning)
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
        mix_jointly(DOMAINS, tmp_path / "other", Routing(), source, options=RouterOptions(start="prototypes"))


def test_joint_experts_are_saved_as_strong_as_they_were_trained(base: Path, tmp_path: Path) -> None:
    source, routing = Source(str(base), dtype="float32"), Routing(top_k=2)
    mixture, tokenizer = fresh_mixture(source, ["a", "b"], routing, LORA, 0)
    for weight in mixture.expert_weights:
        torch.nn.init.normal_(weight, std=0.1)
    lessons = DOMAINS["sums"]
    trained = response_likelihood(mixture.model, tokenizer, lessons)
    write_experts(mixture, tmp_path / "experts", LORA)
    again, _ = build_mixture([tmp_path / "experts/a", tmp_path / "experts/b"], routing, source)
    assert np.allclose(response_likelihood(again.model, tokenizer, lessons), trained, atol=1e-5)
    assert LORA.alpha / LORA.r != 1, "or a scale that was forgotten would not show"


@pytest.mark.sample(1)
@pytest.mark.parametrize("rate", [None, 0.05])
def test_joint_training_that_was_killed_goes_on_as_if_it_had_not_been(rate: float | None, base: Path, tmp_path: Path) -> None:
    def run(name: str, *callbacks: Any, lr: float | None = rate) -> list[bytes]:
        given: dict[str, Any] = {"lora": LORA, "learning": SHORT, "options": RouterOptions(joint=True, lr=lr)}
        mix_jointly(DOMAINS, tmp_path / name, Routing(), Source(str(base), dtype="float32"), callbacks=callbacks, **given)
        return [(tmp_path / name / file).read_bytes() for file in ("experts/expert0/adapter_model.safetensors", ROUTERS)]

    whole = run("whole")
    killed(lambda: run("cut", At("training", 4, die)))
    with pytest.raises(UnmaskError, match=r"other settings: options\.lr was"):
        run("cut", lr=0.01)
    assert run("cut") == whole


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


def test_warmup_and_decay_scale_both_rates(base: Path, tmp_path: Path) -> None:
    rates: list[list[float]] = []

    class Rates(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
            rates.append([group["lr"] for group in optimizer.param_groups if group["params"]])

    mixture, tokenizer = fresh_mixture(Source(str(base), dtype="float32"), list(DOMAINS), Routing(), LORA, 0)
    learning, options = replace(SHORT, steps=4, lr=1e-3, warmup=2), RouterOptions(joint=True, lr=0.02)
    train_router(mixture, tokenizer, DOMAINS, tmp_path / "work", learning=learning, options=options, callbacks=[Rates()])
    assert rates == [pytest.approx([1e-3 * part, 0.02 * part]) for part in (0, 0.5, 1, 0.5)]


def test_a_router_with_the_rate_of_the_experts_learns_the_same_bits(base: Path, tmp_path: Path) -> None:
    """So a run of an older version, which had one rate for both, goes on with this rate."""
    plain, named = (learned_jointly(base, tmp_path / f"{lr}", Routing("layer"), SHORT, lr) for lr in (None, SHORT.lr))
    assert all(torch.equal(*pair) for pair in zip(plain, named, strict=True))
    source, folder = Source(str(base), dtype="float32"), tmp_path / "joint"
    mix_jointly(DOMAINS, folder, Routing(), source, lora=LORA, learning=SHORT, options=RouterOptions())
    options, again = RouterOptions(joint=True, lr=SHORT.lr), At("training", 1, pytest.fail)
    assert mix_jointly(DOMAINS, folder, Routing(), source, lora=LORA, learning=SHORT, options=options, callbacks=[again]).losses


def test_without_options_the_router_learns_as_alone(base: Path, tmp_path: Path) -> None:
    source, named = Source(str(base), dtype="float32"), RouterOptions(joint=True, lr=LEARNING.lr)
    mix_jointly(DOMAINS, tmp_path / "joint", Routing(), source, lora=LORA, learning=SHORT)
    again = At("training", 1, pytest.fail)
    assert mix_jointly(
        DOMAINS, tmp_path / "joint", Routing(), source, lora=LORA, learning=SHORT, options=named, callbacks=[again]
    ).losses


def test_experts_that_were_given_do_not_learn(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="use mix_jointly"):
        mix(Ingredients(()), DOMAINS, tmp_path / "mixed", Routing(), Source(str(base)), options=RouterOptions(joint=True))
    assert not list(tmp_path.glob("mixed*"))


@pytest.mark.parametrize("rate", [0, -0.01, math.nan, math.inf, 1e7])
def test_a_rate_that_cannot_train_a_router_is_refused(rate: float) -> None:
    told = re.escape(f"The learning rate of the router should be above 0 and at most 1000000, not {rate:g}.")
    with pytest.raises(UnmaskError, match=told):
        RouterOptions(joint=True, lr=rate)
    with pytest.raises(UnmaskError, match="only in joint training"):
        RouterOptions(lr=rate)


def test_the_command_gives_a_joint_router_the_rate_of_a_router_alone(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons = tmp_path / "lessons.jsonl"
    lessons.write_text('{"instruction": "Add one and one.", "output": "Two."}\n')
    seen: list[tuple[float, float | None]] = []

    def run(*_: Any, learning: Learning, options: RouterOptions, **__: Any) -> Mixed:
        seen.append((learning.lr, options.lr))
        return Mixed(tmp_path, ())

    monkeypatch.setattr(mixing, "mix_jointly", run)
    given = ["mix", "--joint", "--base", str(base), "-o", str(tmp_path / "joint")]
    for more in ([], ["--lr", "1e-3"]):
        found = CliRunner().invoke(app, [*given, "--lessons", f"a={lessons}", "--lessons", f"b={lessons}", *more])
        assert found.exit_code == 0, found.output
    assert seen == [(JOINT.lr, LEARNING.lr), (1e-3, LEARNING.lr)]


def test_experts_come_and_go_while_the_router_stays(base: Path, tmp_path: Path) -> None:
    mixed(base, tmp_path, "two")
    two, _ = load_mixture(tmp_path / "two", Source(""))
    expert(base, tmp_path / "plurals", PLURALS)
    source, still = Source(str(base), dtype="float32"), replace(SHORT, steps=0)
    grown = Ingredients((tmp_path / "plurals", tmp_path / "colours", tmp_path / "sums"), start_from=tmp_path / "two")
    everything = DOMAINS | {"plurals": PLURALS}
    assert mix(grown, everything, tmp_path / "three", Routing(), source, learning=still).losses == ()
    prototypes_of_new = RouterOptions(start="prototypes")
    mix(grown, everything, tmp_path / "known", Routing(), source, learning=still, options=prototypes_of_new)
    mixtures = [load_mixture(tmp_path / name, Source(""))[0] for name in ("three", "known")]
    before = two.routers["router"].weight
    for mixture in mixtures:
        assert torch.equal(mixture.routers["router"].weight[[2, 1]], before), "sums and colours, in their new order"
    assert not torch.equal(*(mixture.routers["router"].weight[0] for mixture in mixtures))
    shrunk = Ingredients((tmp_path / "colours",), start_from=tmp_path / "three")
    mix(shrunk, everything, tmp_path / "one", Routing(), source, learning=still)
    assert torch.equal(load_mixture(tmp_path / "one", Source(""))[0].routers["router"].weight, before[1:])
    for wrong, why in (
        (Ingredients((tmp_path / "plurals",), start_from=tmp_path / "two"), "none of the experts plurals"),
        (Ingredients((tmp_path / "sums",), start_from=tmp_path / "two"), "of the kind 'block', not 'final'"),
    ):
        with pytest.raises(UnmaskError, match=why):
            mix(wrong, everything, tmp_path / "wrong", Routing("final"), source, learning=still)
    settings = tmp_path / "two" / "mixture.json"
    settings.write_text(settings.read_text().replace("sums", "sumz"))
    with pytest.raises(UnmaskError, match=r"mixture.json' was changed or damaged"):
        mix(grown, everything, tmp_path / "wrong", Routing(), source, learning=still)


def test_lessons_that_belong_to_no_expert_are_told() -> None:
    with pytest.warns(UserWarning, match="No expert is called 'sumz': .* experts are sums, colours"):
        RouterOptions().check(Routing(), ["sums", "colours"], ["sums", "colours", "sumz"], replace(SHORT, batch=6))


def saved_mixture(base: Path, folder: Path, routing: Routing | None = None, **options: Any) -> Mixture:
    """A mixture of two experts with an untrained router, saved in a folder."""
    saved_experts(folder.parent / f"{folder.name} experts", language_model_of(base), ["a", "b"], **options)
    folders = [folder.parent / f"{folder.name} experts" / name for name in "ab"]
    mixture, _ = build_mixture(folders, routing or Routing(), Source(str(base), dtype="float32"))
    mixture.save_pretrained(folder)
    return mixture


def language_model_of(base: Path) -> Any:
    return load_base_language_model(Source(str(base), dtype="float32"))[0]


@pytest.mark.parametrize("changes", [{"tie_word_embeddings": True}, {"hidden_size": 32}], ids=str)
def test_a_router_of_another_base_model_is_not_taken_over(
    changes: dict[str, Any], base: Path, tokenizer: Any, tmp_path: Path
) -> None:
    language_model(vocab_size=512, max_position_embeddings=512, **changes).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    saved_mixture(tmp_path / "other", tmp_path / "theirs")
    ours = saved_mixture(base, tmp_path / "ours")
    before = ours.routers["router"].weight.detach().clone()
    with pytest.raises(UnmaskError, match=r"theirs' is a mixture of another base model: '.*other', not '.*base'"):
        copy_router_rows(ours, tmp_path / "theirs")
    settings = json.loads((tmp_path / "theirs" / "mixture.json").read_text()) | {"base_weights": None}
    (tmp_path / "theirs" / "mixture.json").write_text(json.dumps(settings))
    (tmp_path / "theirs" / SEAL).unlink(missing_ok=True)
    seal(tmp_path / "theirs")
    if "hidden_size" in changes:  # without a record of the weights, the size alone tells
        with pytest.raises(
            UnmaskError, match=r"The router of '.*theirs' reads states of 32 dimensions, and this base model has 64"
        ):
            copy_router_rows(ours, tmp_path / "theirs")
        assert torch.equal(ours.routers["router"].weight, before)
    else:
        assert copy_router_rows(ours, tmp_path / "theirs") == ("a", "b")


def test_routers_at_other_blocks_are_not_taken_over(base: Path, tmp_path: Path) -> None:
    ours = saved_mixture(base, tmp_path / "ours", Routing("layer"))
    saved_mixture(base, tmp_path / "spans", Routing("layer", span=2, from_layer=1))
    saved_mixture(base, tmp_path / "values", Routing("layer"), targets=["v_proj"])
    with pytest.raises(
        UnmaskError,
        match=r"spans' has routers of the kind 'layer' with span=2, from_layer=1, not 'layer' with span=0, from_layer=0",
    ):
        copy_router_rows(ours, tmp_path / "spans")
    with pytest.raises(UnmaskError, match=r"values' has no router at model.layers.0.mlp: its experts change other maps"):
        copy_router_rows(ours, tmp_path / "values")


def test_an_expert_that_another_program_saved_as_bin_is_mixed(base: Path, tmp_path: Path) -> None:
    mixed(base, tmp_path, "two")
    from safetensors.torch import load_file

    for name in DOMAINS:
        weights = tmp_path / name / "adapter_model.safetensors"
        factors = load_file(weights)
        shutil.copytree(tmp_path / name, tmp_path / "bin" / name)
        for file in (SEAL, "adapter_model.safetensors"):
            (tmp_path / "bin" / name / file).unlink(missing_ok=True)
        torch.save(factors, tmp_path / "bin" / name / "adapter_model.bin")
    ingredients = Ingredients(tuple(tmp_path / "bin" / name for name in DOMAINS))
    mix(ingredients, DOMAINS, tmp_path / "of bin", Routing(), Source(str(base), dtype="float32"), learning=SHORT)
    one, other = (load_mixture(tmp_path / name, Source(""))[0].routers["router"].weight for name in ("two", "of bin"))
    assert torch.equal(one, other)


def test_a_router_that_is_not_trained_needs_no_gradient(base: Path, tmp_path: Path) -> None:
    options, still = RouterOptions(train_top_k=1, start="prototypes"), replace(SHORT, steps=0)
    mixture, tokenizer = mixture_of(base, tmp_path, Routing(renormalise=True))
    assert train_router(mixture, tokenizer, DOMAINS, tmp_path / "work", learning=still, options=options) == ()
    before = mixture.routers["router"].weight.detach().clone()
    with pytest.raises(UnmaskError, match="no gradient"):
        train_router(mixture, tokenizer, DOMAINS, tmp_path / "work", learning=SHORT, options=options)
    assert torch.equal(mixture.routers["router"].weight, before)
