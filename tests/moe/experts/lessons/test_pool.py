"""A pool of writers: processes under Ray that write what one writes, or say why they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.moe.experts.conftest import SUMS
from tests.moe.experts.lessons.test_specialise import FREE
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.lessons.engines import WriterPool
from unmask.moe.experts.lessons.generation import Writer
from unmask.moe.experts.lessons.specialise import SpecialisePlan, specialise


@pytest.fixture(scope="module", autouse=True)
def _one_cluster() -> Iterator[None]:
    """The first pool starts the cluster of all tests; it takes seconds to start.

    Ray is told of another cluster, which does not answer. No pool may join it: nobody asked for it.
    """
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        yield
    ray.shutdown()


def test_a_pool_writes_what_one_writes(base: Path, tmp_path: Path) -> None:
    """The same lessons, in the same files."""
    source = Source(str(base), dtype="float32")
    plan = SpecialisePlan(number=5, batch=2, instruction_tokens=8, response_tokens=8, patience=2)
    specialise(Writer(*load_language_model(source)), "base", FREE, SUMS, tmp_path / "one", plan)
    pool = WriterPool(source, 2)
    try:
        specialise(pool, "base", FREE, SUMS, tmp_path / "two", plan)
    finally:
        pool.close()
    for file in ("instructions.jsonl", "lessons.jsonl", "report.json"):
        assert (tmp_path / "two" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()
