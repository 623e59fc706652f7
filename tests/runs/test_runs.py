"""Runs: a step is computed once, other settings are refused by name, damage is repaired, files of other programs stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from unmask.errors import UnmaskError
from unmask.runs import runs
from unmask.runs.runs import Run


class Table(BaseModel):
    steps: int = 1


class Settings(BaseModel):
    seed: int = 0
    stage: Table = Table()
    lessons: dict[str, str] = {}


class Outcome(BaseModel):
    score: float


def work(folder: Path, settings: Settings = Settings(), **options: Any) -> int:  # noqa: B008
    """A run of two steps; the number of steps that were computed."""
    computed = 0

    def compute(step: Path) -> int:
        nonlocal computed
        computed += 1
        (step / "weights").write_text("the weights")
        return 7

    with runs.open(folder, settings, **options) as run:
        if run.result is None:
            assert [run.step(name, compute, files=["weights"]) for name in ("steps/1", "steps/2")] == [7, 7]
            run.finish(Outcome(score=0.5))
    return computed


def failing(folder: Path, settings: Settings = Settings(), **options: Any) -> None:  # noqa: B008
    """A run that is stopped in its second step."""
    with pytest.raises(KeyboardInterrupt), runs.open(folder, settings, **options) as run:
        run.step("steps/1", lambda step: (step / "weights").write_text("the weights") and 7, files=["weights"])
        run.step("steps/2", _stop)


def _stop(step: Path) -> None:
    (step / "checkpoint").touch()
    raise KeyboardInterrupt


def test_a_finished_run_returns_at_once(tmp_path: Path) -> None:
    assert work(tmp_path / "run") == 2
    assert work(tmp_path / "run") == 0
    assert runs.read_result(tmp_path / "run", Outcome) == Outcome(score=0.5)


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        (Settings(stage=Table(steps=9)), r"stage\.steps was 1 and is 9 now"),
        (Settings(lessons={"math": "a"}), r'lessons\.math was not set and is "a" now'),
    ],
)
def test_other_settings_are_refused_by_name(settings: Settings, difference: str, tmp_path: Path) -> None:
    for start in (failing, work):
        start(tmp_path / start.__name__)
        with pytest.raises(
            UnmaskError, match=rf"holds a run with other settings: {difference}\. Choose another folder, or delete"
        ):
            work(tmp_path / start.__name__, settings)


def test_tables_that_may_grow_keep_the_entries_of_earlier_runs(tmp_path: Path) -> None:
    for lessons in ({"math": "a"}, {"code": "b"}, {"code": "b", "math": "a"}):
        work(tmp_path / "run", Settings(lessons=lessons), may_grow=["lessons"])
    with pytest.raises(UnmaskError, match=r'lessons\.math was "a" and is "c" now'):
        work(tmp_path / "run", Settings(lessons={"math": "c"}), may_grow=["lessons"])


def test_inputs_are_compared_while_they_are_available(tmp_path: Path) -> None:
    failing(tmp_path / "run", inputs={"base model": "a"})
    assert (tmp_path / "run" / "steps" / "2" / "checkpoint").exists(), "a step that stopped keeps its scratch files"
    with pytest.raises(UnmaskError, match=r"The base model has changed since the run in .* it was a and is b now\. Restore it"):
        work(tmp_path / "run", inputs={"base model": "b"})
    assert work(tmp_path / "run", inputs={"base model": None}) == 1


def test_settings_can_be_corrected_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a mistake"), runs.open(tmp_path / "run", Settings(seed=1)):
        raise ValueError("a mistake")
    assert not (tmp_path / "run").exists()
    assert work(tmp_path / "run", Settings(seed=2)) == 2


@pytest.mark.parametrize(
    ("file", "computed"), [("run.json", 0), ("steps/1/step.json", 1), ("steps/1/weights", 1), ("steps/2/step.json", 1)]
)
def test_damage_is_repaired(file: str, computed: int, tmp_path: Path) -> None:
    with runs.open(tmp_path / "run", Settings()) as run:
        for name in ("steps/1", "steps/2"):
            run.step(name, lambda step: (step / "weights").write_text("the weights") and 7, files=["weights"])
    content = bytearray((tmp_path / "run" / file).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "run" / file).write_bytes(content)
    with pytest.warns(UserWarning, match="damaged"):
        assert work(tmp_path / "run") == computed


def test_steps_of_another_run_are_refused_if_its_record_is_lost(tmp_path: Path) -> None:
    failing(tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(UnmaskError, match="belongs to a run with other settings"):
        work(tmp_path / "run", Settings(seed=1))
    assert work(tmp_path / "run") == 1


@pytest.mark.parametrize("file", ["notes.txt", "run.json", "steps/1/notes.txt"])
def test_files_of_other_programs_are_left_alone(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("mine")
    with pytest.raises(UnmaskError, match="holds other files"):
        work(tmp_path)
    assert (tmp_path / file).read_text() == "mine"


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with runs.open(tmp_path, Settings()), pytest.raises(UnmaskError, match="Another run is writing"):
        work(tmp_path)


# ---- published results --------------------------------------------------------------------------------------------------


def publish(folder: Path, settings: Settings = Settings()) -> bool:  # noqa: B008
    """Whether it was computed."""
    with runs.open_published(folder, settings) as run:
        if run.result is not None:
            return False
        _publish(run)
        return True


def _publish(run: Run) -> None:
    run.step("training", lambda step: (step / "checkpoint").touch())
    run.publish(lambda scratch: (scratch / "weights").write_text("the weights"), Outcome(score=1))


def test_a_published_result_appears_complete(tmp_path: Path) -> None:
    assert publish(tmp_path / "expert")
    assert {file.name for file in (tmp_path / "expert").iterdir()} == {"weights", "run.json", "checksums.json"}
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["expert"]
    assert not publish(tmp_path / "expert")
    with pytest.raises(UnmaskError, match="seed was 0 and is 1 now"):
        publish(tmp_path / "expert", Settings(seed=1))


def test_a_damaged_result_is_made_again_unless_a_file_would_be_lost(tmp_path: Path) -> None:
    publish(tmp_path / "expert")
    (tmp_path / "expert" / "weights").write_text("other weights")
    (tmp_path / "expert" / "notes.txt").write_text("mine")
    with pytest.warns(UserWarning, match="made again"), pytest.raises(UnmaskError, match=r"notes\.txt' does not belong to it"):
        publish(tmp_path / "expert")
    (tmp_path / "expert" / "notes.txt").unlink()
    with pytest.warns(UserWarning, match="made again"):
        assert publish(tmp_path / "expert")
