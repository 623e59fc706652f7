"""What `unmask probe` writes replaces only what it wrote before."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from tests.conftest import TEXTS
from tests.in_process import run_program
from tests.tiny import FILES, write_rows
from unmask.cli.probing.common import keep, refuse_foreign_results
from unmask.errors import UnmaskError
from unmask.reporting.plotting import new_figure, save_figure

COMMANDS = {
    "clusters": ("texts.jsonl", "-d", "mean,last"),
    "prompts": ("rows.jsonl",),
    "pairs": ("rows.jsonl", "-d", "mean,last"),
    "layers": ("-d", "mean"),
    "states": (),
    "prefix": ("-a", "causal"),
}
ENDINGS = ("json", "png", "svg", "pdf")
RESULT = json.dumps({"provenance": {"attn_implementation": "sdpa"}})


def draw_mine(file: Path) -> None:
    """A figure that a user drew with the same library."""
    figure = Figure()
    figure.subplots().plot([1, 2])
    figure.savefig(file, dpi=150)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_somebody_else_is_told_before_a_model_is_loaded(
    command: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unmask.saving.load_model.load_encoder", lambda *_: pytest.fail("a model was loaded"))
    write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])
    write_rows(tmp_path / "rows.jsonl", FILES["sts"]()["test.jsonl"])
    mine = tmp_path / f"{command}.{ending}"
    if ending == "json":
        mine.write_text('[{"sentence1": "a", "sentence2": "b"}]')
    else:
        draw_mine(mine)
    before = mine.read_bytes()
    code, out, err = run_program(["probe", command, *COMMANDS[command], "-m", "pico", "-o", "."], monkeypatch, capfd)
    assert (code, out) == (2, "") and f"'{mine.name}' was not written by unmask" in err
    assert mine.read_bytes() == before


def test_what_a_probe_wrote_may_be_replaced(tmp_path: Path) -> None:
    refuse_foreign_results(tmp_path, "pairs")
    figure, _ = new_figure(2, 2)
    save_figure(figure, tmp_path, "pairs")
    refuse_foreign_results(tmp_path, "pairs")
    (tmp_path / "pairs.json").write_text(RESULT)
    refuse_foreign_results(tmp_path, "pairs")


def test_after_a_kill_the_same_command_may_go_on(tmp_path: Path) -> None:
    """Whatever was written, the result was written first."""

    def killed() -> list[Path]:
        draw_mine(tmp_path / "pairs.png")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(SimpleNamespace(as_json=lambda: json.loads(RESULT)), tmp_path, "pairs", killed)
    refuse_foreign_results(tmp_path, "pairs")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_figure_without_a_mark_is_ours_only_beside_our_result(ending: str, tmp_path: Path) -> None:
    """As versions wrote them that left no mark."""
    draw_mine(tmp_path / f"pairs.{ending}")
    (tmp_path / "pairs.json").write_text(RESULT)
    refuse_foreign_results(tmp_path, "pairs")
    (tmp_path / "pairs.json").write_text("")
    with pytest.raises(UnmaskError, match=rf"pairs\.{ending}' was not written by unmask"):
        refuse_foreign_results(tmp_path, "pairs")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_in_the_way_is_told(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"pairs.{ending}").mkdir()
    with pytest.raises(UnmaskError, match=rf"pairs\.{ending}' is a folder"):
        refuse_foreign_results(tmp_path, "pairs")
