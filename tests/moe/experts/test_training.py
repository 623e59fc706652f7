"""Experts and routers learn what they should and change nothing else; a killed run continues as if it had not been stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.moe.experts.conftest import DOMAINS, SUMS
from tests.moe.mixture.models import language_model
from tests.training.running import At, die, killed
from unmask.errors import UnmaskError
from unmask.io.seals import Damaged
from unmask.models.identity import recorded_base
from unmask.models.loading import Source, load_base_language_model, load_language_model
from unmask.moe.experts.expert import RECORD, train_expert
from unmask.moe.experts.lesson_training import Learning, LessonCollator, response_loss
from unmask.moe.experts.lessons.lessons import LessonTokens
from unmask.moe.experts.likelihood import response_likelihood
from unmask.moe.experts.mixing import Ingredients, train_mixture
from unmask.moe.experts.router import train_router
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture, build_mixture, load_mixture
from unmask.training.lora import LoraOptions

SHORT = Learning(steps=6, lr=5e-3, batch=4, save_every=2)
LORA = LoraOptions(r=4, alpha=8)


def expert(base: Path, folder: Path, lessons: Any = SUMS, *callbacks: Any, **changes: Any) -> Any:
    learning = replace(SHORT, **changes)
    return train_expert(Source(str(base), dtype="float32"), lessons, folder, lora=LORA, learning=learning, callbacks=callbacks)


@cache
def _trained() -> TemporaryDirectory[str]:
    """The experts of mixtures of all tests of a process."""
    return TemporaryDirectory()


def mixture_of(base: Path, folder: Path, routing: Routing | None = None) -> tuple[Mixture, Any]:
    """A new mixture of two experts. They are trained once; later tests take a copy over, which is refused on another base."""
    for name, lessons in DOMAINS.items():
        copy = Path(_trained().name) / name
        if copy.is_dir() and not (folder / name).exists():
            shutil.copytree(copy, folder / name)
        expert(base, folder / name, lessons)
        if not copy.is_dir():
            shutil.copytree(folder / name, copy)
    folders = [folder / name for name in DOMAINS]
    return build_mixture(folders, routing or Routing(), Source(str(base), dtype="float32"))


@pytest.fixture
def experts(base: Path, tmp_path: Path) -> list[Path]:
    """Two experts that name this base."""
    return [expert(base, tmp_path / name, lessons, steps=2).folder for name, lessons in DOMAINS.items()]


def mixed(folder: Path, experts: list[Path], lessons: Any = DOMAINS) -> Any:
    source = Source("", dtype="float32")
    return train_mixture(Ingredients(tuple(experts)), lessons, folder, Routing(), source, learning=replace(SHORT, steps=2))


@pytest.mark.parametrize("average", ["example", "token"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "olmoe"])
def test_the_loss_of_a_step_does_not_depend_on_how_its_lessons_are_computed(family: str, average: Any) -> None:
    lengths = (90, 9, 88, 7, 30, 300)
    lessons = [
        LessonTokens(tuple(1 + (7 * index + row) % 500 for index in range(length)), length // 2, "")
        for row, length in enumerate(lengths)
    ]
    model = language_model(family, vocab_size=512, max_position_embeddings=512)
    learning = Learning(steps=1, lr=1e-3, batch=len(lessons), average=average)
    items = None if average == "example" else sum(length - length // 2 for length in lengths)
    tokens: list[int] = []
    model.register_forward_pre_hook(lambda _, __, given: tokens.append(given["input_ids"].numel()), with_kwargs=True)

    def computed(part: list[LessonTokens]) -> tuple[float, Any]:
        inputs = LessonCollator(0)(part)
        del inputs["rows"]
        model.zero_grad()
        loss = response_loss(learning, nullcontext)(model, inputs, items)
        loss.backward()
        return float(loss.detach()), model.get_input_embeddings().weight.grad.clone()

    loss, gradient = computed(lessons)
    assert sum(tokens) < 1.2 * sum(lengths) < 0.5 * max(lengths) * len(lengths), "padding is not computed"
    alone = [computed([lesson]) for lesson in lessons]
    assert loss == pytest.approx(sum(one for one, _ in alone), rel=1e-5)
    assert torch.allclose(gradient, sum(of_one for _, of_one in alone), atol=1e-6)


def test_an_expert_learns_its_domain_and_plain_peft_loads_it(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    trained = expert(base, tmp_path / "expert", steps=30)
    assert trained.losses[-1] < 0.7 * trained.losses[0]
    model, tokenizer = load_base_language_model(Source(str(base), dtype="float32"))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    untrained = response_likelihood(model, tokenizer, SUMS).mean()
    adapted = PeftModel.from_pretrained(model, tmp_path / "expert")
    assert response_likelihood(adapted, tokenizer, SUMS).mean() < 0.7 * untrained
    assert all(torch.equal(weight, before[name]) for name, weight in adapted.unload().named_parameters())


def test_a_killed_expert_continues_and_a_damaged_one_is_trained_again(base: Path, tmp_path: Path) -> None:
    expert(base, tmp_path / "whole")
    killed(lambda: expert(base, tmp_path / "cut", SUMS, At("training", 4, die)))
    expert(base, tmp_path / "cut")
    weights = tmp_path / "cut" / "adapter_model.safetensors"
    one, other = load_file(tmp_path / "whole" / weights.name), load_file(weights)
    assert all(torch.equal(one[name], other[name]) for name in one | other)
    assert not [file for file in tmp_path.glob(".*") if file.suffix != ".lock"]
    before = weights.read_bytes()
    for damaged in (before[: len(before) // 2], before[:-9] + b"\0" * 9):
        weights.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"The result is made again: .*adapter_model"):
            expert(base, tmp_path / "cut")
        assert weights.read_bytes() == before
    (tmp_path / "cut" / RECORD).write_text("{")
    with pytest.warns(UserWarning), pytest.raises(UnmaskError, match="is damaged, so the settings of"):
        expert(base, tmp_path / "cut")


@pytest.mark.parametrize("router", ["block", "layer", "final"])
def test_only_the_router_learns_and_a_killed_one_continues(router: Any, base: Path, tmp_path: Path) -> None:
    def trained(folder: str, *callbacks: Any) -> tuple[Mixture, set[str]]:
        mixture, tokenizer = mixture_of(base, tmp_path, Routing(router))
        before = {name: weight.detach().clone() for name, weight in mixture.model.named_parameters()}
        learning = replace(SHORT, lr=3e-2)
        losses = train_router(mixture, tokenizer, DOMAINS, tmp_path / folder, learning=learning, callbacks=callbacks)
        assert losses[-1] < losses[0]
        return mixture, {name for name, weight in mixture.model.named_parameters() if not torch.equal(weight, before[name])}

    mixture, changed = trained("whole")
    assert changed and all(name.endswith("routing_point.router.weight") for name in changed)
    assert mixture.routing == Routing(router), "training with all experts leaves the routing as it was"
    assert not any(weight.requires_grad for weight in mixture.model.parameters())
    killed(lambda: trained("cut", At("cut", 4, die)))
    again, _ = trained("cut")
    assert all(map(torch.equal, again.router_weights, mixture.router_weights))


def test_a_mixture_from_the_command_line(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts, then a mixture, then its vectors; the second time everything is reused."""
    from typer.testing import CliRunner

    from unmask.cli import app
    from unmask.embedder import Embedder

    def run(*arguments: str) -> None:
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0

    monkeypatch.chdir(tmp_path)
    for name, lessons in DOMAINS.items():
        rows = [{"instruction": one.instruction, "input": one.input, "output": one.output} for one in lessons]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = ("--steps", "3", "--batch", "4", "--dtype", "float32")
    mixing = ("mix", "experts/sums", "experts/colours", "--lessons", "sums=sums.jsonl", "--lessons", "colours=colours.jsonl")
    for _ in range(2):
        for name in DOMAINS:
            run("expert", f"{name}.jsonl", "-m", str(base), "-o", f"experts/{name}", "--r", "2", *small)
        run(*mixing, "-o", "mixture", *small)
        times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/**/*.safetensors")}
    assert len(times) == 6 and times == {file: file.stat().st_mtime_ns for file in times}
    merging = ("merge", "experts/sums", "experts/colours", "-o", "merged", "--method", "ties", "--density", "0.5")
    run(*merging)
    assert Embedder.from_pretrained("merged", design="mean").encode(["x"]).shape == (1, 64)
    assert Embedder.from_pretrained("mixture", design="causal/plain/mean/routing").encode(["x", "y z"]).shape == (2, 12)
    for command, why in (
        (merging, "'merged' exists"),
        ((*mixing, "-o", "mixture", "--top-k", "2", *small), r"routing\.top_k was 1"),
    ):
        with pytest.raises(UnmaskError, match=why):
            run(*command)


