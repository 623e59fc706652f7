"""Plans, digests, tables and results: what every study shares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.studies.synthetic import made_findings
from unmask.errors import UnmaskError
from unmask.models.source import Source
from unmask.studies.plan import digest_of
from unmask.studies.results import (
    RECORD,
    REPORT,
    RESULTS,
    StudyResults,
    is_study,
    read_results,
    refuse_foreign_files,
    refuse_several,
)
from unmask.studies.sheet import Sheet
from unmask.studies.study import Study

TABLE = Sheet("Scores", ("", "sts"), (("a", "1.0"),), "A note.")


class MadeFindings:
    """Findings with these numbers."""

    claims = made_findings()

    def __init__(self, numbers: dict[Any, object]) -> None:
        self.numbers = {"model": "pico", **numbers}

    def as_json(self) -> dict[Any, object]:
        return self.numbers

    def tables(self) -> list[Sheet]:
        return [TABLE]

    terminal_tables = tables

    def report(self, _: Path) -> str:
        return TABLE.markdown()


def started(folder: Path) -> Study:
    run = Study("moee", "small", Source("pico", device="cpu"), Path(), folder, "unmask reproduce moee")
    with run.open(plan={"scale": "small"}) as opened:
        run.start(opened, {"scale": "small"}, paper="MoEE", data={"sts": "1"}, rests_on={"model a": "2"})
    return run


def write(folder: Path, numbers: dict[Any, object], finished: bool = True) -> dict[str, object]:
    started(folder).publish(MadeFindings(numbers), finished=finished)
    content: dict[str, object] = json.loads((folder / RESULTS).read_text())
    return content


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    content = write(tmp_path, {"scores": {"a": [0.5]}, "lost": float("nan"), 3: 1}, finished=False)  # type: ignore[dict-item]
    assert content["scores"] == {"a": [0.5]} and content["base_weights"] and content["model"] == "pico"
    read = read_results(tmp_path)
    assert list(read.claims) == made_findings() and read.tables == (TABLE,)
    assert (read.study, read.paper, read.model, read.data) == ("moee", "MoEE", "pico", {"sts": "1"})
    assert read.rests_on == {"model a": "2"}
    assert not read.finished and not read.smoke and read.scale == "small"
    assert read.hardware.startswith("cpu") and "torch" in read.versions
    assert set(StudyResults.model_fields) - {"conclusion"} <= set(content), "not every study draws a conclusion"


def test_the_same_results_keep_their_date(tmp_path: Path) -> None:
    for finished in (False, True):
        write(tmp_path, {"lost": float("nan"), "size": {2: 0.1}}, finished)
    content = json.loads((tmp_path / RESULTS).read_text())
    (tmp_path / RESULTS).write_text(json.dumps({**content, "date": "2001-02-03"}))
    run = started(tmp_path)
    numbers: dict[Any, object] = {"lost": float("nan"), "size": {2: 0.1}}
    for finished in (False, True):  # as a study does that writes on its way
        run.publish(MadeFindings(numbers), finished=finished)
    assert read_results(tmp_path).date == "2001-02-03"
    assert write(tmp_path, {"size": {2: 0.2}})["date"] != "2001-02-03"


def test_results_name_every_machine_that_measured(tmp_path: Path) -> None:
    """A study may be begun on a GPU and finished on a laptop, which measures nothing twice."""
    provenance: list[dict[str, Any]] = [
        {"hardware": "gpu", "versions": {"torch": "2.11", "unmask": "0.1"}},
        {"hardware": "cpu", "versions": {"torch": "2.13", "unmask": "0.1"}},
        {"attention": "of an older version, which kept no more"},
    ]
    started(tmp_path).publish(MadeFindings({}), provenance=provenance)
    read = read_results(tmp_path)
    assert read.hardware == "cpu, gpu" and read.versions == {"torch": "2.11, 2.13", "unmask": "0.1"}
    started(tmp_path / "older").publish(MadeFindings({}), provenance=provenance[2:])
    assert read_results(tmp_path / "older").hardware.startswith("cpu (")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"study": "moee"}', "\udc80"])
def test_a_damaged_file_is_refused_and_written_anew(content: str, tmp_path: Path) -> None:
    started(tmp_path)
    (tmp_path / RESULTS).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnmaskError, match="Run the command of the study again"):
        read_results(tmp_path)
    write(tmp_path, {})
    assert read_results(tmp_path).paper == "MoEE"


def test_what_lies_beside_a_record_is_replaced(tmp_path: Path) -> None:
    started(tmp_path)
    for name in (RESULTS, REPORT):
        (tmp_path / name).write_text("damaged, or of an earlier version")
    refuse_foreign_files(tmp_path)
    (tmp_path / RECORD).unlink()
    write(tmp_path, {})
    refuse_foreign_files(tmp_path)


def test_a_study_is_known_by_its_files(tmp_path: Path) -> None:
    assert not is_study(tmp_path)
    refuse_several(tmp_path)
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("study.json" if name == "a" else RESULTS)).touch()
    assert is_study(tmp_path / "a") and is_study(tmp_path / "b") and not is_study(tmp_path)
    with pytest.raises(UnmaskError, match=f"{tmp_path / 'a'}, {tmp_path / 'b'}"):
        refuse_several(tmp_path)


SETTINGS = {"lr": 0.1, "steps": 0, "on": True, "parts": [{"a": 1}, {}]}


@pytest.mark.parametrize(
    "changed",
    [{"lr": 0.2}, {"steps": None}, {"on": False}, {"on": 1.0}, {"parts": [{}, {"a": 1}]}, {"parts": [{"a": 1}]}, {"more": 0}],
)
def test_any_change_shows(changed: dict[str, object]) -> None:
    assert digest_of({**SETTINGS, **changed}) != digest_of(SETTINGS)


@pytest.mark.parametrize("off", [None, False, [], {}, "", {"deep": {"none": None}}])
def test_a_new_option_that_is_off_and_the_order_of_keys_change_nothing(off: object) -> None:
    assert digest_of({"new": off, **dict(reversed(SETTINGS.items()))}) == digest_of(SETTINGS)


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    columns = ("", "words", "points", "p", "empty", "mixed")
    rows = (("1", "b", "+1.5 [-0.2, 3.2]", "< 0.001", "", "3"), ("2", "a 3", "**-2**", "", "", "none"))
    sheet = Sheet("Title", columns, rows, "A note.")
    assert sheet.markdown().splitlines() == [
        "## Title",
        "|  | words | points | p | empty | mixed |",
        "| --- | --- | --: | --: | --: | --- |",
        "| 1 | b | +1.5 [-0.2, 3.2] | < 0.001 |  | 3 |",
        "| 2 | a 3 | **-2** |  |  | none |",
        "",
        "A note.",
    ]
    assert [column.justify for column in sheet.rich().columns] == ["left", "left", "right", "right", "right", "left"]
