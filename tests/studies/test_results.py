"""`results.json`: every study says the same of itself, the same results keep their date, and what is read is what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.studies.claims.made import made, made_findings
from unmask.errors import UnmaskError
from unmask.moe.experts.records import RunRecord
from unmask.studies import results_file
from unmask.studies.results import (
    RECORD,
    REPORT,
    RESULTS,
    ResultsFile,
    StudyResults,
    is_study,
    read_results,
    refuse_foreign_files,
    refuse_several,
)
from unmask.studies.sheet import Sheet

TABLE = Sheet("Scores", ("", "sts"), (("a", "1.0"),), "A note.")


def results_of(folder: Path) -> ResultsFile:
    record = RunRecord(base="pico", base_weights="1")
    return ResultsFile(
        folder, record, torch.device("cpu"), study="moee", paper="MoEE", command="unmask reproduce moee", scale="small",
        data={"sts": "1"}, rests_on={"model a": "2"},
    )  # fmt: skip


def write(folder: Path, numbers: dict[str, object], finished: bool = True) -> dict[str, object]:
    results_of(folder).write({"model": "pico", **numbers}, made_findings(), [TABLE], finished=finished)
    content: dict[str, object] = json.loads((folder / RESULTS).read_text())
    return content


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    content = write(tmp_path, {"scores": {"a": [0.5]}, "lost": float("nan"), 3: 1}, finished=False)  # type: ignore[dict-item]
    assert content["scores"] == {"a": [0.5]} and content["base_weights"] == "1"
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
    file = results_of(tmp_path)
    numbers = {"model": "pico", "lost": float("nan"), "size": {2: 0.1}}
    for finished in (False, True):  # as a study does that writes on its way
        file.write(numbers, made_findings(), [TABLE], finished=finished)
    assert read_results(tmp_path).date == "2001-02-03"
    assert write(tmp_path, {"size": {2: 0.2}})["date"] != "2001-02-03"


def test_results_name_every_machine_that_measured(tmp_path: Path) -> None:
    """A study may be begun on a GPU and finished on a laptop, which measures nothing twice."""
    provenance: list[dict[str, Any]] = [
        {"hardware": "gpu", "versions": {"torch": "2.11", "unmask": "0.1"}},
        {"hardware": "cpu", "versions": {"torch": "2.13", "unmask": "0.1"}},
        {"attention": "of an older version, which kept no more"},
    ]
    results_of(tmp_path).write({"model": "pico"}, made_findings(), [TABLE], provenance=provenance)
    read = read_results(tmp_path)
    assert read.hardware == "cpu, gpu" and read.versions == {"torch": "2.11, 2.13", "unmask": "0.1"}
    results_of(tmp_path / "older").write({"model": "pico"}, made_findings(), [TABLE], provenance=provenance[2:])
    assert read_results(tmp_path / "older").hardware.startswith("cpu (")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"study": "moee"}', "\udc80"])
def test_a_damaged_file_is_refused_and_written_anew(content: str, tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnmaskError, match="Run the command of the study again"):
        read_results(tmp_path)
    write(tmp_path, {})
    assert read_results(tmp_path).paper == "MoEE"


def test_what_lies_beside_a_record_is_replaced(tmp_path: Path) -> None:
    RunRecord(base="pico").write(tmp_path / RECORD)
    for name in (RESULTS, REPORT):
        (tmp_path / name).write_text("damaged, or of an earlier version")
    refuse_foreign_files(tmp_path)
    (tmp_path / RECORD).unlink()
    write(tmp_path, {})
    refuse_foreign_files(tmp_path)


def test_a_folder_is_called_by_its_last_part() -> None:
    assert StudyResults.model_validate(made()).name == "base & model"
    assert StudyResults.model_validate(made(model="Qwen/Qwen3-0.6B")).name == "Qwen/Qwen3-0.6B"


def test_a_study_is_known_by_its_files(tmp_path: Path) -> None:
    assert not is_study(tmp_path)
    refuse_several(tmp_path)
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("study.json" if name == "a" else RESULTS)).touch()
    assert is_study(tmp_path / "a") and is_study(tmp_path / "b") and not is_study(tmp_path)
    with pytest.raises(UnmaskError, match=f"{tmp_path / 'a'}, {tmp_path / 'b'}"):
        refuse_several(tmp_path)


def test_versions_and_hardware_are_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_file, "versions", lambda: {"torch": "0"})
    monkeypatch.setattr(results_file, "hardware", lambda device: f"a {device.type}")
    content = write(tmp_path, {})
    assert content["versions"] == {"torch": "0"} and content["hardware"] == "a cpu"
    monkeypatch.setattr(results_file, "versions", lambda: {"torch": "1"})
    assert write(tmp_path, {}) == content, "nothing was measured again"
    assert write(tmp_path, {"scores": {"a": 0.1}})["versions"] == {"torch": "1"}
