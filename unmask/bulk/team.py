"""Teams: what embeds the shards of a folder. The smallest one is this process; others are in workers.py and on_ray.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from unmask.bulk.embed_shard import ReportCounts, ShardPaths, ShardRecord, embed_shard, finished_record
from unmask.bulk.job import EmbedJob
from unmask.bulk.loading import EmbedderArguments, describe, load_with_stored_fit, settings_digest
from unmask.bulk.row_encoder import RowEncoder
from unmask.bulk.shards import Shard
from unmask.errors import UnmaskError

ShardResult = tuple[Shard, ShardRecord | str]
"""A shard and its record, or the reason why it failed."""


class Team(Protocol):
    """What embeds shards: this process, processes of this machine, or a cluster."""

    def describe(self) -> dict[str, Any]:
        """Everything except the texts that the vectors depend on. Raises UnmaskError if the embedder cannot be loaded."""
        ...

    def embed(self, shards: Sequence[Shard], digest: str, progress: ReportCounts) -> Iterator[ShardResult]:
        """Embed shards, in any order. digest: of the settings; progress: takes what was done since its last call."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class Member:
    """One embedder, in the process that uses it."""

    def __init__(self, job: EmbedJob, arguments: EmbedderArguments) -> None:
        """Load. Raises UnmaskError for a model or an option that does not work."""
        embedder, fit_file = load_with_stored_fit(arguments, job.output, check=lambda fitted: RowEncoder(fitted, job))
        self._encoder = RowEncoder(embedder, job)
        self._paths = ShardPaths(job.output)
        self.description = describe(embedder, job, self._encoder.dim) | {"fit_file": fit_file}

    def embed(self, shard: Shard, digest: str, progress: ReportCounts) -> ShardRecord:
        """The record of a shard, which is embedded unless another process has already done so.

        digest: of the run's settings. Raises UnmaskError if this embedder is not the described one.
        """
        if settings_digest(self.description) != digest:
            model, device = self.description["model"], self.description["device"]
            raise UnmaskError(
                f"This process loaded another embedder than the one that the run described: '{model['model']}' ({model['fingerprint']}), "
                f"{self.description['dtype']} on {device}. Give --dtype, and the same model to all."
            )
        return finished_record(self._paths, shard, digest) or embed_shard(self._encoder, self._paths, shard, digest, progress)


class ThisProcess:
    """A team of one: shards in their order, on all cores or on one GPU. An error ends the run."""

    def __init__(self, job: EmbedJob, arguments: EmbedderArguments) -> None:
        self._member = Member(job, arguments)

    def describe(self) -> dict[str, Any]:
        """Everything except the texts that the vectors depend on."""
        return self._member.description

    def embed(self, shards: Sequence[Shard], digest: str, progress: ReportCounts) -> Iterator[ShardResult]:
        """Embed shards."""
        for shard in shards:
            yield shard, self._member.embed(shard, digest, progress)

    def close(self) -> None:
        """Nothing was started."""
