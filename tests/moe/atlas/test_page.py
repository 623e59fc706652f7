"""The page of an atlas is one file that refers to nothing outside, trusts no text, and replaces no file of somebody else."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.loaded import loaded_by
from tests.moe.atlas.made_record import HOSTILE, SCRIPT
from tests.reporting.synthetic import small
from tests.reporting.test_page import Parsed
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.moe.atlas.aggregate import aggregate, as_script
from unmask.moe.atlas.page import NAME, number
from unmask.moe.routing.record import read_record

ATLASES = ["small_atlas", "strange_atlas", "two_atlases"]


@pytest.fixture(scope="module", params=ATLASES)
def atlas(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def page(atlas: Path) -> Parsed:
    return Parsed(atlas.read_text("utf-8"))


def scripts(page: Parsed) -> list[tuple[dict[str, str], str]]:
    return [(attributes, "".join(texts)) for name, attributes, texts in page.elements if name == "script"]


def data_of(page: Parsed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(scripts(page)[0][1])
    return found


def test_it_refers_to_nothing_outside(atlas: Path, page: Parsed) -> None:
    for _, attributes, _ in page.elements:
        assert not {"src", "srcset", "action"} & set(attributes)
    assert not page.all("link") and not re.search(r"@import|url\(", "".join(text for _, text in page.all("style")))
    identifiers = Counter(attributes["id"] for _, attributes, _ in page.elements if "id" in attributes)
    assert max(identifiers.values()) == 1
    assert all(attributes["href"][0] == "#" and attributes["href"][1:] in identifiers for attributes, _ in page.all("a"))


def test_the_data_are_those_of_the_record(small_atlas: Path, small_record: Path) -> None:
    assert as_script(data_of(Parsed(small_atlas.read_text("utf-8")))) == as_script([aggregate(read_record(small_record))])


def test_texts_and_names_are_text(strange_atlas: Path) -> None:
    html = strange_atlas.read_text("utf-8")
    page = Parsed(html)
    assert SCRIPT not in html and "<img" not in html
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e\u2028]", html)
    [data] = data_of(page)
    assert data["model"] == SCRIPT and SCRIPT in data["heat"][1]["values"]
    assert SCRIPT in page.all("h1")[0][1] and SCRIPT in page.all("title")[0][1]
    texts = ["".join(text["parts"]) for text in data["shown"]]
    assert any(HOSTILE[:30] in text and "\\u202eabc" in text and "\\x1b[31m" in text for text in texts)


def test_measures_are_in_the_page_without_a_script(small_atlas: Path, small_record: Path) -> None:
    known = json.loads((small_record / "measures.json").read_text("utf-8"))
    page = Parsed(small_atlas.read_text("utf-8"))
    rows = {text for _, text in page.all("tr")}
    for name, measure in known["general"].items():
        low, high = measure["interval"]
        assert any(row.startswith(f"{name} {number(measure['corrected'])}[{number(low)}, {number(high)}]") for row in rows), (
            name
        )
    assert "what there is to know about \u201cdomain\u201d" in page.all("p", class_="lead")[0][1]


def test_the_command_knows_records_from_comparisons(small_record: Path, tmp_path: Path) -> None:
    run = CliRunner()
    (tmp_path / "scores").mkdir()
    small().write(tmp_path / "scores")
    done = run.invoke(app, ["report", str(small_record), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0 and str(tmp_path / "out" / NAME) in done.output.replace("\n", "")
    done = run.invoke(app, ["report", str(small_record), str(small_record), "-o", str(tmp_path / "two")])
    assert done.exit_code == 0 and "side by side" in (tmp_path / "two" / NAME).read_text("utf-8")
    done = run.invoke(app, ["report", str(tmp_path / "scores"), "-o", str(tmp_path / "report")])
    assert done.exit_code == 0 and (tmp_path / "report" / "report.html").is_file()
    for folders, said in (
        ([small_record, tmp_path / "scores"], "contains no routing record"),
        ([small_record] * 3, "one routing record or two"),
        ([tmp_path / "scores"] * 2, "contains no routing record"),
    ):
        done = run.invoke(app, ["report", *map(str, folders), "-o", str(tmp_path / "no")])
        assert isinstance(done.exception, UnmaskError) and said in str(done.exception)
        assert not (tmp_path / "no").exists()


def test_it_needs_no_model(small_record: Path, tmp_path: Path) -> None:
    code = "from unmask.moe.atlas.page import write_atlas; write_atlas(given[:1], given[1])"
    assert loaded_by(code, small_record, tmp_path) == set()
