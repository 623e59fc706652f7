"""A Ray cluster as a team: actors of Ray Data, each with an embedder, that write their shards to a folder which all machines share.

Ray hands out shards, and starts a shard again that was lost with its machine. What is done is known by our records, and not by Ray.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.bulk.document_encoder import Counts
from unmask.bulk.embed_shard import Places, ShardRecord
from unmask.bulk.job import EmbedderArguments, Job
from unmask.bulk.shards import Shard
from unmask.bulk.team import Listener, Member
from unmask.errors import UnmaskError, require_package
from unmask.io.cluster import failures_told, join
from unmask.io.lines import Start

_TRIES = 3
"""Times that a shard is begun: a machine may be lost through no fault of the shard, and Ray would try without end."""
_WHAT = "An embedder on the cluster"


class OnRay:
    """A team of actors. address: of the cluster, or "local"; workers: their number, by default one for each GPU, or for each machine.

    Every machine needs the same paths: the corpus, the output and the current folder. Raises UnmaskError without Ray, and for a cluster
    that does not answer or is too small.
    """

    def __init__(self, job: Job, arguments: EmbedderArguments, address: str, workers: int | None = None) -> None:
        """Join the cluster."""
        require_package("ray")
        with failures_told(f"Joining the Ray cluster '{address}'"):
            self._ray = join(address)
        self._job, self._arguments, self._here = job, arguments, str(Path.cwd())
        self._workers, self._resources = _share(self._ray, workers, arguments.options.get("device", "auto"))

    def describe(self) -> dict[str, Any]:
        """Everything except the texts that the vectors depend on, as reported by a machine of the cluster."""
        with failures_told(_WHAT):
            task: Any = self._ray.remote(**self._resources)(_description)
            description: dict[str, Any] = self._ray.get(task.remote(self._job, self._arguments, self._here))
            return description

    def embed(self, shards: Sequence[Shard], key: str, listener: Listener) -> None:
        """Embed shards on the cluster."""
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        for shard in shards:
            _tries(self._job, shard).unlink(missing_ok=True)
        by_name = {shard.name: shard for shard in shards}
        rows = [{"shard": json.dumps(asdict(shard))} for shard in shards]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=self._workers),
            fn_constructor_args=(self._job, self._arguments, key, self._here),
            **self._resources,
        )
        with failures_told(_WHAT):
            for row in dataset.iter_rows():
                shard = by_name[row["name"]]
                if row["failed"]:
                    listener.failed(shard, row["failed"])
                else:
                    record = ShardRecord.model_validate_json(row["record"])
                    listener.progress(record.counts)
                    listener.done(shard, record)

    def close(self) -> None:
        """The cluster goes on; actors end with the work."""


class _Actor:
    """An embedder on the cluster, for Ray Data."""

    def __init__(self, job: Job, arguments: EmbedderArguments, key: str, here: str) -> None:
        os.chdir(here)
        self._job, self._key = job, key
        self._member = Member(job, arguments)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """The record of a shard, or why it failed."""
        fields = json.loads(str(batch["shard"][0]))
        shard = Shard(**{**fields, "start": Start(**fields["start"])})
        record, failed = "", ""
        tries = _tries(self._job, shard)
        if _begun(tries) > _TRIES:
            failed = f"it was begun {_TRIES} times, and ended its process each time"
        else:
            try:
                record = self._member.embed(shard, self._key, _quiet).model_dump_json()
            except Exception as error:
                failed = str(error) if isinstance(error, UnmaskError) else f"{type(error).__name__}: {error}"
            tries.unlink(missing_ok=True)
        return {"name": [shard.name], "record": [record], "failed": [failed]}


def _description(job: Job, arguments: EmbedderArguments, here: str) -> dict[str, Any]:
    os.chdir(here)
    return Member(job, arguments).description


def _quiet(_: Counts) -> None:
    """Counts reach the driver with the record of a shard."""


def _tries(job: Job, shard: Shard) -> Path:
    """A file with a byte for each time that a shard was begun."""
    return Places(job.output).records / f".{shard.name}.tries"


def _begun(tries: Path) -> int:
    """Note that a shard is begun, and how often it was."""
    tries.parent.mkdir(parents=True, exist_ok=True)
    with tries.open("ab") as note:
        note.write(b".")
    return tries.stat().st_size


def _share(ray: Any, workers: int | None, device: str) -> tuple[int, dict[str, float]]:
    """How many workers, and what each of them takes. Raises UnmaskError if the cluster is too small."""
    all_of_it = ray.cluster_resources()
    gpus, cores = int(all_of_it.get("GPU", 0)), int(all_of_it.get("CPU", 0))
    if gpus and device in ("auto", "cuda"):
        if (workers or 1) > gpus:
            raise UnmaskError(f"--workers {workers}: the Ray cluster has {gpus} GPUs, and each worker takes one.")
        return workers or gpus, {"num_gpus": 1, "num_cpus": 1}
    if cores < (workers or 1):
        raise UnmaskError(f"--workers {workers or 1}: the Ray cluster has {cores} cores, and each worker takes one at least.")
    machines = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    machines = [int(count) for count in machines if count >= 1]
    return workers or len(machines), {"num_cpus": max(1, min([*machines, cores // workers] if workers else machines))}
