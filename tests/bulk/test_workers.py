"""Workers: several processes write what one writes, and one that dies costs its shard a second try."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bulk.corpora import PICO, ROWS, content, job_of, rows_of, run
from tests.training.running import ended, forked
from unmask.bulk import team
from unmask.bulk.embed_shard import embed_shard
from unmask.bulk.folder import embed_folder
from unmask.bulk.loading import EmbedderArguments
from unmask.bulk.workers import Workers, divide_machine
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers come from a process that has imported everything: that is most of what starting one costs.

    Tests without it start workers as the program does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unmask.bulk.workers", "unmask.embedder", "transformers.models.llama.modeling_llama"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)


@dataclass(frozen=True)
class Deadly(EmbedderArguments):
    """A process that begins a shard of `b.csv.gz` is killed, so many times in all."""

    kills: int = 1

    def load(self) -> Embedder:
        embed, log = embed_shard, Path("kills").absolute()

        def embed_or_die(encoder, paths, shard, *more):  # type: ignore[no-untyped-def]
            if shard.name.startswith("b.csv.gz") and (log.stat().st_size if log.exists() else 0) < self.kills:
                with log.open("a") as file:
                    file.write("x")
                os.kill(os.getpid(), signal.SIGKILL)
            return embed(encoder, paths, shard, *more)

        vars(team)["embed_shard"] = embed_or_die
        return super().load()


def deadly(kills: int, design: str = "causal/plain/mean") -> Deadly:
    return Deadly("pico", design, PICO.options, kills=kills)


@several
def test_two_workers_write_what_one_process_writes_though_one_is_killed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with a fit that no worker would make by itself, as on another device."""
    fitted, job, fit = EmbedderArguments("pico", "causal/plain/mean/zscore", PICO.options), job_of(here), Embedder.fit

    def shifted(self: Embedder, texts: list[str]) -> Embedder:
        mean = fit(self, texts).fitted.hidden_mean
        assert mean is not None
        mean += 0.125
        return self

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "fit", shifted)
        run(job, fitted)
    undisturbed = content(here / "out")
    for file in sorted((here / "out" / "records").iterdir()):
        file.unlink()
    manifest = embed_folder(job, lambda: Workers(job, deadly(1, "causal/plain/mean/zscore"), 2))
    assert manifest.complete and content(here / "out") == undisturbed
    assert "A worker died. Shard b.csv.gz" in capsys.readouterr().err


@pytest.mark.usefixtures("imported")
@several
def test_a_shard_that_kills_its_workers_fails_and_the_rest_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(here, shard_rows=100)
    manifest = embed_folder(job, lambda: Workers(job, deadly(9), 2))
    [(shard, reason)] = manifest.failed.items()
    assert shard.startswith("b.csv.gz") and reason == "its worker died"
    assert not manifest.complete and len(manifest.shards) == 3 and manifest.texts == 2 * ROWS - 3
    assert "1 shard failed. Run the command again" in manifest.summary(job.output)
    assert "corpus/b.csv.gz, rows 0 to 39" in capsys.readouterr().err
    assert run(job).complete and len(rows_of(here / "out")) == 3 * ROWS - 3


@pytest.mark.usefixtures("imported")
def test_a_mistake_in_a_worker_is_reported_as_its_own(here: Path) -> None:
    job = job_of(here)
    wrong = EmbedderArguments(str(here / "nowhere"), "mean", {"device": "cpu"})
    with pytest.raises(UnmaskError, match="nowhere"):
        embed_folder(job, lambda: Workers(job, wrong, 1))


def test_workers_end_with_their_parent(here: Path) -> None:
    job = job_of(here)

    def start_and_die() -> None:
        started = Workers(job, PICO, 1)
        started.describe()
        Path("pids").write_text(json.dumps(list(started._pool._processes)))
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended(forked(start_and_die)) == -signal.SIGKILL
    pids = json.loads(Path("pids").read_text())
    until = time.monotonic() + 20
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until, "a worker outlives its parent"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/status").read_text().split("State:")[1].strip()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_each_worker_has_dedicated_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 8})
    assert [share.cores for share in divide_machine(2, "cpu")] == [(0, 2, 8), (1, 5)]
    with pytest.raises(UnmaskError, match="--workers 6: this process may use 5 cores"):
        divide_machine(6, "auto")


def test_each_worker_has_a_dedicated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert [share.device for share in divide_machine(2, "auto")] == ["cuda:0", "cuda:1"]
    for number, device, message in (
        (3, "cuda", "--workers 3: this machine has 2 GPUs"),
        (2, "cuda:1", "would share one device 'cuda:1'"),
    ):
        with pytest.raises(UnmaskError, match=message):
            divide_machine(number, device)
