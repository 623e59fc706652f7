"""Kills at random moments and power cuts at any write of a run into a folder: the same command ends with the same bytes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.forking import import_everything
from tests.abuse.recovery import Case, cuts
from tests.bulk.corpora import content, job_of, run, write_corpus
from tests.proofs import ALL
from tests.training.running import ended, forked, killed_at_random
from unmask.bulk.document_encoder import DocumentEncoder

KILLS = 20 if ALL else 2


@pytest.mark.sample(0)
def test_a_run_that_is_killed_at_random_moments_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unmask.bulk.documents.WINDOW_ROWS", 5)
    encode = DocumentEncoder.encode

    def slow(self: DocumentEncoder, documents: Any) -> Any:
        time.sleep(0.01)
        return encode(self, documents)

    monkeypatch.setattr(DocumentEncoder, "encode", slow)
    job = job_of(Path())
    run(job)  # what is loaded once by a process is inherited by its copies
    Path("out").rename("warm")
    begun = time.perf_counter()
    assert ended(forked(lambda: run(job))) == 0
    whole = time.perf_counter() - begun
    Path("out").rename("whole")
    killed_at_random(lambda: run(job), Path("out"), KILLS, whole)
    run(job)
    assert content(Path("out")) == content(Path("whole")) == content(Path("warm"))


def embed() -> None:
    run(job_of(Path(), shard_rows=30))


def test_a_run_recovers_from_a_power_cut_at_any_write(tmp_path: Path) -> None:
    import_everything()
    write_corpus(tmp_path / "start" / "corpus")
    case = Case("bulk", embed, tmp_path / "start", tmp_path, timed=("sources.json",))  # it holds times of change
    case.measure()
    assert case.operations > 50
    faults = [fault for cut, loss in cuts(case.operations, case.name) if (fault := case.recovers(cut, loss))]
    assert not faults, "\n".join(faults)
