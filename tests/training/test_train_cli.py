"""`unmask train` and `unmask recipes`: what they print, what they refuse, and with which exit code."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.cli import main
from unmask.errors import UnmaskError
from unmask.evaluation import training_gain
from unmask.runs import runs
from unmask.starter import starter_folders
from unmask.training.recipe import load_recipe, shipped_recipes
from unmask.training.records import TrainingResult
from unmask.training.trainee import Trainee

pytestmark = pytest.mark.usefixtures("sketched")
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run a command line: its exit code, what it printed, what it said on standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unmask", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, re.sub(r"\x1b\[[0-9;]*m", "", err)

    return run


@pytest.fixture
def file(model: Path, tmp_path: Path) -> Path:
    """A recipe of a pico model."""
    path = tmp_path / "pico.toml"
    stage = "steps = 3\nbatch = 4\nlr = 1e-3\nmax_length = 16\n"
    path.write_text(
        f'about = "Pico."\nmodel = "{model}"\ndesigns = ["bidirectional/plain/mean"]\ndtype = "float32"\n'
        'stages = ["mntp", "contrastive"]\n[lora]\nr = 4\n'
        '[data]\ntext = { path = "starter:reference" }\npairs = { path = "starter:pairs" }\n'
        f'[mntp]\ndata = ["text"]\n{stage}[contrastive]\ndata = ["pairs"]\n{stage}'
    )
    return path


def test_train_says_what_it_does_and_resumes(cli: Cli, file: Path, tmp_path: Path) -> None:
    code, out, said = cli("train", file, "-o", "run", "--set", "contrastive.steps=4")
    assert (code, out) == (0, "")
    for line in (
        "unmask: bidirectional/plain/mean, seed 0",
        "pairs: 40 pairs",
        "mntp: what trains",
        "q_proj",
        "step 4/4",
        "lr ",
    ):
        assert line in said
    assert "Writing model shards" not in said and "Traceback" not in said
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert '"steps": 4' in card
    code, _, said = cli("train", file, "-o", "run", "--set", "contrastive.steps=4")
    assert code == 0 and "done before" in said and "step" not in said
    code, _, said = cli("train", file, "-o", "run")
    assert code == 2 and "other settings: recipe.contrastive.steps was 4 and is 3 now" in said


def test_a_card_that_was_edited_stays(cli: Cli, file: Path, tmp_path: Path) -> None:
    short = ("--set", 'stages=["contrastive"]', "--set", "contrastive.steps=2")
    assert cli("train", file, "-o", "run", *short)[0] == 0
    card = tmp_path / "run" / "model" / "README.md"
    written = card.read_text()
    card.write_text("# Mine")
    shutil.rmtree(tmp_path / "run" / "stages")  # a finished run does not need them
    assert cli("train", file, "-o", "run", *short)[0] == 0 and card.read_text() == "# Mine"
    card.unlink()
    assert cli("train", file, "-o", "run", *short)[0] == 0 and card.read_text().partition("## Training")[0] in written


def test_tasks_of_one_name_and_tasks_that_choose_are_refused(cli: Cli, file: Path, tmp_path: Path) -> None:
    starter = next(folder for folder in starter_folders() if folder.name == "sts")
    for place in ("dev", "test"):
        shutil.copytree(starter, tmp_path / place / "sts")
        (tmp_path / place / "sts" / "task.toml").unlink(missing_ok=True)
    lines = (tmp_path / "dev" / "sts" / "test.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "dev" / "sts" / "test.jsonl").write_text("".join(lines[:60]))
    names = (f'evaluation.tasks=["{tmp_path / "dev" / "sts"}"]', f'evaluation.compared=["{tmp_path / "test" / "sts"}"]')
    code, _, said = cli("train", file, "-o", "run", "--set", names[0], "--set", names[1])
    assert code == 2 and "Two tasks are called 'sts', and hold other data." in said


def test_rows_of_the_watched_tasks_are_left_out(cli: Cli, file: Path, tmp_path: Path) -> None:
    task = next(folder for folder in starter_folders() if folder.name == "sts")
    setting = ("--set", f'evaluation.tasks=["{task}"]', "--set", 'stages=["contrastive"]')
    code, _, said = cli("train", file, "-o", "run", *setting)
    assert code == 2 and "pairs" in said, said  # every pair is in the task, so none is left
    code, _, said = cli("train", file, "-o", "kept", "--keep-leaks", *setting, "--set", "contrastive.evaluate_every=2")
    assert code == 0, said
    assert "step 2: " in said.replace("step 2/3  ", "step 2: ") and "score" in said
    record = json.loads((tmp_path / "kept" / "run.json").read_text())["result"]
    assert 0 < record["scores"]["score"] <= 1 and record["chosen"]
    card = tmp_path / "kept" / "model" / "README.md"
    shutil.rmtree(tmp_path / "kept" / "stages")  # the curves go with them
    written = card.read_text()
    card.unlink()
    assert cli("train", file, "-o", "kept", "--keep-leaks", *setting, "--set", "contrastive.evaluate_every=2")[0] == 0
    assert all("These tasks chose the best checkpoint, so they flatter it." in text for text in (written, card.read_text()))


# one stage, then a comparison
COMPARED = ("--set", 'stages=["contrastive"]', "--set", 'evaluation.compared=["starter:classification", "starter:retrieval"]')


def test_the_result_is_compared_with_its_untrained_base(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_gain, "REFERENCE", "./none")
    code, out, said = cli("train", file, "-o", "run", *COMPARED)
    assert (code, out) == (0, ""), said
    gain = runs.read_result(tmp_path / "run", TrainingResult).gain  # type: ignore[union-attr]
    assert gain is not None and list(gain.scores) == ["trained", "subject-mean-z"]
    assert list(gain.kinds.values()) == ["classification", "retrieval"]
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    for text in (said, card):
        assert gain.sentence in text
        assert all(cell in text for row in gain.table[1:] for cell in row)
    assert f"| trained | {' | '.join(gain.table[1][1:])} |" in card and "They chose no checkpoint." in card
    leaks = runs.read_result(tmp_path / "run", TrainingResult).data["contrastive"]["pairs"].leaks  # type: ignore[union-attr]
    assert set(leaks) == {"starter-classification", "starter-retrieval"}, "rows of these tasks are left out"
    monkeypatch.setattr(training_gain, "score_designs", lambda *_: pytest.fail("scored twice"))
    code, _, said = cli("train", file, "-o", "run", *COMPARED)
    assert code == 0 and "done before" in said and gain.sentence in said


def test_tasks_that_choose_the_checkpoint_are_not_compared_on(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainee, "load", lambda *_: pytest.fail("a model was loaded"))
    setting = (
        "--set",
        'evaluation.tasks=["starter:sts#20"]',
        "--set",
        'evaluation.compared=["starter:retrieval", "starter:sts"]',
    )
    code, _, said = cli("train", file, "-o", "run", *setting)
    assert code == 2 and "evaluation.compared names 'starter:sts', and evaluation.tasks chooses the checkpoint" in said


def test_a_bar_on_a_terminal_goes_even_if_the_run_fails(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.training.loop import Loop

    drawn: list[bool] = []

    def fail(*_: object) -> None:
        drawn.append(any("Refresh" in type(thread).__name__ for thread in threading.enumerate()))
        raise UnmaskError("Step 1: the loss is not finite.")

    monkeypatch.setattr(Loop, "_check_loss", fail)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, said = cli("train", file, "-o", "run")
    assert code == 2 and "unmask: Step 1: the loss is not finite." in said and drawn == [True]
    for thread in threading.enumerate():
        if "Refresh" in type(thread).__name__:
            thread.join(timeout=10)  # it was told to stop, and does so at its next breath
            assert not thread.is_alive()


def test_a_wrong_row_is_told_by_file_line_and_reason(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainee, "load", lambda *_: pytest.fail("a model was loaded"))
    (tmp_path / "rows.jsonl").write_text('{"anchor": "a", "positive": "b"}\n{"anchor": "a"}\n')
    for command in (("train", file, "-o", "run"), ("recipes", "check", file)):
        code, _, said = cli(*command, "--set", "data.pairs.path=rows.jsonl")
        assert code == 2 and "rows.jsonl, line 2" in said and "column 'positive'" in said, said
        assert len(said.strip().splitlines()[-1].split("unmask: ")) == 2 and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "llm2vec", "-o", "run"], "Recipe 'llm2vec' needs --scale: smoke, small, paper."),
        (["train", "llm2vce", "-o", "run"], "Did you mean 'llm2vec'?"),
        (["train", "llm2vec", "--scale", "smal", "-o", "run"], "Did you mean 'small'?"),
        (["train", "llm2vec", "--scale", "smoke", "-o", "run", "--data", "nowhere"], "There is no data folder 'nowhere'."),
        (["recipes", "copy", "llm2vec", "taken.toml"], "'taken.toml' exists: give a new file."),
    ],
)
def test_mistakes_are_told_in_one_sentence(words: list[str], said: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "taken.toml").touch()
    code, out, error = cli(*words)
    assert (code, out) == (2, "") and said in error and len(error.strip().splitlines()) == 1, error
    assert not (tmp_path / "run").exists()


def test_recipes_can_be_listed_shown_copied_and_checked(cli: Cli, file: Path, tmp_path: Path) -> None:
    code, out, _ = cli("recipes", "list")
    assert code == 0 and all(name in out for name in (*shipped_recipes(), "smoke", "small", "paper"))
    code, out, _ = cli("recipes", "show", "llm2vec")
    assert (code, out) == (0, shipped_recipes()["llm2vec"].read_text())
    code, out, _ = cli("recipes", "show", "llm2vec", "--scale", "smoke", "--set", "simcse.steps=7")
    assert code == 0 and json.loads(out)["simcse"]["steps"] == 7 and json.loads(out)["mntp"]["masking"] == "bert"
    code, _, said = cli("recipes", "copy", "llm2vec", "mine.toml")
    assert code == 0 and "wrote mine.toml" in said
    assert load_recipe(str(tmp_path / "mine.toml"), "smoke").stages == load_recipe("llm2vec", "smoke").stages
    _, _, said = cli("recipes", "copy", "llm2vec", "mine [1].toml")
    assert "unmask train 'mine [1].toml' --scale" in said, "a command that a shell understands"
    _, _, said = cli("recipes", "copy", file, "scaleless.toml")
    assert said.strip().endswith("train with: unmask train scaleless.toml -o FOLDER"), (
        "a recipe without scales takes no --scale"
    )
    code, out, _ = cli("recipes", "check", "mine.toml", "--scale", "smoke")
    assert code == 0 and re.fullmatch(r"mntp: .*\nsimcse: .*\nok\n", out)
