"""Exports hold the numbers that were measured, under names that survive CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import html
from pathlib import Path

import pytest

from tests.reporting.conftest import Written
from tests.reporting.synthetic import SCRIPT, SPECIAL, Folder, small
from unmask.errors import UnmaskError
from unmask.evaluation.results import ResultStore
from unmask.io import terminal
from unmask.reporting import exports
from unmask.reporting.exports import escape_latex
from unmask.reporting.report_folder import write_report

pytestmark = pytest.mark.usefixtures("sketched")


def rows(report: Written, name: str) -> list[dict[str, str]]:
    with (report.page.parent / "data" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_results_are_exported_to_the_last_digit(small_report: Written) -> None:
    results = {(one.label, one.task): one for one in ResultStore(small_report.folder).results}
    exported = rows(small_report, "results")
    assert len(exported) == len(results) == 12
    for row in exported:
        result = results[row["name"], row["task"]]
        assert result.interval is not None
        assert (float(row["score"]), float(row["low"]), float(row["high"])) == (result.main_score, *result.interval)
        assert (int(row["n"]), int(row["tokens"]), int(row["truncated"])) == (result.n, result.tokens, result.truncated)
        assert row["also_ami"] == (str(result.scores["ami"]) if result.scores else "")
        assert row["attention"] == result.provenance["attention"]


def test_designs_are_exported_in_order(small_report: Written) -> None:
    exported = rows(small_report, "designs")
    assert [row["name"] for row in exported] == ["echo", "mean", SCRIPT, SPECIAL]
    assert [float(row["mean"]) for row in exported] == sorted((float(row["mean"]) for row in exported), reverse=True)
    assert [row["place"] for row in exported] == ["1", "2", "3", "4"]
    assert float(exported[1]["behind"]) == pytest.approx(float(exported[0]["mean"]) - float(exported[1]["mean"]))


def test_latex_marks_the_best_and_what_is_not_told_apart(small_report: Written) -> None:
    table = (small_report.page.parent / "data" / "results.tex").read_text(encoding="utf-8")
    body = table.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
    assert len(body) == 4
    assert sum(line.count("\\textbf") for line in body) == 3  # one a task
    exported = rows(small_report, "results")
    assert sum(line.count("\\underline") for line in body) == sum(row["mark"] == "tied" for row in exported)
    assert [cell.strip(" \\") for cell in body[-1].split(" & ")[1:4]] == [
        f"{100 * float(row['score']):.1f}" for row in exported if row["name"] == SPECIAL
    ]


@pytest.mark.parametrize(
    ("given", "escaped"),
    [("a&b_%", r"a\&b\_\%"), ("\\{$#}", r"\textbackslash{}\{\$\#\}"), ("~^", r"\textasciitilde{}\textasciicircum{}")],
)
def test_latex_escapes(given: str, escaped: str) -> None:
    assert escape_latex(given) == escaped


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "\tx"])
def test_no_cell_of_a_csv_is_a_formula(name: str, tmp_path: Path) -> None:
    file = exports._write_csv(tmp_path / "x.csv", [{"name": name, "score": -1.5, "model": "a=b"}])
    with file.open(encoding="utf-8", newline="") as stream:
        [row] = csv.DictReader(stream)
    assert row == {"name": f"'{name}", "score": "-1.5", "model": "a=b"}


@pytest.mark.parametrize("name", ["\x1b[31mred\x00", "a\nb\tc [red]", "\u202e😀 $x^2$ <b>"])
def test_a_report_shows_every_name(name: str, tmp_path: Path) -> None:
    of = Folder({name: (name, 0.9), "mean": ("causal/plain/mean", 0.1)}, {f"sts {name}": "sts", "other": "sts"}, model=name)
    of.write(tmp_path)
    page = write_report(tmp_path, tmp_path / "report")
    written = [page, *(page.parent / "figures").glob("*.svg"), page.parent / "data" / "results.tex"]
    assert len(written) > 2
    for file in written:
        text = file.read_text(encoding="utf-8")
        assert not any(ord(character) < 32 or character in "\x7f\u202e" for character in text if character not in "\n\r\t")
    assert html.escape(terminal.visible(name, keep="\n\t")).replace("&#x27;", "&#39;") in page.read_text(encoding="utf-8")


def test_a_report_replaces_no_file_of_somebody_else(tmp_path: Path) -> None:
    small().write(tmp_path / "results")
    for name in ("data/results.csv", "figures/ranking.png", "report.html"):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        with pytest.raises(UnmaskError, match="was not written by unmask, and the report would replace it"):
            write_report(tmp_path / "results", out)
        assert [file.name for file in out.rglob("*") if file.is_file()] == [Path(name).name]
    out = tmp_path / "out"
    (out / "data").mkdir(parents=True)
    (out / "data" / "mine.csv").write_text("mine")
    write_report(tmp_path / "results", out)
    (out / "report.html").unlink()  # as after a kill: what is there is ours
    write_report(tmp_path / "results", out)
    assert (out / "data" / "mine.csv").read_text() == "mine"
