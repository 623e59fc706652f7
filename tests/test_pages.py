"""Generated parts of README and docs follow from the results in docs/measured."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tools import keep, pages
from unmask.cli import app
from unmask.studies.claims.claim import Claim
from unmask.studies.claims.tables import claims_sheet


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    page = (pages.ROOT / name).read_text(encoding="utf-8")
    assert page == pages.fill(page), "run `python -m tools.pages`"


@pytest.mark.slow
def test_a_comparison_of_today_can_be_kept_and_shown(tmp_path: Path) -> None:
    command = f"compare -m pico -d mean,last -t {pages.ROOT}/unmask/starter/sts#20 -o {tmp_path}/run"
    assert CliRunner().invoke(app, command.split(), catch_exceptions=False).exit_code == 0
    result = keep.comparison(tmp_path / "run", "unmask compare")
    for view in ("by-kind", "grid", "scores", "differences"):
        assert "mean" in pages.SHOW[view](result)
    assert "`mean` minus `last`" in pages.scores(result)


def claims_of(study: str, *names: str) -> list[pages.Run]:
    return [pages.Run(f"measured/{study}-{name}.json") for name in names]


def test_every_run_counts_and_our_questions_do_not() -> None:
    runs = claims_of("pooling-and-attention", "smollm2", "gemma3-270m")
    lines = list(pages.overview({"Pooling": runs}))
    without_numbers = [re.sub(r" \((one|\d+) tasks?\)", "", line) for line in lines]
    for run in runs:
        for finding in run.findings:
            listed = any(finding.claim.says.rstrip(".") in line for line in without_numbers)
            decided = {other.verdicts[finding.claim.id] for other in runs} & {"confirmed", "refuted"}
            assert listed == (bool(decided) and not finding.claim.is_own), finding.claim.id
    assert lines[0].startswith(f"**{len(runs[0].papers)} claims of the papers")
    assert "On classification (one task), design 1" in "".join(lines)


def test_each_undecided_claim_says_what_would_decide_it() -> None:
    for run in (*claims_of("moee", "smollm2"), *claims_of("self-moe", "smollm2"), *claims_of("routers", "smollm2")):
        sheet = claims_sheet(run.findings)
        for row in sheet.rows:
            assert bool(row[sheet.columns.index("decided by")]) == (row[1] == "undecided"), row


def test_a_test_whose_values_were_not_kept_is_never_too_certain() -> None:
    """The interval that follows from the intervals of both rows is at least as wide as the paired one."""
    random = np.random.default_rng(0)
    base, shared = random.normal(size=(2, 64))
    rows = {"better": base - 1 + shared, "rival": base - 0.5 - shared}
    halves = {name: 1.96 * (row - base).std(ddof=1) / 8 for name, row in rows.items()}
    cells = [[name, *"1234", "", f"{(row - base).mean():+.3f} ± {halves[name]:.3f}"] for name, row in rows.items()]
    result = {"tables": [{"title": "Written lessons", "rows": cells}], "claims": [], "plan": {"held_out": 16}}
    claim = Claim(id="c", where="1", says="", better="better", than=("rival",))
    found = pages.bounded_tests([claim], result)["c"]
    paired = rows["rival"] - rows["better"]
    half = 1.96 * paired.std(ddof=1) / 8
    assert found.difference == pytest.approx(paired.mean(), abs=0.002)
    assert (found.interval[1] - found.interval[0]) / 2 == pytest.approx(sum(halves.values()), rel=0.01)
    assert (found.interval[1] - found.interval[0]) / 2 >= 0.99 * half
