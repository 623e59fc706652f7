"""Kills at random moments and power cuts at any write of a run into a folder: the same command ends with the same bytes."""

from __future__ import annotations

from pathlib import Path

from tests.abuse.forking import import_everything
from tests.abuse.recovery import Case, cuts
from tests.bulk.corpora import job_of, run, write_corpus


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
