"""What a run left is damaged, cut or lost: it is noticed, told, and made again to the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.messages import heard
from tests.training.running import At, die, killed, recipe, run, same, weights
from unmask.io.seals import seal
from unmask.runs.runs import RECORD
from unmask.training.loop import COMPLETE, WEIGHTS, checkpoints, find_resumable_checkpoint
from unmask.training.train import WEIGHTS_OF_STAGE


def flip(file: Path) -> None:
    """One bit, in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    """The second half is gone."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.fixture(scope="module")
def stopped(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its second stage, with checkpoints 2 and 4."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    killed(lambda: run(made(model), folder, None, At("2-simcse", 5, die)))
    return folder


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(made(model), folder)
    return folder


def made(model: Path) -> Any:
    return recipe(model, "mntp", "simcse")


LAST, FIRST = "stages/2-simcse/checkpoint-4", "stages/2-simcse/checkpoint-2"


DAMAGED = [
    ([f"{LAST}/{WEIGHTS}"], "A checkpoint cannot be used", "resumed from checkpoint-2"),
    ([f"{LAST}/optimizer.pt"], "A checkpoint cannot be used", "resumed from checkpoint-2"),
    ([f"{LAST}/trainer_state.json", f"{FIRST}/{WEIGHTS}"], "A checkpoint cannot be used", "not resumed"),
    ([f"stages/1-mntp/{WEIGHTS_OF_STAGE}"], "so the step 'stages/1-mntp' is repeated", "not mntp: done before"),
    (["stages/1-mntp/step.json"], "step.json' is damaged", "not mntp: done before"),
    ([RECORD], "run.json' is damaged", "resumed from checkpoint-4"),
]
CASES = [((flip, cut)[index % 2], *case) for index, case in enumerate(DAMAGED)]
"""With a bit flipped and cut in turn: checkpoints, stages and records are each damaged in both ways."""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("damage", "files", "told", "said"),
    CASES,
    ids=lambda given: Path(given[0]).name if isinstance(given, list) else getattr(given, "__name__", ""),
)
def test_what_is_damaged_is_made_again(
    damage: Any, files: list[str], told: str, said: str, stopped: Path, whole: Path, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    for file in files:
        damage(folder / file)
    with pytest.warns(UserWarning, match=told), heard() as lines:
        run(made(model), folder)
    assert any(said.removeprefix("not ") in line for line in lines) is not said.startswith("not ")
    assert same(weights(folder), weights(whole))


def checkpoint(folder: Path, step: int, best: int | None = None) -> Path:
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    (place / WEIGHTS).write_bytes(b"weights")
    state = {"best_model_checkpoint": best and f"/elsewhere/checkpoint-{best}"}
    (place / "trainer_state.json").write_text(json.dumps(state))
    seal(place, COMPLETE)
    return place


def test_a_checkpoint_whose_best_is_damaged_is_not_resumed_from(tmp_path: Path) -> None:
    """Training would go back to the best one at its end, and fail there for ever."""
    for step, best in ((2, None), (4, 4), (6, 4)):
        checkpoint(tmp_path, step, best)
    assert find_resumable_checkpoint(tmp_path) == tmp_path / "checkpoint-6"
    flip(tmp_path / "checkpoint-4" / WEIGHTS)
    with pytest.warns(UserWarning, match="cannot be used"):
        assert find_resumable_checkpoint(tmp_path) == tmp_path / "checkpoint-2"
    assert [place.name for place in checkpoints(tmp_path)] == ["checkpoint-2"]
