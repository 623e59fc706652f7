"""A run that was killed and started again gives the weights of one that was not, bit by bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.messages import heard
from tests.training.running import TEACHER, At, die, killed, losses, recipe, run, same, weights, with_teacher
from unmask.errors import UnmaskError
from unmask.training import loop

CUT: list[tuple[str, dict[str, Any]]] = [
    ("mntp", {"accumulate": 2}),
    ("simcse", {"where": "attention", "cache_tokens": 16}),
    ("contrastive", {"data": ["labels", "graded"], "guide": TEACHER, "teacher": TEACHER, "average": 3}),
    ("distill", {"cache_tokens": 16, "teacher": TEACHER}),
]
"""Each stage where the most has to be restored: parts of a step, dropout that is repeated for each part, pairs sampled from labels, an
average of checkpoints before and after the kill."""


@pytest.mark.sample(2)
@pytest.mark.parametrize(("stage", "settings"), CUT, ids=str)
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    stage: str, settings: dict[str, Any], model: Path, teacher: Path, tmp_path: Path
) -> None:
    made = recipe(model, stage, lora={"r": 4, "dropout": 0.1}, **{stage: with_teacher(settings, teacher)})
    run(made, tmp_path / "whole")
    killed(lambda: run(made, tmp_path / "cut", None, At(f"1-{stage}", 4, die)))
    with heard() as said:
        run(made, tmp_path / "cut")
    assert f"  {stage}: resumed from checkpoint-2" in said
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert losses(tmp_path / "cut", f"1-{stage}") == losses(tmp_path / "whole", f"1-{stage}")


def test_a_finished_stage_is_taken_over(model: Path, tmp_path: Path) -> None:
    made = recipe(model, "mntp", "simcse")
    run(made, tmp_path / "whole")
    killed(lambda: run(made, tmp_path / "cut", None, At("2-simcse", 4, die)))
    with heard() as said:
        run(made, tmp_path / "cut", None, At("1-mntp", 1, pytest.fail))
    assert "  mntp: done before" in said and "  simcse: resumed from checkpoint-2" in said
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_a_run_on_a_base_that_was_retrained_is_refused(model: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(model, tmp_path / "base"))
    made = recipe(base, "simcse", simcse={"steps": 4})
    killed(lambda: run(made, tmp_path / "cut", None, At("1-simcse", 3, die)))
    tensors = load_file(base / "model.safetensors")
    save_file({name: one + 0.05 for name, one in tensors.items()}, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        UnmaskError, match=rf"The base model '{base}' has changed since the run in .* began: it was \w+ and is \w+"
    ):
        run(made, tmp_path / "cut")
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    run(made, tmp_path / "cut")
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["result"]["base"]["model"] == str(base)


def test_a_finished_stage_does_not_need_its_teacher_again(model: Path, teacher: Path, tmp_path: Path) -> None:
    taught_by = Path(shutil.copytree(teacher, tmp_path / "teacher"))
    made = recipe(model, "distill", "simcse", distill={"teacher": str(taught_by)})
    run(made, tmp_path / "whole")
    killed(lambda: run(made, tmp_path / "cut", None, At("2-simcse", 2, die)))
    shutil.rmtree(taught_by)
    run(made, tmp_path / "cut")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    records = [json.loads((tmp_path / folder / "run.json").read_text())["result"]["base"] for folder in ("cut", "whole")]
    assert records[0] == records[1] and records[0]["teacher"]["weights"]
    with pytest.raises(UnmaskError, match="teacher"):
        run(made, tmp_path / "other")


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", ["optimizer", "end"])
def test_a_checkpoint_that_is_torn_is_not_used(
    moment: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipe(model, "simcse")
    run(made, tmp_path / "whole")

    def torn() -> None:
        def at_the_fourth_step(self: Any, *arguments: Any, **options: Any) -> Any:
            if self.state.global_step == 4:
                die()
            return inner(self, *arguments, **options)

        name = {"optimizer": "_save_optimizer_and_scheduler", "end": "_finalize_training"}[moment]
        inner = getattr(loop.Loop, name)
        if moment == "end":  # all steps are done and the last checkpoint is whole, the stage is not
            monkeypatch.setattr(loop.Loop, name, lambda *_, **__: die())
        else:
            monkeypatch.setattr(loop.Loop, name, at_the_fourth_step)
        run(made, tmp_path / "cut")

    killed(torn)
    with heard() as said:
        run(made, tmp_path / "cut")
    assert f"  simcse: resumed from checkpoint-{6 if moment == 'end' else 2}" in said
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_a_run_that_was_moved_finds_its_best_checkpoint(model: Path, tmp_path: Path) -> None:
    made = recipe(model, "contrastive", contrastive={"evaluate_every": 2})
    peak = [0.1, 0.9, 0.2]

    def falling() -> Callable[[Any], dict[str, float]]:
        seen = iter([*peak, 0.5])
        return lambda _: {"score": next(seen)}

    run(made, tmp_path / "whole", falling())
    scores = falling()
    killed(lambda: run(made, tmp_path / "cut", scores, At("1-contrastive", 5, die)))
    (tmp_path / "cut").rename(tmp_path / "moved")
    run(made, tmp_path / "moved", lambda _: {"score": 0.2})
    assert same(weights(tmp_path / "moved"), weights(tmp_path / "whole"))
