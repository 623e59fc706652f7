"""Experts and routers learn what they shall and change nothing else; a run that was killed goes on as if it had not been."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.moe.experts.conftest import DOMAINS, SUMS
from tests.training.running import At, die, killed
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.experts.expert import train_expert
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.likelihood import response_likelihood
from unmask.moe.experts.router import train_router
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture, build_mixture
from unmask.training.lora import LoraOptions

SHORT = Learning(steps=6, lr=5e-3, batch=4, save_every=2)
LORA = LoraOptions(r=4, alpha=8)


def expert(base: Path, folder: Path, lessons: Any = SUMS, *callbacks: Any, **changes: Any) -> Any:
    learning = replace(SHORT, **changes)
    return train_expert(Source(str(base), dtype="float32"), lessons, folder, lora=LORA, learning=learning, callbacks=callbacks)


@cache
def kept() -> TemporaryDirectory[str]:
    """Where the experts of mixtures lie for all tests of a process, until it ends."""
    return TemporaryDirectory()


def mixture_of(base: Path, folder: Path, routing: Routing | None = None) -> tuple[Mixture, Any]:
    """A new mixture of two experts. They are trained once; whoever asks again takes a copy over, which is refused on another base."""
    for name, lessons in DOMAINS.items():
        trained = Path(kept().name) / name
        if trained.is_dir() and not (folder / name).exists():
            shutil.copytree(trained, folder / name)
        expert(base, folder / name, lessons)
        if not trained.is_dir():
            shutil.copytree(folder / name, trained)
    source = Source(str(base), dtype="float32")
    return build_mixture([folder / name for name in DOMAINS], routing or Routing(), source)


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


def test_a_killed_expert_goes_on_as_if_it_had_not_been(base: Path, tmp_path: Path) -> None:
    expert(base, tmp_path / "whole")
    killed(lambda: expert(base, tmp_path / "cut", SUMS, At("training", 4, die)))
    expert(base, tmp_path / "cut")
    one, other = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one | other)
    assert not [file for file in tmp_path.glob(".*") if file.suffix != ".lock"]


@pytest.mark.parametrize("router", ["block", "layer", "final"])
def test_only_the_router_learns(router: Any, base: Path, tmp_path: Path) -> None:
    mixture, tokenizer = mixture_of(base, tmp_path, Routing(router))
    before = {name: weight.detach().clone() for name, weight in mixture.model.named_parameters()}
    losses = train_router(mixture, tokenizer, DOMAINS, tmp_path / "work", learning=replace(SHORT, steps=12, lr=3e-2))
    changed = {name for name, weight in mixture.model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed and all(name.endswith("routing_point.router.weight") for name in changed)
    assert losses[-1] < losses[0]
    assert mixture.routing == Routing(router), "training with all experts leaves the routing as it was"
    assert not any(weight.requires_grad for weight in mixture.model.parameters())


def test_a_killed_router_goes_on_as_if_it_had_not_been(base: Path, tmp_path: Path) -> None:
    def trained(folder: str, *callbacks: Any) -> torch.Tensor:
        mixture, tokenizer = mixture_of(base, tmp_path)
        train_router(mixture, tokenizer, DOMAINS, tmp_path / folder, learning=SHORT, callbacks=callbacks)
        return mixture.routers["router"].weight.detach()

    whole = trained("whole")
    killed(lambda: trained("cut", At("cut", 4, die)))
    assert torch.equal(trained("cut"), whole)


def test_a_mixture_from_the_command_line(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts, then a mixture, then its vectors; the second time everything is taken over."""
    from typer.testing import CliRunner

    from unmask.cli import app
    from unmask.embedder import Embedder

    monkeypatch.chdir(tmp_path)
    for name, lessons in DOMAINS.items():
        rows = [{"instruction": one.instruction, "input": one.input, "output": one.output} for one in lessons]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = ["--steps", "3", "--batch", "4", "--dtype", "float32"]
    mixing = ["mix", "experts/sums", "experts/colours", "--lessons", "sums=sums.jsonl", "--lessons", "colours=colours.jsonl"]
    for _ in range(2):
        for name in DOMAINS:
            given = ["expert", f"{name}.jsonl", "-m", str(base), "-o", f"experts/{name}", "--r", "2", *small]
            assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 0
        assert CliRunner().invoke(app, [*mixing, "-o", "mixture", *small], catch_exceptions=False).exit_code == 0
        times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/**/*.safetensors")}
    assert len(times) == 6 and times == {file: file.stat().st_mtime_ns for file in times}
    merging = ["merge", "experts/sums", "experts/colours", "-o", "merged", "--method", "ties", "--density", "0.5"]
    assert CliRunner().invoke(app, merging, catch_exceptions=False).exit_code == 0
    assert Embedder.from_pretrained("merged", design="mean").encode(["x"]).shape == (1, 64)
    with pytest.raises(UnmaskError, match="'merged' exists"):
        CliRunner().invoke(app, merging, catch_exceptions=False)
    assert Embedder.from_pretrained("mixture", design="causal/plain/mean/routing").encode(["x", "y z"]).shape == (2, 12)
    with pytest.raises(UnmaskError, match=r"routing\.top_k was 1 and is 2 now"):
        CliRunner().invoke(app, [*mixing, "-o", "mixture", "--top-k", "2", *small], catch_exceptions=False)
