"""The tables of docs/results.md and the README follow from kept results, which tell nothing of the machine that made them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.cases import cases
from tools.results import kept, pages

MEASURED = pages.ROOT / "docs" / "measured"
KEPT = sorted((pages.ROOT / kept.FOLDER).iterdir())


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_tables_are_what_kept_results_give(name: str) -> None:
    text = (pages.ROOT / name).read_text(encoding="utf-8")
    assert text == pages.page(text), "write them again: python -m tools.results"


@pytest.mark.parametrize("name", pages.PAGES)
def test_no_number_is_typed(name: str) -> None:
    """If this fails: let a table tell the number, or say in words what the table shows."""
    assert pages.typed_numbers((pages.ROOT / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It scores 71.2 there.", ["71.2"]),
        ("Signs gain 12 points, and lose 5.6 points.", ["12 points", "5.6"]),
        (
            "It is 3 times as fast, 2x, and takes 98 % of the 12,622 or 1 379 tokens.",
            ["3 times", "2x", "98 %", "12,622", "1 379"],
        ),
        ("Text.\n| mean | 37 |\nText of 37.", ["| mean | 37 |"]),
        ("Between <!-- table: a.json scores -->\n71.2\n<!-- end --> and 71.3 after.", ["71.3"]),
        ("## Version 1.5 of 12 points\n12 points", ["12 points"]),
        ("```\npython -m x --share 0.5\n```\n`@0.5` and [it](page-1.5.md) and 0.7", ["0.7"]),
        ("unmask 0.1.0 needs Python 3.11, as in arXiv 2404.05961. It has 135M parameters and takes layer 20 of 30.", []),
        ("Scores x 100 of the 47 designs, the first ten, in `max`.", []),
    ],
)
def test_a_typed_number_is_seen(text: str, numbers: list[str]) -> None:
    assert pages.typed_numbers(text) == numbers


def test_every_kept_result_is_shown() -> None:
    assert set(pages.shown()) == set(KEPT)


def test_a_stale_table_is_written_again() -> None:
    text = (pages.ROOT / "README.md").read_text(encoding="utf-8")
    stale = text.replace("| **77.5** |", "| **78.5** |")
    assert stale != text and pages.page(stale) == text


def test_a_section_of_a_report_is_taken_over_whole(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    report = tmp_path / "docs" / "report.md"
    report.write_text("# Report\n## Conclusion\n- One: 1.5.\n- Two.\n\n## Tables\n| 3.5 |\n", encoding="utf-8")
    text = "Before.\n<!-- section: report.md Conclusion -->\nold: 2.5\n<!-- end -->\nAfter."
    written = pages.page(text, tmp_path)
    assert written == "Before.\n<!-- section: report.md Conclusion -->\n- One: 1.5.\n- Two.\n<!-- end -->\nAfter."
    assert pages.typed_numbers(written) == []
    with pytest.raises(SystemExit, match=r"'report\.md' has no section 'Summary'"):
        pages.page(text.replace("Conclusion", "Summary"), tmp_path)


def texts_of(file: Path) -> dict[str, str]:
    """The text of a file, or those of an archive without its arrays."""
    if file.suffix != ".zip":
        return {file.name: file.read_text(encoding="utf-8")}
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if not name.endswith(".npz")}


@cases("file", [file for file in sorted(MEASURED.rglob("*")) if file.is_file()])
def test_no_kept_file_holds_a_path_of_a_machine(file: Path) -> None:
    for name, text in texts_of(file).items():
        assert not kept.MACHINE.search(name + "\n" + text), name


@pytest.mark.parametrize("path", ["/home/me/data", "/work/runs", "/tmp/x", "~/data", "C:\\\\data", '"/Users/me"'])
def test_a_path_of_a_machine_is_seen(path: str) -> None:
    assert kept.MACHINE.search(f"-t {path}")


def test_designs_and_addresses_are_no_paths_of_a_machine() -> None:
    for text in ('causal/"{text}"/last/zscore', "https://host/home/page", "DATA/stsb/dev.jsonl", "q: w/work/x"):
        assert not kept.MACHINE.search(text)


def test_the_gain_that_other_pages_tell_is_the_measured_one() -> None:
    first = json.loads((pages.ROOT / kept.FOLDER / "stsb-prompt.json").read_text(encoding="utf-8"))["tests"][0]
    assert (first["a"], first["b"], first["told_apart"]) == ("subject-three-examples-z", "prompteol-z", True)
    how_to = (pages.ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
    assert f"worth {100 * first['difference']:.0f} points over `prompteol-z` ([table](results.md#" in how_to
