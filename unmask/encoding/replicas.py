"""Replicas: on a CPU, each core computes its own batches, all with the same weights.

One batch on two cores takes more than half of its time on one core, since norms, activations and small products parallelise badly. So n
threads with one core each compute n batches at once. Attention, hooks and buffers are state of a model, so each thread has a replica: new
modules with the weights of the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy, deepcopy
from math import inf
from queue import SimpleQueue
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING, TypeVar

import torch

from unmask.models.decoder import has_hooks, model_lock

if TYPE_CHECKING:
    from unmask.encoding.backbone import Backbone

Job = TypeVar("Job")
Value = TypeVar("Value")

_MIN_TOKENS = 1024
"""Tokens for each thread from which a replica pays: making one takes some hundredths of a second."""


def threads_for(backbone: Backbone, tokens: float = inf) -> int:
    """The number of threads that compute this many tokens fastest: one, or the number of cores that torch may use."""
    cores = _cores() if backbone.device.type == "cpu" else 1
    return cores if tokens >= cores * _MIN_TOKENS and not has_hooks(backbone.model) else 1


def in_parallel(
    backbone: Backbone, jobs: Sequence[Job], threads: int, compute: Callable[[Backbone, Job], Value]
) -> Iterator[Value]:
    """compute(backbone, job) for each job, in their order. The value of a job does not depend on the thread that computes it."""
    if threads == 1:
        yield from (compute(backbone, job) for job in jobs)
        return
    free: SimpleQueue[Backbone] = SimpleQueue()
    for _ in range(threads):
        free.put(replica(backbone))

    def on_a_replica(job: Job) -> Value:
        backbone = free.get()
        try:
            return compute(backbone, job)
        finally:
            free.put(backbone)

    with _one_core_each(threads) as pool:
        yield from pool.map(on_a_replica, jobs)


def _cores() -> int:
    return int(torch.get_num_threads())


@contextmanager
def _one_core_each(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that compute on one core each.

    torch takes the number of cores that a thread sets for the default of threads that start later. So all threads start at once, and
    the default is restored before they compute: a foreign thread that starts meanwhile would be limited to one core.
    """
    before, started = torch.get_num_threads(), Barrier(threads + 1)

    def start() -> None:
        torch.get_num_threads()  # a thread takes the default at its first use of torch, and that would undo what it sets
        torch.set_num_threads(1)
        # broken if another thread could not start, or if all did and a job failed before this thread woke up. An error here would make
        # the pool forget to wake its other threads at its end.
        with suppress(BrokenBarrierError):
            started.wait()

    pool = ThreadPoolExecutor(threads, "unmask-replica", initializer=start)
    try:
        for _ in range(threads):  # no thread is idle before all have started, so each job starts one
            pool.submit(int)
        started.wait()
        torch.set_num_threads(before)
        yield pool
    finally:
        started.abort()  # if a thread could not start, the others wait for it
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def replica(backbone: Backbone) -> Backbone:
    """A backbone with new modules, buffers and config, and the weights of the original."""
    with model_lock(backbone.model):
        model = backbone.model
        shared = {id(weight): weight for weight in model.parameters()}  # a model may write into its buffers
        result = copy(backbone)
        result.model, result.layers, result.routers = deepcopy((model, backbone.layers, backbone.routers), shared)
    return result
