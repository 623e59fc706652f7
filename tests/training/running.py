"""Runs of pico models: small recipes, what they left, and runs that are killed or shared by processes."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from unmask.embedder import Embedder
from unmask.starter import starter_folders
from unmask.training.recipe import Recipe
from unmask.training.records import TrainingJob
from unmask.training.train import Listener, Score, train

STEPS = 6
STAGES: dict[str, dict[str, Any]] = {
    "mntp": {"data": ["text"], "batch": 4, "max_length": 16},
    "simcse": {"data": ["text"], "batch": 4, "max_length": 16},
    "contrastive": {"data": ["pairs"], "batch": 4, "max_length": 16},
    "distill": {"data": ["pairs", "text"], "batch": 4, "max_length": 16},
}
GRADED = next(folder for folder in starter_folders() if folder.name == "sts") / "test.jsonl"
TEACHER = "TEACHER"
"""Stands for the fixture in settings of a stage."""
TEXTS = ["A man plays a guitar.", "The stock market fell.", "x"]
ROOT = Path(__file__).parent


def recipe(model: Path, *stages: str, **settings: Any) -> Recipe:
    """A recipe of few steps; `mntp={...}` changes a stage, anything else a key of the recipe."""
    common = {"steps": STEPS, "lr": 1e-3, "save_every": 2}
    tables = {name: common | STAGES[name] | settings.pop(name, {}) for name in stages}
    given = {
        "name": "pico",
        "about": "A pico model is trained.",
        "model": str(model),
        "designs": ["bidirectional/plain/mean"],
        "dtype": "float32",
        "stages": stages,
        "lora": {"r": 4, "alpha": 16},
        "data": {
            "text": {"path": "starter:reference"},
            "pairs": {"path": "starter:pairs"},
            "labels": {"path": "starter:labels"},
            "graded": {"path": str(GRADED), "columns": {"score": "score"}},
        },
    }
    return Recipe.model_validate(given | tables | settings)


def with_teacher(settings: dict[str, Any], teacher: Path) -> dict[str, Any]:
    """Settings with this path in place of TEACHER."""
    return {key: str(teacher) if value == TEACHER else value for key, value in settings.items()}


def run(made: Recipe, folder: Path, score: Score | None = None, *callbacks: Any) -> TrainingJob:
    """Train a recipe of one design and one seed."""
    (done,) = train(made, folder, ROOT, score, Listener(callbacks=callbacks))
    return done


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a result."""
    found = {
        f"{file.name}:{name}": weight
        for file in sorted(folder.glob("model/*.safetensors"))
        for name, weight in load_file(file).items()
    }
    assert found, f"{folder} has no weights to compare"
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two results are equal, bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def losses(folder: Path, stage: str) -> list[float]:
    """The loss of each step."""
    import json

    log = json.loads((folder / "stages" / stage / "log.json").read_text())
    found = [entry["loss"] for entry in log if "loss" in entry]
    assert found, f"{folder} has no losses to compare"
    return found


def encode(folder: Path) -> Any:
    return Embedder.from_pretrained(folder / "model", device="cpu").encode(TEXTS)


class At(TrainerCallback):  # type: ignore[misc]
    """Does something when a step of a stage begins (counted from one)."""

    def __init__(self, stage: str, step: int, act: Callable[[], None]) -> None:
        self.stage, self.step, self.act = stage, step, act

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir)
        if self.stage in (folder.name, folder.parent.name) and state.global_step + 1 == self.step:
            self.act()


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def forked(work: Callable[[], object], **environment: str) -> int:
    """Start a copy of this process that does some work; its number."""
    sys.stdout.flush()
    number = os.fork()
    if number == 0:
        code = 1
        try:
            gc.freeze()  # else the first collection copies all memory of the parent
            os.environ.update(environment)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return number


def ended(number: int) -> int:
    """How a process ended: its exit code, or minus the signal that killed it. One that does not end is killed with the test."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    except BaseException:  # the test took too long
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        raise


def killed(work: Callable[[], object]) -> None:
    """Do work in a process that has to be killed by it."""
    assert ended(forked(work)) == -signal.SIGKILL


def killed_at_random(work: Callable[[], object], folder: Path, kills: int, seconds: float) -> None:
    """Kill work into a folder so often, at random moments. It goes on after each kill. seconds: that the whole work takes.

    A process may end before it is killed. Then all begins again in an empty folder.
    """
    chance, hits = Random(0), 0
    for _ in range(30 * kills):
        if _killed_after(work, chance.random() * seconds / (1 + hits)):
            hits += 1
            if hits == kills:
                return
        else:
            hits = 0
            shutil.rmtree(folder)
    raise AssertionError(f"no {kills} processes were killed one after the other before they ended")


def _killed_after(work: Callable[[], object], seconds: float) -> bool:
    """Do work in a process that is killed after so long, wherever it is. False if it had ended before."""
    number = forked(work)
    time.sleep(seconds)
    os.kill(number, signal.SIGKILL)
    status = ended(number)
    assert status in (0, -signal.SIGKILL)
    return status != 0


def together(work: Callable[[], object], processes: int = 2) -> None:
    """Do work in several processes that know of each other, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    def alone() -> None:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # of runs of the parent
        work()

    numbers = [forked(alone, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(processes)]
    assert [ended(number) for number in numbers] == [0] * processes
