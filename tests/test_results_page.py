"""The tables of docs/results.md and the README follow from kept results, which tell nothing of the machine that made them."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools import results

MEASURED = results.ROOT / "docs" / "measured"
KEPT = sorted((results.ROOT / results.KEPT).iterdir())


@pytest.mark.parametrize("name", results.PAGES)
def test_the_tables_are_what_kept_results_give(name: str) -> None:
    text = (results.ROOT / name).read_text(encoding="utf-8")
    assert text == results.page(text), "write them again: python -m tools.results"


def test_every_kept_result_is_shown() -> None:
    assert {results.ROOT / "docs" / name for name in results.shown()} == set(KEPT)


def test_a_stale_table_is_written_again() -> None:
    text = (results.ROOT / "README.md").read_text(encoding="utf-8")
    stale = text.replace("| **77.5** |", "| **78.5** |")
    assert stale != text and results.page(stale) == text


def texts_of(file: Path) -> dict[str, str]:
    """The text of a file, or those of an archive without its arrays."""
    if file.suffix != ".zip":
        return {file.name: file.read_text(encoding="utf-8")}
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if not name.endswith(".npz")}


@pytest.mark.parametrize("file", (file for file in sorted(MEASURED.rglob("*")) if file.is_file()), ids=lambda file: file.name)
def test_no_kept_file_holds_a_path_of_a_machine(file: Path) -> None:
    for name, text in texts_of(file).items():
        assert not results.MACHINE.search(name + "\n" + text), name


@pytest.mark.parametrize("path", ["/home/me/data", "/work/runs", "/tmp/x", "~/data", "C:\\\\data", '"/Users/me"'])
def test_a_path_of_a_machine_is_seen(path: str) -> None:
    assert results.MACHINE.search(f"-t {path}")


def test_designs_and_addresses_are_no_paths_of_a_machine() -> None:
    for text in ('causal/"{text}"/last/zscore', "https://host/home/page", "DATA/stsb/dev.jsonl", "q: w/work/x"):
        assert not results.MACHINE.search(text)


def test_the_gain_that_other_pages_tell_is_the_measured_one() -> None:
    first = json.loads((results.ROOT / results.KEPT / "stsb-prompt.json").read_text(encoding="utf-8"))["tests"][0]
    assert (first["a"], first["b"], first["told_apart"]) == ("subject-three-examples-z", "prompteol-z", True)
    how_to = (results.ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
    assert f"worth {100 * first['difference']:.0f} points over `prompteol-z` ([table](results.md#" in how_to


def measured(label: str, score: float, **more: Any) -> dict[str, Any]:
    """A result as `results.jsonl` holds it."""
    versions = {"unmask": "1", "torch": "2", "transformers": "5", "peft": "0"}
    return {
        **{"label": label, "model": "m", "design": f"causal/plain/{label}", "task": "t", "kind": "sts", "metric": "spearman"},
        **{"main_score": score, "interval": [score - 0.1, score + 0.1], "n": 9, "texts": 2, "tokens": 7, "scores": {}},
        **{"provenance": {"hardware": "cpu", "versions": versions}, **more},
    }


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one page, which shows the result `r`."""
    (tmp_path / results.KEPT).mkdir(parents=True)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "PAGES", ("page.md",))
    return tmp_path


def show(root: Path, how: str, command: str) -> str:
    """The page after a result of the folder `run` is kept and shown."""
    (root / "page.md").write_text(f"before\n<!-- table: measured/results/r.json {how} -->\nold\n<!-- end -->\nafter\n")
    results.main(["r", str(root / "run"), command])
    return (root / "page.md").read_text()


def compared(root: Path, lines: list[dict[str, Any]]) -> None:
    sides = {side: {"model": "m", "design": f"causal/plain/{side}"} for side in ("mean", "last")}
    test = {
        "a": sides["mean"],
        "b": sides["last"],
        "tasks": ["t"],
        "test": "paired",
        "n": 9,
        "unit": "items",
        "difference": 0.125,
    }
    test |= {"interval": [0.05, 0.2], "p_holm": 0.01, "told_apart": True, "family": "1 pair"}
    (root / "run").mkdir()
    (root / "run" / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "run" / "comparison.json").write_text(json.dumps({"results": lines, "comparisons": [test]}))


