"""Records of runs: what is written is read again, as are records of older versions, and what is no record is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.io.seals import read_record, write_record
from unmask.training.records import BaseRecord, DataRecord, DataSetRecord, LeakCounts, RunRecord

DATA = {"mntp": {"wiki": {"path": "wiki.txt", "examples": 5, "revision": "ab12", "left out": {"empty": 2}, "leaks": {}}}}
RUN = {"design": "causal/plain/mean", "seed": 0, "data": DATA, "trains": {}, "hardware": "CPU", "versions": {}, "scores": {}}


def test_a_record_of_data_has_its_stages_beside_the_recipe(tmp_path: Path) -> None:
    leaks = {"stsb": LeakCounts(exact=1, near=2, pairs=3, texts="ef56")}
    wiki = DataSetRecord(path="wiki.txt", examples=5, revision="ab12", left_out={"empty": 2}, leaks=leaks)
    record = DataRecord(stages={"mntp": {"wiki": wiki}}, recipe="cd34")
    record.write(tmp_path / "data.json")
    assert DataRecord.read(tmp_path / "data.json") == record
    written = read_record(tmp_path / "data.json")
    assert written is not None and list(written) == ["mntp", "recipe"]
    assert written["mntp"]["wiki"]["left out"] == {"empty": 2}
    assert written["mntp"]["wiki"]["leaks"] == {"stsb": {"exact": 1, "near": 2, "pairs": 3, "texts": "ef56"}}


def test_records_of_older_versions_are_read(tmp_path: Path) -> None:
    old = json.loads(json.dumps(DATA))
    old["mntp"]["wiki"]["leaks"] = {"stsb": {"exact": 1, "near": 0}}
    write_record(tmp_path / "data.json", old)
    data = DataRecord.read(tmp_path / "data.json")
    assert data is not None and data.recipe is None
    assert data.stages["mntp"]["wiki"].leaks == {"stsb": LeakCounts(exact=1, near=0, pairs=0)}
    write_record(tmp_path / "run.json", RUN | {"of a later version": 1})
    run = RunRecord.read(tmp_path / "run.json")
    write_record(tmp_path / "base.json", {"model": "pico", "weights": "ab12"})
    base = BaseRecord.read(tmp_path / "base.json")
    assert base is not None and base.precision is None
    assert run is not None and (run.base, run.data["mntp"]["wiki"].left_out) == (None, {"empty": 2})
    assert run.data["mntp"]["wiki"].files is None


def test_no_file_is_no_record_and_another_file_is_refused(tmp_path: Path) -> None:
    assert BaseRecord.read(tmp_path / "base.json") is None
    write_record(tmp_path / "base.json", {"model": "pico"})
    with pytest.raises(UnmaskError, match=r"base\.json' is not what this version of unmask wrote: weights: it is missing\."):
        BaseRecord.read(tmp_path / "base.json")
