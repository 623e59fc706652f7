"""Workers: several processes write what one writes, and one that dies costs its shard a second try."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tqdm.std import TqdmDefaultWriteLock, tqdm  # type: ignore[import-untyped]

from tests.bulk.corpora import PICO, ROWS, content, job_of, rows_of, run, write_corpus
from tests.training.running import ended, forked
from unmask.bulk import workers
from unmask.bulk.folder import embed_folder
from unmask.bulk.job import EmbedderArguments, Job
from unmask.bulk.workers import Workers, stations
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

TWO = len(os.sched_getaffinity(0)) > 1
HALF = EmbedderArguments("pico", "causal/plain/mean", {"device": "cpu", "dtype": "bfloat16"})
several = pytest.mark.skipif(not TWO, reason="needs two cores")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus, which the test runs in."""
    write_corpus(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    return Path()


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers come from a process that has imported everything: that is most of what starting one costs.

    Tests without it start workers as the program does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unmask.bulk.workers", "unmask.embedder", "transformers.models.llama.modeling_llama"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)


class Killed(Workers):
    """Workers of which the one that is at a certain shard is killed, so many times."""

    def __init__(self, job: Job, shard: str, times: int) -> None:
        super().__init__(job, PICO, 2)
        self.shard, self.times = shard, times

    def _give(self, worker: Any, queue: Any, key: str) -> None:
        doomed = self.times and queue.waiting[0].name.startswith(self.shard)
        if doomed:
            os.kill(worker.process.pid, signal.SIGSTOP)  # so that it cannot be done too early
        super()._give(worker, queue, key)
        if doomed:
            os.kill(worker.process.pid, signal.SIGKILL)
            self.times -= 1


@several
def test_two_workers_write_what_one_process_writes_though_one_is_killed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(job_of(here))
    (here / "out").rename("alone")
    job = job_of(here)
    manifest = embed_folder(job, lambda: Killed(job, "b.csv.gz", 1))
    assert manifest.complete and content(here / "out") == content(Path("alone"))
    assert "died (SIGKILL). Another one takes its place" in capsys.readouterr().err


@pytest.mark.usefixtures("imported")
@several
def test_a_shard_that_kills_its_workers_fails_and_the_rest_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(here, shard_rows=100)
    manifest = embed_folder(job, lambda: Killed(job, "b.csv.gz", 2))
    [(shard, reason)] = manifest.failed.items()
    assert shard.startswith("b.csv.gz") and reason == "its worker died (SIGKILL)"
    assert not manifest.complete and len(manifest.shards) == 3 and manifest.texts == 2 * ROWS - 3
    assert "1 shard failed. Run the command again" in manifest.told(job.output)
    assert "corpus/b.csv.gz, rows 0 to 39" in capsys.readouterr().err
    assert run(job).complete and len(rows_of(here / "out")) == 3 * ROWS - 3


@pytest.mark.usefixtures("imported")
def test_a_mistake_in_a_worker_is_told_as_its_own(here: Path) -> None:
    job = job_of(here)
    wrong = EmbedderArguments(str(here / "nowhere"), "mean", {"device": "cpu"})
    with pytest.raises(UnmaskError, match="nowhere"):
        embed_folder(job, lambda: Workers(job, wrong, 1))


class Mixed(Workers):
    """Workers of which the second one loads its model in another precision than the first."""

    def _start(self, station: Any) -> Any:
        worker = super()._start(station)
        self._arguments = HALF
        return worker


@pytest.mark.usefixtures("imported")
@several
def test_workers_read_the_fit_that_is_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit is one that no worker would make by itself, as on another device."""
    fitted, job = EmbedderArguments("pico", "causal/plain/mean/zscore", PICO.options), job_of(here)
    fit = Embedder.fit

    def shifted(self: Embedder, texts: Any) -> Embedder:
        mean = fit(self, texts).fitted.hidden_mean
        assert mean is not None
        mean += 0.125
        return self

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "fit", shifted)
        run(job, fitted)
    undisturbed = content(here / "out")
    for file in sorted((here / "out" / "records").iterdir())[::2]:
        file.unlink()
    assert embed_folder(job, lambda: Workers(job, fitted, 2)).complete
    assert content(here / "out") == undisturbed


@pytest.mark.usefixtures("imported")
@several
def test_a_worker_with_another_embedder_ends_the_run(here: Path) -> None:
    job = job_of(here)
    team = Mixed(job, PICO, 2)
    with (
        closing(team),
        pytest.raises(UnmaskError, match=r'Two workers loaded different embedders: dtype was "\w+" and is "\w+"'),
    ):
        while any(worker.description is None for worker in team._workers):
            for worker in team._ready(team._workers):
                team._hear(worker, *(team._message(worker) or ("refused", "it ended")))


def test_workers_end_with_their_parent(here: Path) -> None:
    job = job_of(here)

    def start_and_die() -> None:
        workers = Workers(job, PICO, 1)
        workers.describe()
        Path("pids").write_text(json.dumps([worker.process.pid for worker in workers._workers]))
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


def test_a_worker_that_is_killed_leaves_no_semaphore(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first bar of a process makes one, unless it is told not to, and loading a model shows a bar."""

    def loaded(*_: Any) -> None:
        tqdm([], disable=True)
        raise UnmaskError("a bar was shown")

    monkeypatch.setattr(workers, "Member", loaded)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", lambda *_, **__: pytest.fail("a semaphore is made"))
    for place, name in ((tqdm, "_lock"), (TqdmDefaultWriteLock, "mp_lock")):
        monkeypatch.delattr(place, name, raising=False)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        workers._work(theirs, job_of(Path()), PICO, ())
        assert ours.recv() == ("refused", "a bar was shown")


def test_each_worker_has_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 8})
    found = [station.cores for station in stations(2, "cpu")]
    assert found == [(0, 2, 8), (1, 5)]
    with pytest.raises(UnmaskError, match="--workers 6: this process may use 5 cores"):
        stations(6, "auto")


def test_each_worker_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [station.device for station in stations(2, "auto")] == ["cuda:0", "cuda:1"]
    with pytest.raises(UnmaskError, match="--workers 3: this machine has 2 GPUs"):
        stations(3, "cuda")
    with pytest.raises(UnmaskError, match="would share one device 'cuda:1'"):
        stations(2, "cuda:1")


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_told(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UnmaskError, match=f"--device {device}: torch finds no GPU on this machine"):
        stations(2, device)


def test_a_system_that_assigns_no_cores_counts_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert [station.cores for station in stations(2, "cpu")] == [(0, 2), (1, 3)]
    workers.pin_to((0, 2))


def test_workers_do_not_share_the_one_accelerator_that_auto_would_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(workers, "pick_device", lambda _: torch.device("mps"), raising=False)
    with pytest.raises(UnmaskError, match="would share one device 'mps'"):
        stations(2, "auto")
