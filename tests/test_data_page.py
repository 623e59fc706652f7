"""docs/data.md names the folders that recipes, studies and pages need. With the data at hand, its facts are theirs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import grow
from tests.cases import cases
from tests.conftest import whole
from tests.test_docs import blocks
from tools import claims
from tools.data_page import facts, needs
from tools.data_page.page import page
from unmask.cli import app
from unmask.studies.engine import load_plan
from unmask.training.recipe import load_recipe, shipped

PAGE = needs.PAGE.read_text(encoding="utf-8")
ROWS = {
    found[1]: found[0].strip("| ").split(" | ")
    for found in re.finditer(r"^\| `([\w-]+)`(?: \([\w-]+\))?: .*$", PAGE, flags=re.MULTILINE)
}


def strings(value: Any) -> Iterator[str]:
    """The strings of nested tables and lists."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from strings(part)


def paths(plan: Any, tasks: Any) -> Iterator[str]:
    """What of a recipe or plan lies in the data folder: its files, wherever they are named, and its tasks."""
    for name in strings(plan):
        if re.search(r"\.(jsonl|txt)(#\d+)?$", name) and " " not in name:
            yield name.partition("#")[0]
    yield from (name.partition("#")[0] for name in strings(tasks) if not name.startswith("starter"))


def of_recipes() -> Iterator[tuple[str, str]]:
    for name in shipped():
        recipe = load_recipe(name, "small")
        for path in paths(
            [recipe.model_dump(), *(source.path for source in recipe.data.values())], recipe.evaluation.model_dump()
        ):
            yield name, path


def of_studies() -> Iterator[tuple[str, str]]:
    for study in claims.PAPERS:
        plan = claims.plan_of(study)
        yield from ((study, path) for path in paths(plan.model_dump(exclude={"claims"}), getattr(plan, "tasks", ())))


@cases("plan, path", sorted({*of_recipes(), *of_studies()}))
def test_what_a_recipe_or_study_reads_is_on_the_page(plan: str, path: str) -> None:
    """If this fails: describe the folder in tools/data_page/sets.toml, and `python -m tools.data_page DATA`."""
    folder, _, file = path.partition("/")
    if folder.endswith(".jsonl"):
        assert re.search(f"`{re.escape(folder)}`[^|]* of your own", PAGE)
    else:
        assert folder in ROWS, plan
        assert f"`{file}`" in ROWS[folder][1] or not file


def test_what_commands_of_pages_read_is_on_the_page() -> None:
    assert {folder for folder in needs.pages_of_folders() if f"`{folder}`" not in PAGE} == set()


def test_what_the_growth_of_a_mixture_reads_is_on_the_page() -> None:
    needed = PAGE.partition("benchmarks.grow")[2].partition("At the scale `paper`")[0]
    code = Path(str(grow.__file__)).read_text(encoding="utf-8")
    files = re.findall(r'"(\w+)/\w+\.(?:jsonl|txt)"', code)
    assert {*re.findall(r"`(\w+)`", needed)} == {*files, *(task.partition("#")[0] for task in grow.TASKS)}


def test_data_of_the_paper_scale_is_described_or_said_not_to_be() -> None:
    for path in paths(load_plan("self-moe", "paper").model_dump(exclude={"claims"}), ()):
        assert f"`{path.partition('/')[0]}`" in PAGE


def test_the_page_is_what_the_tool_writes() -> None:
    assert page(facts.kept_facts()) == PAGE, "write it again: python -m tools.data_page"


def test_the_facts_are_those_of_the_data(data: Path) -> None:
    assert facts.find_facts(data) == facts.kept_facts(), "find them again: python -m tools.data_page DATA"