def test_a_comparison_is_kept_and_shown(root: Path) -> None:
    compared(root, [measured("last", 0.5), measured("mean", 0.625)])
    page = show(root, "scores", "unmask compare")
    assert page.startswith("before\n<!--") and page.endswith("<!-- end -->\nafter\n") and "old" not in page
    assert "```\nunmask compare\n```\nOn cpu, with unmask 1, torch 2, transformers 5.\n" in page
    assert "| `mean` | 62.5 | [52.5, 72.5] | 4 |\n| `last` | 50.0 | [40.0, 60.0] | 4 |\n" in page
    assert "| `mean` minus `last` | **+12.5** | [5.0, 20.0] | 0.0100 |\n" in page


def test_means_by_kind_count_tasks_and_no_reference_is_bold(root: Path) -> None:
    other = {"kind": "retrieval", "task": "u"}
    best = {"design": "sentence-transformers"}
    lines = [measured("last", 0.5), measured("mean", 0.6), measured("minilm", 0.9, **best)]
    lines += [measured("last", 0.3, **other), measured("mean", 0.2, **other), measured("minilm", 0.1, **best, **other)]
    lines += [measured("last", 0.7, task="v"), measured("mean", 0.8, task="v"), measured("minilm", 0.9, **best, task="v")]
    compared(root, lines)
    rows = re.findall(r"^\| `(\S+)`.*? \| (.*) \|$", show(root, "by-kind", "unmask compare"), re.MULTILINE)
    assert rows == [
        ("minilm", "10.0 | 90.0 | 63.3"),
        ("mean", "20.0 | **70.0** | **53.3**"),
        ("last", "**30.0** | 60.0 | 50.0"),
    ]


def test_a_choice_is_kept_and_shown(root: Path) -> None:
    names = [f"d{place}" for place in range(18)]
    standings = [{"label": "d0", "score": 0.75, "behind": 0.0, "interval": None, "p": None, "worse": False}]
    standings += [
        {"label": name, "score": 0.7, "behind": 0.05, "interval": [0.01, 0.09], "p": 0.1, "worse": place > 2}
        for place, name in enumerate(names[1:], 1)
    ]
    choice = {"label": "d0", "design": 'causal/"In \\"{text}\\":\\n"/last', "score": 0.8, "interval": [0.7, 0.9], "items": 30}
    choice |= {"held_out": True, "chosen_on": 40, "candidates": 20, "ties": ["d1", "d2"], "tokens_a_text": 3.5, "tokens": 9}
    rounds = [
        {"items": 20, "tokens": 4, "standings": standings, "kept": []},
        {"items": 40, "tokens": 5, "standings": standings},
    ]
    (root / "run").mkdir()
    (root / "run" / "results.jsonl").write_text("".join(json.dumps(measured(name, 0.7)) + "\n" for name in names))
    content = {**choice, "grid_tokens": 10, "failed": {"bad": "why"}, "rounds": rounds}
    (root / "run" / "recommendation.json").write_text(json.dumps(content))
    page = show(root, "choice", "unmask recommend")
    assert "`d0` was chosen from 20 designs on 40 items. On 30 other items, its score is **80.0** [70.0, 90.0]." in page
    assert "2 designs are tied with it, and 16 are worse. The table has the 18 designs of the last round." in page
    rows = re.findall(r"^\| (?!design|---)(.*) \|$", page, re.MULTILINE)
    assert [row.split(" |")[0] for row in rows] == [
        *(f"`d{n}`" for n in range(10)),
        "3 more",
        *(f"`d{n}`" for n in range(13, 18)),
    ]
    assert rows[0] == "`d0` | 75.0 |  | 4" and rows[1] == "`d1` | 70.0 | 5.0 [1.0, 9.0] | 4"
    assert rows[3] == "`d3` | 70.0 | **5.0** [1.0, 9.0] | 4"
    assert '```text\nIn "{text}":\n\n```\n' in show(root, "prompt", "unmask recommend")


def test_a_result_with_a_path_of_a_machine_is_not_kept(root: Path) -> None:
    compared(root, [measured("mean", 0.5), measured("last", 0.5)])
    with pytest.raises(SystemExit, match="path of a machine: /home/me/stsb"):
        show(root, "scores", "unmask compare -t /home/me/stsb")
    assert list((root / results.KEPT).iterdir()) == []
