"""Reports to look at: a small one that went the whole way, and one of thirty designs on fifteen tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.reporting.synthetic import Folder, add_costs, add_failure, large, ranked_by, small
from unmask.evaluation.leader import KindLeader
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.verdict import rank_systems
from unmask.reporting import summary
from unmask.reporting.report_folder import write_report
from unmask.statistics import ranks


@dataclass(frozen=True)
class Written:
    """A folder of results, what was invented for it, and the page of its report."""

    folder: Path
    of: Folder
    page: Path

    @property
    def html(self) -> str:
        return self.page.read_text(encoding="utf-8")


def written(folder: Path, of: Folder) -> Written:
    of.write(folder)
    return Written(folder, of, write_report(folder, folder / "report"))


@pytest.fixture(scope="session")
def small_report(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written(tmp_path_factory.mktemp("small"), small())


@pytest.fixture(scope="session")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """With costs, and one cell that failed. All pairs of 30 designs would take half a minute: here none is tested, the lead is advice."""
    folder, of = tmp_path_factory.mktemp("large"), large()
    failed = ("causal/plain/max", "retrieval-0")
    of = replace(of, without=[failed])
    add_costs(folder, of)
    add_failure(folder, of, *failed)

    def leads(results: Sequence[Result], store: ResultStore) -> list[KindLeader]:
        (system, score), *_ = rank_systems(results)
        return [KindLeader(results[0].kind, system, score, ("Better than every other design.",))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "comparisons", lambda results, store: [])
        patch.setattr(summary, "kind_leaders", leads)
        patch.setattr(ranks, "critical_differences", ranked_by)
        return written(folder, of)
