"""A Ray cluster as a team: actors, each with an embedder, that write their shards to a folder which all machines share.

Ray hands out shards, and starts a shard again that was lost with its machine. What is done is known by our records, and not by Ray.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.bulk.embed_shard import ReportCounts, ShardRecord
from unmask.bulk.job import EmbedJob
from unmask.bulk.loading import EmbedderArguments
from unmask.bulk.shards import Shard
from unmask.bulk.team import Member, ShardResult
from unmask.errors import UnmaskError, require_package
from unmask.io.cluster import join, report_failures

_TRIES = 3
"""Times that a shard is started: a machine may be lost through no fault of the shard."""
_WHAT = "An embedder on the cluster"


class OnRay:
    """A team of actors. address: of the cluster, or "local"; workers: their number, by default one for each GPU, or for each machine.

    Every machine needs the same paths: the corpus, the output and the current folder. Raises UnmaskError without Ray, and for a cluster
    that does not answer or is too small.
    """

    def __init__(self, job: EmbedJob, arguments: EmbedderArguments, address: str, workers: int | None = None) -> None:
        """Join the cluster."""
        require_package("ray")
        with report_failures(f"Joining the Ray cluster '{address}'"):
            self._ray = join(address)
        self._arguments = job, arguments, str(Path.cwd())
        self._workers, self._resources = _share(self._ray, workers, arguments.options.get("device", "auto"))

    def describe(self) -> dict[str, Any]:
        """Everything except the texts that the vectors depend on, as reported by a machine of the cluster."""
        with report_failures(_WHAT):
            description: dict[str, Any] = self._ray.get(self._actor().describe.remote())
            return description

    def embed(self, shards: Sequence[Shard], digest: str, progress: ReportCounts) -> Iterator[ShardResult]:
        """Embed shards on the cluster."""
        waiting, running = list(reversed(shards)), dict[Any, tuple[Any, Shard]]()
        idle = [self._actor() for _ in range(min(self._workers, len(shards)))]
        while waiting or running:
            while waiting and idle:
                actor, shard = idle.pop(), waiting.pop()
                running[actor.embed.remote(shard, digest)] = actor, shard
            (finished,), _ = self._ray.wait(list(running))
            actor, shard = running.pop(finished)
            result = self._result(finished)
            if isinstance(result, ShardRecord):
                progress(result.counts)
            yield shard, result
            idle.append(actor)

    def close(self) -> None:
        """The cluster goes on; actors end with the run."""

    def _result(self, done: Any) -> ShardRecord | str:
        from ray.exceptions import RayActorError, RayTaskError

        with report_failures(_WHAT):
            try:
                record: ShardRecord = self._ray.get(done)
                return record
            except RayTaskError as error:
                cause = error.cause
                return str(cause) if isinstance(cause, UnmaskError) else f"{type(cause).__name__}: {cause}"
            except RayActorError:
                return f"it was started {_TRIES} times, and ended its process each time"

    def _actor(self) -> Any:
        actor_class = self._ray.remote(max_restarts=-1, max_task_retries=_TRIES - 1, **self._resources)(_Actor)
        return actor_class.remote(*self._arguments)


class _Actor:
    """An embedder on the cluster."""

    def __init__(self, job: EmbedJob, arguments: EmbedderArguments, folder: str) -> None:
        os.chdir(folder)
        self._member = Member(job, arguments)

    def describe(self) -> dict[str, Any]:
        return self._member.description

    def embed(self, shard: Shard, digest: str) -> ShardRecord:
        return self._member.embed(shard, digest, lambda _: None)  # counts reach the driver with the record


def _share(ray: Any, workers: int | None, device: str) -> tuple[int, dict[str, float]]:
    """The number of workers, and the resources of each. Raises UnmaskError if the cluster is too small."""
    total = ray.cluster_resources()
    gpus, cores = int(total.get("GPU", 0)), int(total.get("CPU", 0))
    if gpus and device in ("auto", "cuda"):
        if (workers or 1) > gpus:
            raise UnmaskError(f"--workers {workers}: the Ray cluster has {gpus} GPUs, and each worker takes one.")
        return workers or gpus, {"num_gpus": 1, "num_cpus": 1}
    if cores < (workers or 1):
        raise UnmaskError(f"--workers {workers or 1}: the Ray cluster has {cores} cores, and each worker takes one at least.")
    machines = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    machines = [int(count) for count in machines if count >= 1]
    return workers or len(machines), {"num_cpus": max(1, min([*machines, cores // workers] if workers else machines))}
