"""Kills at random moments of a comparison: nothing is lost, and the results are the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.test_compare import plan_of, task_in
from tests.proofs import ALL
from tests.tiny import write_task
from tests.training.running import ended, forked, killed_at_random
from unmask.encoding import cached_pass, prefix_cache
from unmask.encoding.cached_pass import chunks
from unmask.encoding.encoder import Encoder
from unmask.evaluation.results import ResultStore
from unmask.evaluation.scoring import score_designs

KILLS, FOLDERS = (5, 4) if ALL else (2, 1)


@pytest.mark.sample(0)
def test_comparing(pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [task_in(write_task(tmp_path / kind, kind)) for kind in ("sts", "retrieval")]
    plan = plan_of(pico_folder("llama"), "mean,last,prompteol-z,causal/style/last,bidirectional-mean", tasks)
    monkeypatch.setattr(prefix_cache, "_MIN_TEXTS", 2)  # so few that prompts share their reading
    encode = Encoder.encode_prompts

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.01)
        return encode(*args, **options)

    monkeypatch.setattr(Encoder, "encode_prompts", slow)
    monkeypatch.setattr(cached_pass, "chunks", lambda lengths: chunks(lengths, 100))

    def run(name: str) -> None:
        score_designs(plan, ResultStore(tmp_path / name))

    run("warm")  # what is loaded once by a process is inherited by its copies
    begun = time.perf_counter()
    assert ended(forked(lambda: run("whole"))) == 0
    whole = time.perf_counter() - begun
    for folder in range(FOLDERS):
        killed_at_random(partial(run, str(folder)), tmp_path / str(folder), KILLS, whole)
    files = [file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*") if file.is_file()]
    assert len(files) > len(plan.designs) * len(tasks)
    for folder in range(FOLDERS):
        run(str(folder))
        for file in files:
            if file.name != "costs.jsonl":  # seconds
                assert (tmp_path / str(folder) / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file
        assert not (tmp_path / str(folder) / ".unmask-vectors").exists()
