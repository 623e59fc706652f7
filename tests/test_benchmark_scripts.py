"""Scripts in benchmarks/ still run. A new one is tested by existing; it needs a `main(arguments)` that knows `--smoke`."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import _inputs, _report, grow, lexical
from benchmarks._report import Report, cells
from tests.proofs import ALL
from tests.training.running import ended, forked
from tools.results.benchmark import benchmark
from unmask import Embedder

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("_"))
KEEPING = {name for name in SCRIPTS if "_report" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")}
"""Those that write a report."""
ONE_OF_A_KIND = ("chunks", "encode", "train")
"""What `make test` runs. It imports the others and reads their options; `make test-all` runs all."""
WITHOUT_DATA = {"few_differences", "mixture", "routing_record", "seeds", "writing"}
"""Those that read nothing of the data folder."""


class Copy:
    """`python -m MODULE ...` in a copy of this process, which spares the imports: three servers would take a quarter of a minute."""

    def __init__(self, words: Sequence[str], **_: Any) -> None:
        python, option, module, *rest = words
        assert (python, option) == (sys.executable, "-m")

        def work() -> None:
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)

        self.pid = forked(work)

    def poll(self) -> int | None:
        return None if Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" else 1

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> int:
        return ended(self.pid)


@pytest.mark.parametrize("name", SCRIPTS if ALL else ONE_OF_A_KIND)
def test_a_benchmark_runs_at_smoke_size(
    name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, script = tmp_path / "kept.json", importlib.import_module(f"benchmarks.{name}")
    if name == "serve" and not ALL:
        monkeypatch.setattr(script, "subprocess", SimpleNamespace(Popen=Copy, DEVNULL=subprocess.DEVNULL))
    script.main(["--smoke", *(["--keep", str(file)] if name in KEEPING else [])])
    printed = capfd.readouterr().out
    assert printed.strip()
    if name in KEEPING:
        kept = json.loads(file.read_text(encoding="utf-8"))
        assert kept["command"] == f"python -m benchmarks.{name} --smoke" and set(kept) >= {"hardware", "versions"}
        tables = [part for part in kept["parts"] if not isinstance(part, str)]
        assert tables and all(table["rows"] for table in tables)
        shown = [text for table in tables for row in table["rows"] for text in cells(table["columns"], row)]
        assert all(text in printed and text in benchmark(kept) for text in shown)


@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - set(ONE_OF_A_KIND)))
def test_a_benchmark_tells_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert ended.value.code == 0 and "--smoke" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - WITHOUT_DATA))
def test_a_benchmark_without_its_data_says_so_in_one_sentence(name: str, tmp_path: Path) -> None:
    given = {"grow": ["-o", str(tmp_path)], "scale": ["--measure"]}
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main(given.get(name, []))
    assert re.fullmatch(
        r"UNMASK_DATA is not set: let UNMASK_DATA name a folder with .+ \(docs/data.md\), or give --smoke\.",
        str(ended.value.code),
    )


def test_a_file_that_the_data_folder_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    (tmp_path / "stsb").mkdir()
    with pytest.raises(SystemExit, match=r"lacks stsb/test\.jsonl: let UNMASK_DATA name"):
        _inputs.rows("stsb/test.jsonl", smoke=False)
    (tmp_path / "stsb" / "test.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    assert _inputs.rows("stsb/test.jsonl", smoke=False) == [{"text": "x"}]
    with pytest.raises(SystemExit, match=r"lacks scifact/queries\.jsonl, scifact/qrels_test\.tsv: "):
        (tmp_path / "scifact").mkdir()
        (tmp_path / "scifact" / "corpus.jsonl").touch()
        _inputs.retrieval("scifact", smoke=False)


def test_a_task_that_cannot_be_read_ends_a_growth_before_its_first_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    monkeypatch.setattr(grow, "write_domains", lambda *_: pytest.fail("tasks are read first"))
    for name in (task.partition("#")[0] for task in grow.TASKS):
        (tmp_path / name).mkdir()
        shutil.copy(_inputs.STARTER["sts"] / "test.jsonl", tmp_path / name)
    (tmp_path / "subj" / "test.jsonl").unlink()
    with pytest.raises(SystemExit, match="subj' is no task folder") as ended:
        grow.main(["-o", str(tmp_path / "grown")])
    assert isinstance(ended.value.code, str) and not capsys.readouterr().out


def test_there_are_benchmarks() -> None:
    assert set(ONE_OF_A_KIND) <= set(SCRIPTS)
    assert {"bulk", "chat_template", "chunks", "drift", "encode", "grid", "precisions", "search"} <= KEEPING


@pytest.mark.parametrize("given", ["--keep FILE --texts 3", "--texts 3 --keep=FILE", "--texts 3"])
def test_a_report_tells_its_command_without_the_file(given: str, tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    with Report("here/drift.py", given.replace("FILE", str(file)).split()) as report:
        table = report.table("Title", {"name": "`{}`", "score": "{:.1f}"})
        table.add("a", 0.25)
        table.add("b", None)
        report.note("A note.")
    assert report.command == "python -m benchmarks.drift --texts 3"
    assert file.exists() is ("--keep" in given)
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        assert kept["parts"][0]["rows"] == [["a", 0.25], ["b", None]] and kept["parts"][1] == "A note."
        assert "Title:\n\n| name | score |\n| --- | --: |\n| `a` | 0.2 |\n| `b` |  |\n\nA note.\n" in benchmark(kept)


def test_a_report_that_fails_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    with pytest.raises(ValueError), Report("drift.py", ["--keep", str(file)]) as report:
        report.table("Title", {"name": "{}", "score": "{}"}).add("a")
    assert not file.exists()


def test_a_script_and_its_report_read_the_same_options() -> None:
    options = _report.parser("A benchmark.")
    assert options.parse_args(["--keep", "FILE", "--smoke"]).keep == Path("FILE")


@pytest.mark.sample(0)
def test_the_benchmark_of_lexical_vectors_fuses_as_a_hybrid_search_does(tmp_path: Path) -> None:
    task = _inputs.STARTER["retrieval"]
    documents, queries, _ = lexical.parts(task)
    embedder = Embedder.from_pretrained("pico", "prompteol")
    index = lexical.indexed(embedder, task / "corpus.jsonl", tmp_path / "index", "pico")
    apart = [lexical.rankings(index, documents, queries, way) for way in lexical.WAYS]
    for ranked, found in zip(zip(*apart, strict=True), lexical.rankings(index, documents, queries, "hybrid"), strict=True):
        assert lexical.fused(ranked).rows.tolist() == found.rows.tolist()
