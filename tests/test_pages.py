"""Generated parts of README and docs follow from the results in docs/measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools import keep, pages
from unmask.cli import app


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