def test_relatives_are_sets_of_the_page() -> None:
    table = PAGE.partition("## Relatives")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*)\| (`.*) \|", table, flags=re.MULTILINE)
    assert rows
    assert {name for row in rows for cell in row for name in re.findall(r"`(\w+)`", cell)} <= set(ROWS)


def test_commands_of_the_page_read_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"anchor": f"question {number}", "positive": f"answer {number}"} for number in range(64)]  # a batch
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for line in "\n".join(blocks(needs.PAGE, "")).splitlines():
        words = shlex.split(line.replace("DATA", "."), comments=True)[1:]
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output
        assert words[1] == "copy" or "64 pairs\nok" in told.output
    assert (tmp_path / "mine.toml").is_file()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set with two files of the same columns, one of others, and a text."""
    (tmp_path / "a.jsonl").write_text('{"text": "x", "tags": ["y"]}\n{"text": "z", "tags": []}\n', encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "x", "tags": []}\n', encoding="utf-8")
    (tmp_path / "c.tsv").write_text("one\ttwo\n1\t2\n", encoding="utf-8")
    (tmp_path / "d.txt").write_text("x\ny\n", encoding="utf-8")
    provenance = "source: github.com/me/set@1:x\nlicence as stated: MIT\noverlap: 2 rows with a text [a 2] and 30 more equal but for case\n"
    (tmp_path / facts.PROVENANCE).write_text(provenance, encoding="utf-8")
    return tmp_path


def test_files_are_counted_and_named_with_their_columns(folder: Path) -> None:
    assert list(facts.files_of(folder)) == [
        "`a.jsonl` 2, `b.jsonl` 1: `text, tags[]`",
        "`c.tsv` 1: `one, two`",
        "`d.txt` 2: lines of text",
    ]


def test_what_provenance_tells(folder: Path) -> None:
    found = facts.facts_of(folder, "text")
    assert (found["kind"], found["licence"], found["left_out"]) == ("", "MIT", 32)


def test_sources_are_links_to_the_commit() -> None:
    assert list(facts.sources_of("github.com/me/set@1f:a/{b,c}.csv; github.com/me/set@1f:d; github.com/you/set@2:e")) == [
        "[me/set](https://github.com/me/set/tree/1f): `a/{b,c}.csv`, `d`",
        "[you/set](https://github.com/you/set/tree/2): `e`",
    ]


def test_a_data_folder_updates_its_own_sets_and_no_others(folder: Path, tmp_path: Path) -> None:
    data, kept = tmp_path / "data", facts.kept_facts()
    data.mkdir()
    shutil.copytree(folder, data / "boolq", ignore=shutil.ignore_patterns("data"))
    found = facts.find_facts(data)
    assert found["boolq"] == facts.facts_of(data / "boolq", "text") != kept["boolq"]
    assert found | {"boolq": kept["boolq"]} == kept and list(found) == list(kept)
    (data / "boolq").rename(data / "another")
    with pytest.raises(SystemExit, match=r"sets\.toml does not describe another"):
        facts.find_facts(data)


def test_a_folder_without_a_set_is_refused(folder: Path) -> None:
    with pytest.raises(SystemExit, match="holds no set"):
        facts.find_facts(folder)


def test_a_described_set_needs_facts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "data" / "boolq", ignore=shutil.ignore_patterns("data"))
    monkeypatch.setattr(facts, "WORDS", {"text": {"boolq": {"what": "x"}, "another": {"what": "y"}}})
    with pytest.raises(SystemExit, match="lacks another"):
        facts.find_facts(tmp_path / "data")


def test_a_provenance_that_lacks_a_line_is_refused(folder: Path) -> None:
    (folder / facts.PROVENANCE).write_text("source: github.com/me/set@1:x\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no line 'licence as stated: "):
        facts.facts_of(folder, "text")


def test_tests_of_real_data_skip_with_a_part_of_it(tmp_path: Path) -> None:
    sets = sorted(facts.kept_facts())
    for name in sets:
        (tmp_path / name).mkdir()
    for name in sets[1:]:
        (tmp_path / name / facts.PROVENANCE).touch()
    with pytest.raises(pytest.skip.Exception, match=f"missing: {sets[0]}$"):
        whole(tmp_path)
    (tmp_path / sets[0] / facts.PROVENANCE).touch()
    assert whole(tmp_path) == tmp_path


def test_a_replaced_path_keeps_the_columns_of_its_set_unless_they_are_cleared() -> None:
    path, cleared = "data.news.path=mine.jsonl", "data.news.columns={}"
    kept = load_recipe("llm2vec", "small", [path]).data["news"]
    assert (kept.path, kept.columns) == ("mine.jsonl", {"text": "text"})
    assert load_recipe("llm2vec", "small", [path, cleared]).data["news"].columns == {}
