"""Clusters: what fails on one is told in one sentence."""

from __future__ import annotations

import pytest

from unmask.errors import UnmaskError
from unmask.io.cluster import failures_told


@pytest.mark.parametrize("said", ["no such place", "Traceback\n  File x\nunmask.errors.UnmaskError: no such place\n"])
def test_a_failure_is_one_sentence(said: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UnmaskError) as told, failures_told("Joining"):
        raise ConnectionError(said)
    assert str(told.value) == "Joining failed: no such place"
