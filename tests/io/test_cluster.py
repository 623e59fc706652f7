"""Clusters: what fails on one is told in one sentence."""

from __future__ import annotations

import re
from socket import create_server

import pytest

from unmask.errors import UnmaskError
from unmask.io.cluster import join, report_failures


@pytest.mark.parametrize("said", ["no such place", "Traceback\n  File x\nunmask.errors.UnmaskError: no such place\n"])
def test_a_failure_is_one_sentence(said: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UnmaskError) as told, report_failures("Joining"):
        raise ConnectionError(said)
    assert str(told.value) == "Joining failed: no such place"


@pytest.mark.parametrize("written", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nothing_answers_is_told_at_once(written: str) -> None:
    """Ray itself would try for minutes."""
    pytest.importorskip("ray").shutdown()
    with create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = written.format(port)
    with pytest.raises(ConnectionError, match=re.escape(f"nothing answers at {address} (")):
        join(address)
