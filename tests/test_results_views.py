"""Tables of kept results: what `keep` takes of the output of a command, and how each view shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.results import pages
from tools.results.kept import FOLDER


def measured(label: str, score: float, **more: Any) -> dict[str, Any]:
    """A result as `results.jsonl` holds it."""
    versions = {"unmask": "1", "torch": "2", "transformers": "5", "peft": "0"}
    return {
        **{"label": label, "model": "m", "design": f"causal/plain/{label}", "task": "t", "kind": "sts", "metric": "spearman"},
        **{"main_score": score, "interval": [score - 0.1, score + 0.1], "n": 9, "texts": 2, "tokens": 7, "scores": {}},
        **{"provenance": {"hardware": "cpu", "versions": versions}, **more},
    }


REFERENCE = {"design": "sentence-transformers"}


def paired(a: dict[str, Any], b: dict[str, Any], told_apart: bool, **more: Any) -> dict[str, Any]:
    """A test of two results, as `comparison.json` holds it."""
    sides = {side: {"model": one["model"], "design": one["design"]} for side, one in (("a", a), ("b", b))}
    return {
        **sides,
        **{
            "tasks": ["t"],
            "test": "paired bootstrap",
            "n": 9,
            "unit": "items",
            "difference": a["main_score"] - b["main_score"],
        },
        **{"interval": [0.05, 0.2], "p_holm": 0.01, "effect": 2.5, "effect_name": "difference in standard errors"},
        **{"told_apart": told_apart, "family": "3 pairs", **more},
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with two pages."""
    (tmp_path / FOLDER).mkdir(parents=True)
    for name in pages.PAGES:
        (tmp_path / name).write_text("No table.\n")
    return tmp_path


def show(root: Path, how: str, command: str = "unmask compare") -> str:
    """The page after a result of the folder `run` is kept and shown."""
    page = root / "docs" / "results.md"
    page.write_text(f"before\n<!-- table: measured/results/r.json {how} -->\nstale\n<!-- end -->\nafter\n")
    pages.main(["r", str(root / "run"), command], root)
    return page.read_text()


