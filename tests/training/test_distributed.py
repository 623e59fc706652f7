"""Two processes that share a batch learn what one learns from the whole of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.abuse.forking import command
from tests.abuse.forking import run as start_copy
from tests.messages import heard
from tests.training.running import TEACHER, At, die, losses, recipe, run, same, together, weights, with_teacher
from unmask.errors import UnmaskError
from unmask.training import processes
from unmask.training.loop import last_checkpoint, trainer_arguments
from unmask.training.stages.language import MntpOptions

LARGE = {"batch": 8, "save_every": 3}


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=2e-5) for name in one)


SHARED: list[tuple[str, dict[str, Any]]] = [
    ("mntp", {"accumulate": 2}),
    ("contrastive", {"data": ["labels", "graded"], "cache_tokens": 16, "guide": TEACHER, "teacher": TEACHER, "average": 2}),
    ("distill", {"cache_tokens": 60, "teacher": TEACHER}),
]
"""Each objective in a step of several parts: a gradient that is averaged once too often shows there."""


@pytest.mark.sample(2)
@pytest.mark.parametrize(("stage", "settings"), SHARED, ids=str)
def test_two_processes_are_one_with_the_whole_batch(
    stage: str, settings: dict[str, Any], model: Path, teacher: Path, tmp_path: Path
) -> None:
    made = recipe(model, stage, **{stage: LARGE | with_teacher(settings, teacher)})
    run(made, tmp_path / "one")
    together(lambda: run(made, tmp_path / "two"))
    assert losses(tmp_path / "two", f"1-{stage}") == pytest.approx(losses(tmp_path / "one", f"1-{stage}"), rel=1e-4)
    assert close(weights(tmp_path / "two"), weights(tmp_path / "one"))
    rates = losses(tmp_path / "one", f"1-{stage}")
    assert rates[-1] != pytest.approx(rates[0], rel=1e-3), "it learned something"


def test_both_processes_hold_the_same_weights_and_drop_differently(model: Path, tmp_path: Path) -> None:
    made = recipe(model, "simcse", simcse=LARGE)

    def work() -> None:
        drawn: list[torch.Tensor] = []
        trained: list[torch.Tensor] = []

        class Look(At):
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                drawn.append(torch.get_rng_state())

            def on_train_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
                trained.extend(one.detach().clone() for one in options["model"].parameters() if one.requires_grad)

        run(made, tmp_path / "two", None, Look("1-simcse", 1, lambda: None))
        torch.save({"drawn": drawn[0], "trained": trained}, tmp_path / f"{os.environ['RANK']}.pt")

    together(work)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert one["trained"] and all(map(torch.equal, one["trained"], other["trained"]))
    assert not torch.equal(one["drawn"], other["drawn"])


def test_the_scores_of_the_first_process_choose_the_checkpoint(model: Path, tmp_path: Path) -> None:
    made = recipe(model, "contrastive", contrastive=LARGE | {"evaluate_every": 2})

    def work() -> None:
        first = processes.is_first()
        scores = iter([0.1, 0.9, 0.2, 0.9] if first else [0.9, 0.1, 0.2, 0.1])
        run(made, tmp_path / "two", lambda _: {"score": next(scores)})

    together(work)
    scores = iter([0.1, 0.9, 0.2, 0.9])
    run(made, tmp_path / "one", lambda _: {"score": next(scores)})
    assert close(weights(tmp_path / "two"), weights(tmp_path / "one"))


def test_a_run_of_two_goes_on_where_it_was_killed(model: Path, tmp_path: Path) -> None:
    made = recipe(model, "simcse", simcse={"batch": 8})
    together(lambda: run(made, tmp_path / "whole"))
    with pytest.raises(AssertionError):
        together(lambda: run(made, tmp_path / "cut", None, At("1-simcse", 4, die)))
    last = last_checkpoint(tmp_path / "cut" / "stages" / "1-simcse")
    assert last is not None and last.name == "checkpoint-2", "it ended by another fault, before it was killed"

    def go_on() -> None:
        with heard() as said:
            run(made, tmp_path / "cut")
        assert "  simcse: resumed from checkpoint-2" in said or not processes.is_first()

    together(go_on)
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_gradients_are_averaged_and_missing_ones_count_as_zero(tmp_path: Path) -> None:
    def work() -> None:
        rank = int(os.environ["RANK"])
        processes.connect()
        both, second, none, frozen = (torch.nn.Parameter(torch.zeros(3)) for _ in range(4))
        frozen.requires_grad_(False)
        other = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        both.grad = torch.full((3,), float(rank))
        other.grad = torch.full((2,), 4.0 * rank, dtype=torch.float64)
        if rank:
            second.grad = torch.tensor([2.0, 4.0, 6.0])
        processes.average_gradients([both, other, second, none, frozen])
        assert both.grad.tolist() == [0.5, 0.5, 0.5] and other.grad.tolist() == [2.0, 2.0]
        assert second.grad is not None and second.grad.tolist() == [1.0, 2.0, 3.0]
        assert none.grad is None and frozen.grad is None

    together(work)


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = MntpOptions(data=("text",), steps=1, batch=6, accumulate=2, lr=1e-3)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UnmaskError, match="A batch of 6 cannot be shared by 4 processes in 2 parts: choose a multiple of 8"):
        trainer_arguments(stage, tmp_path, 0, True, False)


def by_its_agent(words: list[str], folder: Path) -> str:
    """Run the command by the agent of torchrun, which starts copies of this process: new ones would import for ten seconds."""

    def alone() -> None:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # of runs of the parent
        command(*words)()

    def work() -> None:
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="unmask", start_method="fork", max_restarts=0
        )
        elastic_launch(config, alone)()

    (folder / "here").mkdir()
    done = start_copy(work, folder / "here", folder / "notes")
    assert done.code == 0, done.err
    return done.err


def test_the_command_runs_under_torchrun(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "pico.toml"
    stage = 'data = ["pairs"]\nsteps = 2\nbatch = 4\nlr = 1e-3\nmax_length = 16'
    file.write_text(
        f'about = "Pico."\nmodel = "{model}"\ndesigns = ["causal/plain/mean"]\nstages = ["contrastive"]\ndtype = "float32"\n'
        f'[lora]\nr = 4\n[data.pairs]\npath = "starter:pairs"\n[contrastive]\n{stage}\n'
    )
    words = ["train", str(file), "-o", str(tmp_path / "run")]
    said = by_its_agent(words, tmp_path)
    assert said.count("trained embedder in") == 1
    assert said.count("step 2/2") == 1
    assert (tmp_path / "run" / "model" / "README.md").is_file()
    events = list((tmp_path / "run" / "stages" / "1-contrastive" / "tensorboard").iterdir())
    assert len(events) == 1