def test_a_base_that_was_retrained_is_noticed_by_all_who_use_its_experts(
    base: Path, experts: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "mixture"
    mixed(folder, experts)
    record = json.loads((folder / "mixture.json").read_text())
    assert (record["base"], record["base_weights"]) == (str(base), recorded_base(experts[0]))
    assert mixed(folder, experts).losses, "reused"
    for order, lessons in ((experts[::-1], DOMAINS), (experts, dict(reversed(DOMAINS.items())))):
        with pytest.raises(UnmaskError, match="holds a run with other settings: order was"):
            mixed(folder, order, lessons)
    weights = load_file(base / "model.safetensors")
    save_file({name: weight + 0.05 for name, weight in weights.items()}, base / "model.safetensors", {"format": "pt"})
    uses: list[Callable[[], Any]] = [
        lambda: mixed(folder, experts),
        lambda: build_mixture([experts[0]], Routing(), Source(str(base))),
        lambda: load_mixture(folder, Source(str(folder))),
        lambda: load_language_model(Source(str(experts[0]))),
    ]
    for use in uses:
        with pytest.raises(UnmaskError, match="has changed since"):
            use()
    for adapter in (folder, experts[0]):  # a base that is named is meant
        assert load_language_model(Source(str(base), adapters=(str(adapter),), dtype="float32"))


def test_a_damaged_mixture_is_not_loaded(experts: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "mixture"
    mixed(folder, experts)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {"mixture.json", "router.safetensors", "adapter_model.safetensors"} <= {file.name for file in files}
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        for damaged in (content[:middle], content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]):
            file.write_bytes(damaged)
            with pytest.raises(Damaged, match=file.name):
                load_mixture(folder, Source(""))
        file.write_bytes(content)
