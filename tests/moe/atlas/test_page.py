"""The page of an atlas is one file that refers to nothing outside, trusts no text, and shows what was measured."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.loaded import loaded_by
from tests.moe.atlas.conftest import HOSTILE, SCRIPT
from tests.reporting.synthetic import small
from tests.reporting.test_page import Parsed
from unmask.cli import app
from unmask.moe.atlas.aggregate import aggregate, as_script
from unmask.moe.atlas.page import NAME, number
from unmask.moe.routing.record import read_record


def data_of(page: Parsed) -> Any:
    return json.loads(next("".join(texts) for name, _, texts in page.elements if name == "script"))


@pytest.mark.parametrize("name", ["small_atlas", "strange_atlas"])
def test_it_refers_to_nothing_outside(name: str, request: pytest.FixtureRequest) -> None:
    page = Parsed(request.getfixturevalue(name).read_text("utf-8"))
    assert not any({"src", "srcset", "action"} & set(attributes) for _, attributes, _ in page.elements)
    assert not page.all("link") and not re.search(r"@import|url\(", "".join(text for _, text in page.all("style")))
    identifiers = Counter(attributes["id"] for _, attributes, _ in page.elements if "id" in attributes)
    assert max(identifiers.values()) == 1
    assert all(attributes["href"][0] == "#" and attributes["href"][1:] in identifiers for attributes, _ in page.all("a"))


def test_texts_and_names_are_text(strange_atlas: Path) -> None:
    html = strange_atlas.read_text("utf-8")
    page = Parsed(html)
    assert SCRIPT not in html and "<img" not in html
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e\u2028]", html)
    data = data_of(page)
    assert data["model"] == SCRIPT and SCRIPT in data["heat"][1]["values"]
    assert SCRIPT in page.all("h1")[0][1] and SCRIPT in page.all("title")[0][1]
    texts = ["".join(text["parts"]) for text in data["shown"]]
    assert any(HOSTILE[:30] in text and "\\u202eabc" in text and "\\x1b[31m" in text for text in texts)


def test_data_and_measures_are_those_of_the_record(small_atlas: Path, small_record: Path) -> None:
    page = Parsed(small_atlas.read_text("utf-8"))
    assert as_script(data_of(page)) == as_script(aggregate(read_record(small_record)))
    measures = json.loads((small_record / "measures.json").read_text("utf-8"))
    rows = [text for _, text in page.all("tr")]
    of_labels = [measure for label in measures["labels"].values() for measure in label["measures"].items()]
    for name, measure in (*measures["general"].items(), *of_labels):
        low, high = measure["interval"]
        shown = f"{name} {number(measure['corrected'])}[{number(low)}, {number(high)}]"
        assert any(row.startswith(shown) for row in rows), name
    assert "what there is to know about \u201cdomain\u201d" in page.all("p", class_="lead")[0][1]


def test_the_command_knows_records_from_comparisons(small_record: Path, tmp_path: Path) -> None:
    (tmp_path / "scores").mkdir()
    small().write(tmp_path / "scores")
    for folder, name in ((small_record, NAME), (tmp_path / "scores", "report.html")):
        done = CliRunner().invoke(app, ["report", str(folder), "-o", str(tmp_path / name)])
        assert done.exit_code == 0 and (tmp_path / name / name).is_file()


def test_it_needs_no_model(small_record: Path, tmp_path: Path) -> None:
    code = "from unmask.moe.atlas.page import write_atlas; write_atlas(given[0], given[1])"
    assert loaded_by(code, small_record, tmp_path) == set()
