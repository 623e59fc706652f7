"""A run that was killed and started again gives the weights of one that was not, bit by bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.messages import heard
from tests.proofs import ALL
from tests.training.running import At, die, killed, losses, recipe, run, same, weights
from unmask.errors import UnmaskError
from unmask.models.identity import identity_of
from unmask.models.source import Source
from unmask.training import loop
from unmask.training.card import write_card

CUT: list[tuple[str, dict[str, Any]]] = [
    ("mntp", {"accumulate": 2}),
    ("simcse", {"where": "attention", "cache_tokens": 16}),
    ("contrastive", {"data": ["labels"]}),
    ("distill", {"cache_tokens": 16}),
]
"""Each stage where the most has to be found again: parts of a step, dropout that is repeated for each part, pairs drawn from labels.

The plain settings of each stage run in `make test-all`.
"""
CUT_TOO: list[tuple[str, dict[str, Any]]] = [(stage, {}) for stage in ("mntp", "simcse", "contrastive", "distill")]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("stage", "settings"), [*CUT, *(CUT_TOO if ALL else ())], ids=str)
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    stage: str, settings: dict[str, Any], model: Path, teacher: Path, tmp_path: Path
) -> None:
    needed = {"teacher": str(teacher)} if stage == "distill" else {}
    made = recipe(model, stage, lora={"r": 4, "dropout": 0.1}, **{stage: settings | needed})
    run(made, tmp_path / "whole")
    killed(lambda: run(made, tmp_path / "cut", None, At(f"1-{stage}", 4, die)))
    with heard() as said:
        run(made, tmp_path / "cut")
    assert f"  {stage}: resumed from checkpoint-2" in said
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert losses(tmp_path / "cut", f"1-{stage}") == losses(tmp_path / "whole", f"1-{stage}")


def test_weights_do_change_with_the_seed(model: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        run(recipe(model, "simcse", seeds=[seed], simcse={"steps": 2}), tmp_path / str(seed))
    assert not same(weights(tmp_path / "0"), weights(tmp_path / "1"))


def test_a_finished_stage_is_taken_over(model: Path, tmp_path: Path) -> None:
    made = recipe(model, "mntp", "simcse")
    run(made, tmp_path / "whole")
    killed(lambda: run(made, tmp_path / "cut", None, At("2-simcse", 4, die)))
    with heard() as said:
        run(made, tmp_path / "cut", None, At("1-mntp", 1, pytest.fail))
    assert "  mntp: done before" in said and "  simcse: resumed from checkpoint-2" in said
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("train", ["full", ["gate_proj", "up_proj", "down_proj"]])
def test_a_run_killed_between_two_stages_goes_on(train: str | list[str], model: Path, tmp_path: Path) -> None:
    made = recipe(model, "simcse", "contrastive", train=train)
    run(made, tmp_path / "whole")
    killed(lambda: run(made, tmp_path / "cut", None, At("2-contrastive", 1, die)))
    run(made, tmp_path / "cut", None, At("1-simcse", 1, pytest.fail))
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


def test_a_run_whose_teacher_was_replaced_is_refused(model: Path, teacher: Path, tmp_path: Path) -> None:
    taught_by = Path(shutil.copytree(teacher, tmp_path / "teacher"))
    made = recipe(model, "distill", distill={"teacher": str(taught_by)})
    killed(lambda: run(made, tmp_path / "cut", None, At("1-distill", 4, die)))
    file = taught_by / "model.safetensors"
    whole, tensors = file.read_bytes(), load_file(file)
    save_file({name: -one * torch.arange(16) for name, one in tensors.items()}, file, {"format": "pt"})
    with pytest.raises(UnmaskError, match=rf"The teacher '{taught_by}' has changed .* was \w+ .* Restore it, choose another"):
        run(made, tmp_path / "cut")
    file.write_bytes(whole)
    done = run(made, tmp_path / "cut")
    recorded = json.loads((done.folder / "run.json").read_text())["result"]["base"]["teacher"]
    assert recorded == {"model": str(taught_by), "weights": identity_of(Source(str(taught_by))).revision, "design": None}
    write_card(made, done)
    assert f"Teacher: `{taught_by}`, weights {recorded['weights']}.\n" in (done.result / "README.md").read_text()


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
@pytest.mark.parametrize("moment", ["optimizer", "state", "end"])
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

        name = {"optimizer": "_save_optimizer_and_scheduler", "state": "_save_rng_state", "end": "_finalize_training"}[moment]
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


def test_nothing_is_left_of_checkpoints(model: Path, tmp_path: Path) -> None:
    run(recipe(model, "mntp"), tmp_path / "run")
    left = {path.name for path in (tmp_path / "run" / "stages" / "1-mntp").iterdir()}
    assert left == {"done.safetensors", "log.json", "step.json", "tensorboard"}


def test_a_run_that_is_done_is_not_repeated(model: Path, tmp_path: Path) -> None:
    made = recipe(model, "mntp")
    run(made, tmp_path / "run")
    before = weights(tmp_path / "run")
    with heard() as said:
        run(made, tmp_path / "run", None, At("1-mntp", 1, pytest.fail))
    assert len(said) == 1 and "done before" in said[0]
    assert same(weights(tmp_path / "run"), before)


def test_another_recipe_in_the_same_folder_is_refused(model: Path, tmp_path: Path) -> None:
    run(recipe(model, "mntp", mntp={"steps": 1}), tmp_path / "run")
    with pytest.raises(UnmaskError, match=r"other settings: recipe\.mntp\.steps was 1 and is 2 now\. Choose another folder"):
        run(recipe(model, "mntp", mntp={"steps": 2}), tmp_path / "run")


def test_a_recipe_can_be_corrected_while_nothing_was_trained(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="nowhere"):
        run(recipe(model, "mntp", data={"text": {"path": "nowhere.jsonl"}}), tmp_path / "run")
    run(recipe(model, "mntp", mntp={"steps": 1}), tmp_path / "run")


def test_other_data_in_the_same_folder_are_refused(model: Path, tmp_path: Path) -> None:
    rows = [{"text": f"A sentence about the number {number}."} for number in range(20)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    made = recipe(model, "mntp", data={"text": {"path": str(file)}})
    killed(lambda: run(made, tmp_path / "run", None, At("1-mntp", 4, die)))
    file.write_text("\n".join(map(json.dumps, rows[1:])))
    with pytest.raises(UnmaskError, match=r"The file of the data set 'text' has changed since the run"):
        run(made, tmp_path / "run")


def test_a_run_is_not_continued_in_another_precision(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(model, "simcse")
    killed(lambda: run(made, tmp_path / "cut", None, At("1-simcse", 3, die)))
    monkeypatch.setattr("unmask.training.run.training_precision", lambda _: "bfloat16")
    with pytest.raises(UnmaskError, match=r"precision of training has changed .* was float32 and is bfloat16 now"):
        run(made, tmp_path / "cut")
