"""Teams: what embeds the shards of a folder. The smallest one is this process; others are in workers.py and on_ray.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unmask.bulk.document_encoder import Counts, DocumentEncoder
from unmask.bulk.embed_shard import Places, Progress, ShardRecord, embed_shard, finished
from unmask.bulk.job import EmbedderArguments, Job
from unmask.bulk.manifest import describe
from unmask.bulk.shards import Shard


@dataclass(frozen=True)
class Listener:
    """Who is told while shards are embedded: what was done since the last call, a shard that is done, a shard that failed and why."""

    progress: Callable[[Counts], None]
    done: Callable[[Shard, ShardRecord], None]
    failed: Callable[[Shard, str], None]


class Team(Protocol):
    """What embeds shards: this process, processes of this machine, or a cluster."""

    def describe(self) -> dict[str, Any]:
        """Everything that the vectors depend on beside the texts. Raises UnmaskError if the embedder cannot be loaded."""
        ...

    def embed(self, shards: Sequence[Shard], key: str, listener: Listener) -> None:
        """Embed shards, in any order. key: the name of the description."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class Member:
    """One embedder, loaded where it works."""

    def __init__(self, job: Job, arguments: EmbedderArguments) -> None:
        """Load. Raises UnmaskError for a model or an option that does not work."""
        self._encoder = DocumentEncoder(arguments.load(), job)
        self._places = Places(job.output)
        self.description = describe(self._encoder.embedder, job, self._encoder.layout.dim)

    def embed(self, shard: Shard, key: str, progress: Progress) -> ShardRecord:
        """The record of a shard, which is embedded unless somebody else was faster."""
        return finished(self._places, shard, key) or embed_shard(self._encoder, self._places, shard, key, progress)


class ThisProcess:
    """A team of one: shards in their order, on all cores or on one GPU."""

    def __init__(self, job: Job, arguments: EmbedderArguments) -> None:
        self._member = Member(job, arguments)

    def describe(self) -> dict[str, Any]:
        """Everything that the vectors depend on beside the texts."""
        return self._member.description

    def embed(self, shards: Sequence[Shard], key: str, listener: Listener) -> None:
        """Embed shards. An error ends the run; shards that are done stay."""
        for shard in shards:
            listener.done(shard, self._member.embed(shard, key, listener.progress))

    def close(self) -> None:
        """Nothing was started."""
