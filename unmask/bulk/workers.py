"""Workers: local processes, each with an embedder on dedicated cores or a dedicated GPU. Shards are handed out one by one.

A worker that dies (killed when out of memory, for example) is replaced and its shard is retried once. Then the shard counts as
failed, and the other shards continue.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from unmask.bulk.document_encoder import Counts
from unmask.bulk.job import EmbedderArguments, Job
from unmask.bulk.manifest import settings_of
from unmask.bulk.shards import Shard
from unmask.bulk.team import Listener, Member
from unmask.errors import UnmaskError
from unmask.io.terminal import complain
from unmask.models.loading import pick_device
from unmask.runs.runs import differences

_TRIES = 2
_TOLD_EVERY = 0.5  # seconds between two reports of a worker


@dataclass(frozen=True)
class Station:
    """Where a worker works: cores, or none in particular, and the name of a device."""

    cores: tuple[int, ...]
    device: str


def stations(workers: int, device: str) -> list[Station]:
    """A place for each worker: a GPU each, or an equal share of the cores that this process may use.

    Raises UnmaskError for more workers than GPUs or cores, for a GPU that is not there, and for a device of which there is only one.
    """
    import torch

    cores = _usable_cores()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UnmaskError(f"--device {device}: torch finds no GPU on this machine. Use --device cpu, or leave --device out.")
    if device in ("auto", "cuda") and torch.cuda.is_available():
        if workers > torch.cuda.device_count():
            raise UnmaskError(
                f"--workers {workers}: this machine has {torch.cuda.device_count()} GPUs, and each worker takes one."
            )
        return [Station((), f"cuda:{number}") for number in range(workers)]
    shared = pick_device(device).type if device == "auto" else device
    if shared != "cpu":
        raise UnmaskError(f"--workers {workers} would share one device '{shared}': use --device cpu, or one worker.")
    if workers > len(cores):
        raise UnmaskError(f"--workers {workers}: this process may use {len(cores)} cores, and each worker takes one at least.")
    return [Station(tuple(cores[number::workers]), device) for number in range(workers)]


def _usable_cores() -> list[int]:
    """The cores that this process may use: all of them where the system assigns none to a process, as on macOS."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def pin_to(cores: Sequence[int]) -> None:
    """Keep this process on these cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@dataclass
class _Worker:
    """A process, our end of its pipe, the shard that it is at, and what it has told of it."""

    station: Station
    process: SpawnProcess
    pipe: Connection
    shard: Shard | None = None
    told: Counts = field(default_factory=Counts)
    description: dict[str, Any] | None = None


@dataclass
class _Queue:
    """Shards that wait, and how often each was begun."""

    waiting: deque[Shard]
    tries: dict[str, int] = field(default_factory=dict)


class Workers:
    """A team of processes. Raises UnmaskError for more workers than there is room for."""

    def __init__(self, job: Job, arguments: EmbedderArguments, workers: int) -> None:
        """Start the processes; they load their embedders at once."""
        self._job, self._arguments = job, arguments
        self._described: dict[str, Any] | None = None
        self._context = multiprocessing.get_context("spawn")
        self._workers = [self._start(station) for station in stations(workers, arguments.options.get("device", "auto"))]

    def describe(self) -> dict[str, Any]:
        """Everything except the texts that the vectors depend on, as reported by the first worker. Raises UnmaskError with its reason."""
        while True:
            for worker in self._ready(self._workers):
                message = self._message(worker)
                if message is None:
                    raise UnmaskError(f"A worker ended while it loaded the model ({_ending(worker)}): is there enough memory?")
                self._hear(worker, *message)
                if worker.description is not None:
                    return worker.description

    def embed(self, shards: Sequence[Shard], key: str, listener: Listener) -> None:
        """Hand out shards until all are done or failed."""
        queue = _Queue(deque(shards))
        while queue.waiting or any(worker.shard for worker in self._workers):
            for worker in self._workers:
                if queue.waiting and worker.shard is None and worker.description is not None:
                    self._give(worker, queue, key)
            for worker in self._ready(self._workers):
                message = self._message(worker)
                if message is None:
                    self._bury(worker, queue, listener)
                else:
                    self._hear(worker, *message, queue=queue, listener=listener)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def _start(self, station: Station) -> _Worker:
        parent_end, child_end = self._context.Pipe()
        arguments = replace(self._arguments, options={**self._arguments.options, "device": station.device})
        threads = os.environ.get("OMP_NUM_THREADS")
        try:
            if station.cores:
                os.environ["OMP_NUM_THREADS"] = str(len(station.cores))  # read when the process loads its libraries
            process = self._context.Process(target=_work, args=(child_end, self._job, arguments, station.cores), daemon=True)
            process.start()
        finally:
            if threads is None:
                os.environ.pop("OMP_NUM_THREADS", None)
            else:
                os.environ["OMP_NUM_THREADS"] = threads
        child_end.close()
        return _Worker(station, process, parent_end)

    def _give(self, worker: _Worker, queue: _Queue, key: str) -> None:
        worker.shard, worker.told = queue.waiting.popleft(), Counts()
        queue.tries[worker.shard.name] = queue.tries.get(worker.shard.name, 0) + 1
        with suppress(OSError):  # it has died, which its pipe will say
            worker.pipe.send((worker.shard, key))

    @staticmethod
    def _ready(workers: Sequence[_Worker]) -> list[_Worker]:
        """The workers that have something to say, or that have died."""
        ready = wait([worker.pipe for worker in workers])
        return [worker for worker in workers if worker.pipe in ready]

    @staticmethod
    def _message(worker: _Worker) -> tuple[str, Any] | None:
        """What a worker says; None if it has died."""
        try:
            message: tuple[str, Any] = worker.pipe.recv()
            return message
        except (EOFError, OSError):
            worker.process.join()
            return None

    def _hear(
        self, worker: _Worker, kind: str, content: Any, queue: _Queue | None = None, listener: Listener | None = None
    ) -> None:
        if kind == "ready":
            worker.description = content
            self._require_same(content)
        elif kind == "refused":
            raise UnmaskError(content)
        elif kind == "stopped":
            raise OSError(*content)
        elif queue is not None and listener is not None and worker.shard is not None:
            if kind == "progress":
                worker.told.add(content)
                listener.progress(content)
            elif kind == "done":
                listener.done(worker.shard, content)
                worker.shard = None
            else:
                _try_again(worker, content, queue, listener)

    def _require_same(self, description: dict[str, Any]) -> None:
        """Raise UnmaskError if a worker that is ready has another embedder than the first one had."""
        self._described = self._described or description
        if changes := differences(settings_of(self._described).as_json(), settings_of(description).as_json()):
            raise UnmaskError(f"Two workers loaded different embedders: {changes[0]}. Give --dtype, and the same model to all.")

    def _bury(self, worker: _Worker, queue: _Queue, listener: Listener) -> None:
        """Replace a worker that died, and try its shard once more. One that died before it had loaded the model is not replaced."""
        index = self._workers.index(worker)
        worker.pipe.close()
        if worker.description is None:
            del self._workers[index]
            if not self._workers:
                raise UnmaskError(
                    f"The last worker ended while it loaded the model ({_ending(worker)}): is there enough memory?"
                )
            complain(f"A worker ended while it loaded the model ({_ending(worker)}). {len(self._workers)} go on.")
            return
        complain(f"Worker {index + 1} died ({_ending(worker)}). Another one takes its place.")
        self._workers[index] = self._start(worker.station)
        if worker.shard is not None:
            _try_again(worker, f"its worker died ({_ending(worker)})", queue, listener)


def _try_again(worker: _Worker, reason: str, queue: _Queue, listener: Listener) -> None:
    """Put the shard of a worker back, or give it up."""
    shard, worker.shard = worker.shard, None
    listener.progress(worker.told.negative())
    worker.told = Counts()
    if shard is not None and queue.tries[shard.name] < _TRIES:
        queue.waiting.append(shard)
    elif shard is not None:
        listener.failed(shard, reason)


def _ending(worker: _Worker) -> str:
    code = worker.process.exitcode or 0
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(pipe: Connection, job: Job, arguments: EmbedderArguments, cores: Sequence[int]) -> None:
    """A worker, from its start to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends its workers
    if cores:
        pin_to(cores)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    from tqdm import tqdm  # type: ignore[import-untyped]

    tqdm.set_lock(threading.RLock())  # its own lock is a semaphore of the system, which would outlive a worker that is killed

    if cores:
        torch.set_num_threads(len(cores))
    try:
        member = Member(job, arguments)
        pipe.send(("ready", member.description))
    except UnmaskError as error:
        pipe.send(("refused", str(error)))
        return
    while True:
        try:
            shard, key = pipe.recv()
        except EOFError:
            return
        pipe.send(_attempt(member, shard, key, _Teller(pipe)))


def _attempt(member: Member, shard: Shard, key: str, teller: _Teller) -> tuple[str, Any]:
    """What came of a shard. An error of the system, such as a full disk, ends the run: every other shard would meet it, too."""
    try:
        record = member.embed(shard, key, teller.add)
        teller.flush()
        return "done", record
    except OSError as error:
        return "stopped", (error.errno, error.strerror, error.filename)
    except Exception as error:
        return "failed", str(error) if isinstance(error, UnmaskError) else f"{type(error).__name__}: {error}"


class _Teller:
    """Reports counts through a pipe, a few times a second at most."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._counts, self._last = pipe, Counts(), time.monotonic()

    def add(self, counts: Counts) -> None:
        self._counts.add(counts)
        if time.monotonic() - self._last >= _TOLD_EVERY:
            self.flush()

    def flush(self) -> None:
        self._pipe.send(("progress", self._counts))
        self._counts, self._last = Counts(), time.monotonic()


def _end_with_parent() -> None:
    """End this process as soon as its parent has ended for any reason: nothing else would stop it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
