"""Weights that are split over two processes train as whole ones do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.proofs import ALL
from tests.training.running import At, die, losses, recipe, run, together, weights
from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.training import processes
from unmask.training.sharding import agreed_chunks
from unmask.training.trainee import require_shardable

LARGE = {"batch": 8, "steps": 3}


class Shares(At):
    """Checks that this process holds about half of every weight that trains."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        training = [one for one in options["model"].parameters() if one.requires_grad]
        assert training and all(isinstance(one, DTensor) for one in training)
        local = sum(one.to_local().numel() for one in training if isinstance(one, DTensor))
        assert 0.3 < local / sum(one.numel() for one in training) < 0.7


def norms(folder: Path, stage: str) -> list[float]:
    """The norm of all gradients in each step, before it is limited."""
    log = json.loads((folder / "stages" / f"1-{stage}" / "log.json").read_text())
    return [entry["grad_norm"] for entry in log if "grad_norm" in entry]


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "contrastive": ("contrastive", {}),
    "cached": ("contrastive", {"max_length": 64, "cache_tokens": 60}),  # 7 chunks and 6 in the first step
    "one-cached": ("contrastive", {"max_length": 64, "cache_tokens": 340}),  # only one process would take GradCache
    "mntp": ("mntp", {}),
    "distill": ("distill", {"max_length": 64, "cache_tokens": 60}),
}
TRAINED = [
    (name, train) for place, name in enumerate(CASES) for train in (("lora", "full") if ALL else (("full", "lora")[place % 2],))
]
"""Which weights are in shards does not depend on what is learned from them, so they take turns."""


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "train"), TRAINED)
def test_shards_learn_what_the_whole_learns(name: str, train: str, model: Path, teacher: Path, tmp_path: Path) -> None:
    stage, settings = CASES[name]
    needed = {"teacher": str(teacher)} if stage == "distill" else {}
    given = {stage: LARGE | settings | needed}
    run(recipe(model, stage, train=train, **given), tmp_path / "one")
    made = recipe(model, stage, train=train, shard=True, **given)
    together(lambda: run(made, tmp_path / "two", None, Shares(stage, 0, lambda: None)))
    assert losses(tmp_path / "two", f"1-{stage}") == pytest.approx(losses(tmp_path / "one", f"1-{stage}"), rel=1e-4)
    assert norms(tmp_path / "two", stage) == pytest.approx(norms(tmp_path / "one", stage), rel=1e-3)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)


@pytest.mark.sample(0)
def test_a_run_in_shards_goes_on_behind_its_last_stage(model: Path, tmp_path: Path) -> None:
    given = {"mntp": LARGE, "contrastive": LARGE}
    run(recipe(model, "mntp", "contrastive", **given), tmp_path / "one")
    made = recipe(model, "mntp", "contrastive", shard=True, **given)
    with pytest.raises(AssertionError):
        together(lambda: run(made, tmp_path / "two", None, At("2-contrastive", 2, die)))
    assert (tmp_path / "two" / "stages" / "1-mntp" / "done.safetensors").is_file()
    together(lambda: run(made, tmp_path / "two"))
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)


def test_what_cannot_be_done_in_shards_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(model, "mntp", shard=True)
    with pytest.raises(UnmaskError, match="there is only one: start torchrun"):
        run(made, tmp_path / "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    require_shardable(made, Design.parse("causal/plain/mean"))
    for design, refused, why in [
        ("bidirectional/plain/layer-attention", made, "the head of"),
        ("causal/plain/mean@1", made, "before its last layer"),
        ("causal/plain/mean", recipe(model, "simcse", shard=True), "stage 'simcse'"),
        ("causal/plain/mean", recipe(model, "mntp", mntp={"mask": "new"}, shard=True), "enlarges the embeddings"),
        ("causal/plain/mean", recipe(model, "mntp", mntp={"evaluate_every": 2}, shard=True), "evaluate_every"),
        ("causal/plain/mean", recipe(model, "mntp", mntp={"checkpointing": True}, shard=True), "checkpointing"),
    ]:
        with pytest.raises(UnmaskError, match=why):
            require_shardable(refused, Design.parse(design))


def test_chunks_are_halved_until_all_have_as_many(tmp_path: Path) -> None:
    def work() -> None:
        processes.meet()
        first = processes.is_first()
        sizes = [5, 1] if first else [2, 2, 1, 1]
        ids = torch.arange(6).split(sizes)
        found, cached = agreed_chunks([{"input_ids": one.unsqueeze(1)} for one in ids], not first)
        assert cached and len(found) == 4
        assert torch.cat([one["input_ids"] for one in found]).flatten().tolist() == [0, 1, 2, 3, 4, 5]

    together(work)
