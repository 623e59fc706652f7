"""The page about scale shows what its command prints: figures cannot drift from the arithmetic."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks import scale

PAGE = (Path(__file__).parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    [command] = re.findall(r"^python -m benchmarks\.scale (.+)$", PAGE, re.MULTILINE)
    scale.main(shlex.split(command))
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 3
    for table in tables:
        assert table in PAGE


def test_the_arithmetic_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """3.6 million documents of 100 tokens at 1000 tokens/s: 100 hours; a shard of 36 000 rows takes one of them."""
    options = "--documents 3.6e6 --tokens-per-document 100 --tokens-per-second 1000 --cores 4 --price 2 --failure-rate 0.1"
    scale.main([*options.split(), "--shard-rows", "36000", "--load-seconds", "0"])
    printed = capsys.readouterr().out
    for row in (
        "| machine hours | 100 |",
        "| core hours | 400 |",
        "| cost | 200 |",
        "| shards | 100 |",
        "| time of a shard | 1.0 hours |",
        "| failures expected | 10 |",
        "| work lost to failures | 5 machine hours (5.00%) |",
        "| time of the run | 4.2 days | 10.0 hours | 6.0 min |",
        "| shards of a machine | 100 | 10 | 0 |",
        "| a failure somewhere | every 10.0 hours | every 1.0 hours | every 36.0 s |",
    ):
        assert row in printed, row
