"""Forked processes that are killed leave nothing behind that the tests wait for."""

from __future__ import annotations

import os
import signal

import pytest
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from tests.training.running import ended, forked


@pytest.mark.timeout(20)
def test_a_process_that_is_killed_while_it_makes_a_bar_blocks_no_bar_of_ours() -> None:
    """The lock that tqdm makes by itself would stay taken. Models are loaded with this subclass of its bars."""

    def die() -> None:
        with tqdm.get_lock():
            os.kill(os.getpid(), signal.SIGKILL)

    tqdm([], disable=True)
    assert ended(forked(die)) == -signal.SIGKILL
    tqdm([], disable=True)