def compared(
    root: Path, lines: list[dict[str, Any]], tests: list[dict[str, Any]], failures: list[dict[str, Any]] | None = None
) -> None:
    """A folder of `unmask compare`."""
    (root / "run").mkdir()
    (root / "run" / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    content = {"results": lines, "comparisons": tests, "failures": failures or []}
    (root / "run" / "comparison.json").write_text(json.dumps(content))


def rows_of(page: str) -> list[str]:
    """The rows of the tables, without headings."""
    return re.findall(r"^\| (?!design|---|pair|round)(.*) \|$", page, re.MULTILINE)


def test_a_comparison_is_kept_and_shown(root: Path) -> None:
    last, mean = measured("last", 0.5), measured("mean", 0.625)
    compared(root, [last, mean], [paired(mean, last, True, family="1 pair")])
    page = show(root, "scores")
    assert page.startswith("before\n<!--") and page.endswith("<!-- end -->\nafter\n") and "stale" not in page
    assert "```\nunmask compare\n```\nOn cpu, with unmask 1, torch 2, transformers 5.\n" in page
    assert rows_of(page) == [
        "`mean` | 62.5 | [52.5, 72.5] | 4",
        "`last` | 50.0 | [40.0, 60.0] | 4",
        "`mean` minus `last` | **+12.5** | [5.0, 20.0] | 0.0100",
    ]
    assert "Scores are Spearman of cosine x 100 on 9 items" in page and "Holm's correction is over 1 pair.\n" in page
    assert "effect" not in page


def test_many_pairs_are_told_in_a_sentence(root: Path) -> None:
    a, b, c, e5 = measured("a", 0.5), measured("b", 0.6), measured("c", 0.7), measured("e5", 0.8, **REFERENCE)
    tests = [paired(a, b, False), paired(a, c, True), paired(b, c, False)]
    compared(root, [a, b, c, e5], tests)
    assert "minus" in show(root, "scores")
    tests += [paired(one, e5, True, family="4 pairs with a reference") for one in (a, b, c, a)]
    (root / "run" / "comparison.json").write_text(json.dumps({"results": [a, b, c, e5], "comparisons": tests, "failures": []}))
    page = show(root, "scores")
    assert "minus" not in page
    assert "Of 3 pairs, 1 is significantly different: all except `a` and `b`; `b` and `c`. " in page
    assert "Of 4 pairs with a reference, all are significantly different. The test is the paired bootstrap, on 9 items;" in page


def test_differences_have_their_effect(root: Path) -> None:
    last, mean, e5 = measured("last", 0.5), measured("mean", 0.625), measured("e5", 0.75, **REFERENCE)
    beside = {"family": "1 comparison with last", "effect": None}
    compared(
        root, [last, mean, e5], [paired(mean, last, False, family="1 comparison with mean"), paired(e5, last, True, **beside)]
    )
    page = show(root, "differences")
    assert rows_of(page) == [
        "`mean` minus `last` | +12.5 | [5.0, 20.0] | 0.0100 | 2.50",
        "`e5` minus `last` | **+25.0** | [5.0, 20.0] | 0.0100 | ",
    ]
    assert "Holm's correction is over 1 comparison with mean and over 1 comparison with last." in page
    assert "The effect is the difference in standard errors." in page


def of_two_kinds() -> list[dict[str, Any]]:
    """Two designs and a reference, on two tasks of one kind and one of another."""
    other = {"kind": "clustering", "task": "u"}
    lines = [measured("last", 0.5), measured("mean", 0.6), measured("minilm", 0.9, **REFERENCE)]
    lines += [measured("last", 0.3, **other), measured("mean", 0.2, **other), measured("minilm", 0.3, **REFERENCE, **other)]
    lines += [measured("last", 0.7, task="v"), measured("mean", 0.8, task="v"), measured("minilm", 0.9, **REFERENCE, task="v")]
    return lines


def test_means_by_kind_count_tasks_and_no_reference_is_bold(root: Path) -> None:
    compared(root, of_two_kinds(), [])
    assert [re.sub("^(`.*`):.*?\\|", r"\1 |", row) for row in rows_of(show(root, "by-kind"))] == [
        "`minilm` | 30.0 | 90.0 | 70.0",
        "`mean` | 20.0 | **70.0** | **53.3**",
        "`last` | **30.0** | 60.0 | 50.0",
    ]


@pytest.mark.parametrize("ami", [True, False])
def test_a_grid_counts_tasks_and_tokens_and_has_ami_if_all_have_it(ami: bool, root: Path) -> None:
    lines = of_two_kinds()
    for line in lines[3:6] if ami else lines[3:5]:
        line["scores"] = {"ami": line["main_score"] / 2}
    lines[0] |= {"texts": 1, "tokens": 40}
    compared(root, lines, [])
    page = show(root, "grid")
    beside = " clustering, AMI |" if ami else ""
    assert f"| design | clustering | sts (2) |{beside} mean of 3 | tokens a text |" in page
    assert rows_of(page) == [
        f"`minilm` (reference) | 30.0 | 90.0 |{' 15.0 |' if ami else ''} 70.0 | ",
        f"`mean` | 20.0 | **70.0** |{' 10.0 |' if ami else ''} **53.3** | 4",
        f"`last` | **30.0** | 60.0 |{' **15.0** |' if ami else ''} 50.0 | 11",
    ]
    assert "clustering: V-measure (AMI beside it) on u; sts: Spearman of cosine on t, v." in page


def test_published_scores_stand_beside_ours(root: Path) -> None:
    sizes = {"stsb": 1379, "sickr-all": 9927}
    lines = [measured("minilm", 0.8, **REFERENCE, task=task, n=n) for task, n in sizes.items()]
    compared(root, [measured("mean", 0.1, task="stsb"), *lines], [])
    page = show(root, "published")
    assert "| Spearman of cosine x 100 | stsb (1,379 items) | sickr-all (9,927 items) |" in page
    assert "| published | 82.03 | 77.58 |\n| `unmask compare` | 80.00 | 80.00 |\n" in page


def a_choice(root: Path, designs: int, **more: Any) -> None:
    """A folder of `unmask recommend`, whose last round had so many designs."""
    names = [f"d{place}" for place in range(designs)]
    standings = [{"label": "d0", "score": 0.75, "behind": 0.0, "interval": None, "p": None, "worse": False}]
    standings += [
        {"label": name, "score": 0.7, "behind": 0.05, "interval": [0.01, 0.09], "p": 0.1, "worse": place > 2}
        for place, name in enumerate(names[1:], 1)
    ]
    choice = {"label": "d0", "design": 'causal/"In \\"{text}\\":\\n"/last', "score": 0.8, "interval": [0.7, 0.9], "items": 30}
    choice |= {"held_out": True, "chosen_on": 40, "candidates": 20, "ties": ["d1", "d2"], "tokens_a_text": 3.5, "tokens": 1009}
    rounds = [
        {"items": 10, "tokens": 3, "standings": standings * 2, "kept": names * 2},
        {"items": 20, "tokens": 4, "standings": standings, "kept": names if designs > 6 else ["d0", "d1"]},
        {"items": 40, "tokens": 1002, "standings": standings, "kept": ["d0"]},
    ]
    (root / "run").mkdir()
    (root / "run" / "results.jsonl").write_text("".join(json.dumps(measured(name, 0.7)) + "\n" for name in names))
    content = {**choice, "grid_tokens": 2500, "failed": {"bad": "why"}, "rounds": rounds, **more}
    (root / "run" / "recommendation.json").write_text(json.dumps(content))


def test_a_choice_is_kept_and_shown(root: Path) -> None:
    a_choice(root, 18)
    page = show(root, "choice", "unmask recommend")
    assert "`d0` was chosen from 20 designs on 40 items. On 30 other items, its score is **80.0** [70.0, 90.0]." in page
    assert "2 designs are tied with it, and 15 are worse. The table has the 18 designs of the last round." in page
    rows = rows_of(page)
    assert [row.split(" |")[0] for row in rows] == [
        *(f"`d{n}`" for n in range(10)),
        "3 more",
        *(f"`d{n}`" for n in range(13, 18)),
    ]
    assert rows[0] == "`d0` | 75.0 |  | 4" and rows[1] == "`d1` | 70.0 | 5.0 [1.0, 9.0] | 4"
    assert rows[3] == "`d3` | 70.0 | **5.0** [1.0, 9.0] | 4"
    assert '```text\nIn "{text}":\n\n```\n' in show(root, "prompt", "unmask recommend")


def test_a_choice_of_few_designs_is_shown_whole_and_says_what_it_was_chosen_by(root: Path) -> None:
    a_choice(root, 3, held_out=False, ties=["d1"], candidates=4, items=40)
    page = show(root, "choice", "unmask recommend")
    assert len(rows_of(page)) == 3 and "more" not in page
    assert "Its score on these items is **80.0** [70.0, 90.0]. The interval is widened" in page
    assert "1 design is tied with it, and 1 is worse." in page


@pytest.mark.parametrize(("held_out", "whole"), [(True, "all items, the other half included,"), (False, "all items")])
def test_rounds_name_the_designs_that_continue_if_they_are_few(held_out: bool, whole: str, root: Path) -> None:
    a_choice(root, 4, held_out=held_out)
    page = show(root, "rounds", "unmask recommend")
    assert rows_of(page) == ["1 | 10 | 8 | 3 | 8", "2 | 20 | 4 | 4 | `d0` and `d1`", "3 | 40 | 4 | 1,002 | "]
    assert f"The command computed 1,009 tokens. All designs on {whole} would have been about 2,500." in page


def test_a_goal_stands_beside_what_was_measured(root: Path) -> None:
    compared(root, [measured("last", 0.75), measured("last", 0.65, task="u"), measured("mean", 0.8)], [])
    pages.main(["r", str(root / "run"), "unmask compare"], root)
    aims = [("One", 70.0, "last"), ("Two", 80.5, "mean")]
    parts = [f'[[goals]]\nwhat = "{w}"\ngoal = {g}\nresult = "r"\nlabel = "{e}"\nsection = "s"\n' for w, g, e in aims]
    (root / "docs" / "measured" / "goals.toml").write_text("\n".join(parts))
    text = "<!-- goals: measured/goals.toml all -->\nstale\n<!-- end -->\n"
    rows = [line for line in pages.page(text, root).splitlines() if line.startswith("| [")]
    assert rows == ["| [One](#s) | 70 | **70.0** | `last` | yes |", "| [Two](#s) | 80.5 | 80.0 | `mean` | no |"]
    (root / "docs" / "measured" / "goals.toml").write_text(parts[0].replace('"last"', '"lost"'))
    with pytest.raises(SystemExit, match="has no embedder 'lost'"):
        pages.page(text, root)


def test_a_result_with_a_path_of_a_machine_is_not_kept(root: Path) -> None:
    compared(root, [measured("mean", 0.5), measured("last", 0.5)], [])
    with pytest.raises(SystemExit, match="path of a machine: /home/me/stsb"):
        show(root, "by-kind", "unmask compare -t /home/me/stsb")
    assert list((root / FOLDER).iterdir()) == []


def test_a_comparison_with_a_hole_is_not_kept(root: Path) -> None:
    compared(root, [measured("mean", 0.5)], [], [{"label": "last", "task": "t", "error": "no finite vector"}])
    with pytest.raises(SystemExit, match="last on t: no finite vector"):
        show(root, "by-kind")
    assert list((root / FOLDER).iterdir()) == []


def test_designs_of_two_models_are_told_apart(root: Path) -> None:
    compared(root, [measured("mean", 0.5, model="runs/best/model"), measured("mean", 0.6, model="other")], [])
    assert re.findall(r"`(.*)` \|", show(root, "by-kind")) == ["other mean", "best mean"]


def test_embedders_of_one_name_are_not_mixed(root: Path) -> None:
    compared(root, [measured("mean", 0.5, model="here/other"), measured("mean", 0.6, model="there/other")], [])
    with pytest.raises(SystemExit, match="Two embedders have one name"):
        show(root, "by-kind")


def test_the_file_of_a_benchmark_is_kept_as_it_is(root: Path) -> None:
    table = {"title": "Speeds", "columns": {"way": "{}", "ratio": "{:.2f} x"}, "rows": [["ours", 1.5], ["theirs", None]]}
    content = {
        "command": "python -m benchmarks.encode",
        "hardware": "cpu",
        "versions": {"torch": "2"},
        "parts": ["Two ways.", table],
    }
    file = root / "encode.json"
    file.write_text(json.dumps(content))
    pages.main(["r", str(file)], root)
    assert json.loads((root / FOLDER / "r.json").read_text()) == content
    (root / "README.md").write_text("<!-- table: measured/results/r.json benchmark -->\n<!-- end -->\n")
    pages.main([], root)
    shown = (root / "README.md").read_text()
    assert "```\npython -m benchmarks.encode\n```\nOn cpu, with torch 2.\n\nTwo ways.\n\nSpeeds:\n\n| way | ratio |\n" in shown
    assert rows_of(shown)[1:] == ["ours | 1.50 x", "theirs | "]


def test_a_table_of_what_is_not_kept_is_refused(root: Path) -> None:
    (root / "README.md").write_text("<!-- table: measured/results/lost.json benchmark -->\n<!-- end -->\n")
    with pytest.raises(SystemExit, match=r"lost\.json, which is not kept yet"):
        pages.main([], root)


def test_a_folder_needs_its_command_and_a_file_has_its_own(root: Path) -> None:
    compared(root, [measured("mean", 0.5)], [])
    for given in (["r", str(root / "run")], ["r", str(root / "run" / "comparison.json"), "unmask compare"]):
        with pytest.raises(SystemExit, match="A folder needs the command"):
            pages.main(given, root)
