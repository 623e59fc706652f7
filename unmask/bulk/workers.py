"""Workers: local processes, each with an embedder on dedicated cores or a dedicated GPU. Shards are handed out one by one.

If a worker dies (killed when out of memory, for example), all workers are replaced, and each shard that was in work is tried once more,
alone. If its worker dies again, the shard counts as failed, and the others continue.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import wait as wait_for_end
from typing import Any

from unmask.bulk.embed_shard import ReportCounts, ShardRecord
from unmask.bulk.job import EmbedJob
from unmask.bulk.loading import EmbedderArguments
from unmask.bulk.row_encoder import Counts
from unmask.bulk.shards import Shard
from unmask.bulk.team import Member, ShardResult
from unmask.errors import UnmaskError
from unmask.io.terminal import complain
from unmask.models.loading import pick_device

_REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Resources:
    """What one worker uses: cores, or none in particular, and the name of a device."""

    cores: tuple[int, ...]
    device: str


def divide_machine(workers: int, device: str) -> list[Resources]:
    """The resources of each worker: a GPU each, or an equal share of the cores that this process may use.

    Raises UnmaskError for more workers than GPUs or cores, for a GPU that is not there, and for a device of which there is only one.
    """
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UnmaskError(f"--device {device}: torch finds no GPU on this machine. Use --device cpu, or leave --device out.")
    if device in ("auto", "cuda") and torch.cuda.is_available():
        if workers > torch.cuda.device_count():
            raise UnmaskError(
                f"--workers {workers}: this machine has {torch.cuda.device_count()} GPUs, and each worker takes one."
            )
        return [Resources((), f"cuda:{number}") for number in range(workers)]
    shared = pick_device(device).type if device == "auto" else device
    if shared != "cpu":
        raise UnmaskError(f"--workers {workers} would share one device '{shared}': use --device cpu, or one worker.")
    # macOS assigns no cores to a process
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if workers > len(cores):
        raise UnmaskError(f"--workers {workers}: this process may use {len(cores)} cores, and each worker takes one at least.")
    return [Resources(tuple(cores[number::workers]), device) for number in range(workers)]


class Workers:
    """A team of processes. Raises UnmaskError for more workers than the machine has cores or GPUs for."""

    def __init__(self, job: EmbedJob, arguments: EmbedderArguments, workers: int) -> None:
        """Start the pool; each process loads its embedder with its first task."""
        self._job, self._arguments = job, arguments
        self._resources = divide_machine(workers, arguments.options.get("device", "auto"))
        self._pool = self._start()

    def describe(self) -> dict[str, Any]:
        """Everything except the texts that the vectors depend on, as reported by one worker. Raises UnmaskError with its reason."""
        try:
            return self._pool.submit(_describe).result()
        except BrokenProcessPool as error:
            raise UnmaskError("A worker ended while it loaded the model: is there enough memory?") from error

    def embed(self, shards: Sequence[Shard], digest: str, progress: ReportCounts) -> Iterator[ShardResult]:
        """Embed shards until all are done or failed. An error of the system, such as a full disk, ends the run."""
        waiting = list(shards)
        while waiting:
            waiting, in_work = yield from self._embed_until_death(waiting, digest, progress)
            for shard in in_work:
                complain(f"A worker died. Shard {shard.name} was in work, and is tried once more.")
                if any((yield from self._embed_until_death([shard], digest, progress))):
                    yield shard, "its worker died"

    def _embed_until_death(
        self, shards: list[Shard], digest: str, progress: ReportCounts
    ) -> Generator[ShardResult, None, tuple[list[Shard], list[Shard]]]:
        """Embed shards until a worker dies. Returns the shards that were not begun, and those that were in work."""
        futures: dict[Future[ShardRecord], Shard] = {}
        started, remaining = set[str](), dict[str, Shard]()
        with suppress(BrokenProcessPool):
            for shard in shards:
                remaining[shard.name] = shard
                futures[self._pool.submit(_embed, shard, digest)] = shard
        running = set(futures)
        while running:
            done, running = wait(running, _REPORT_SECONDS, FIRST_COMPLETED)
            while not self._reports.empty():
                report = self._reports.get()
                started.add(report) if isinstance(report, str) else progress(report)
            for future in done:
                shard = futures[future]
                with suppress(BrokenProcessPool):
                    result = _result(future)
                    del remaining[shard.name]
                    yield shard, result
        if remaining:
            self.close()
            self._pool = self._start()
        in_work = [shard for shard in remaining.values() if shard.name in started]
        return [shard for shard in remaining.values() if shard.name not in started], in_work

    def close(self) -> None:
        """End the processes. A shutdown alone would let them finish their shards, which another run may be about to write."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        self._reports = context.SimpleQueue()
        resources = context.SimpleQueue()
        for share in self._resources:
            resources.put(share)
        arguments = (self._job, self._arguments, resources, self._reports)
        return ProcessPoolExecutor(len(self._resources), context, _initialize, arguments)


def _result(future: Future[ShardRecord]) -> ShardRecord | str:
    """The record of a shard, or the reason why it failed. Raises OSError, which every other shard would meet, and BrokenProcessPool."""
    try:
        return future.result()
    except (OSError, BrokenProcessPool):
        raise
    except Exception as error:
        return str(error) if isinstance(error, UnmaskError) else f"{type(error).__name__}: {error}"


# --- in a worker -----------------------------------------------------------------------------------------------------

_job: EmbedJob
_arguments: EmbedderArguments
_reports: Any


def _initialize(job: EmbedJob, arguments: EmbedderArguments, resources: Any, reports: Any) -> None:
    global _job, _arguments, _reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    share: Resources = resources.get()
    if share.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share.cores)
    import torch
    from tqdm import tqdm  # type: ignore[import-untyped]

    tqdm.set_lock(threading.RLock())  # its own lock is a semaphore of the system, which would outlive a worker that is killed
    if share.cores:
        torch.set_num_threads(len(share.cores))
    _job, _reports = job, reports
    _arguments = replace(arguments, options={**arguments.options, "device": share.device})


@cache
def _load_member() -> Member:
    return Member(_job, _arguments)


def _describe() -> dict[str, Any]:
    return _load_member().description


def _embed(shard: Shard, digest: str) -> ShardRecord:
    counts, last = Counts(), time.monotonic()
    _reports.put(shard.name)

    def report(delta: Counts) -> None:
        nonlocal counts, last
        counts.add(delta)
        if time.monotonic() - last >= _REPORT_SECONDS:
            flush()

    def flush() -> None:
        nonlocal counts, last
        _reports.put(counts)
        counts, last = Counts(), time.monotonic()

    record = _load_member().embed(shard, digest, report)
    flush()
    return record


def _end_with_parent() -> None:
    """End this process as soon as its parent has ended for any reason: nothing else would stop it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_end([parent.sentinel])
        os._exit(1)
