"""Teams: what embeds the shards of a folder. The smallest one is this process; others are in workers.py and on_ray.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unmask.bulk.document_encoder import Counts, DocumentEncoder
from unmask.bulk.embed_shard import Places, Progress, ShardRecord, embed_shard, finished
from unmask.bulk.job import EmbedderArguments, Job
from unmask.bulk.kept_fit import load_with_kept_fit
from unmask.bulk.manifest import describe, key_of
from unmask.bulk.shards import Shard
from unmask.errors import UnmaskError


@dataclass(frozen=True)
class Listener:
    """Callbacks while shards are embedded: progress since the last call, a finished shard, a failed shard and the reason."""

    progress: Callable[[Counts], None]
    done: Callable[[Shard, ShardRecord], None]
    failed: Callable[[Shard, str], None]


class Team(Protocol):
    """What embeds shards: this process, processes of this machine, or a cluster."""

    def describe(self) -> dict[str, Any]:
        """Everything except the texts that the vectors depend on. Raises UnmaskError if the embedder cannot be loaded."""
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
        embedder, fit_file = load_with_kept_fit(arguments, job.output, check=lambda fitted: DocumentEncoder(fitted, job))
        self._encoder = DocumentEncoder(embedder, job)
        self._places = Places(job.output)
        self.description = describe(embedder, job, self._encoder.dim) | {"fit_file": fit_file}

    def embed(self, shard: Shard, key: str, progress: Progress) -> ShardRecord:
        """The record of a shard, which is embedded unless another process has already done so.

        key: the name of the run's description. Raises UnmaskError if this embedder is not the described one.
        """
        if key_of(self.description) != key:
            raise UnmaskError(
                f"This process loaded another embedder than the one that the run described: {self._told}. Give --dtype, and the same model "
                "to all."
            )
        return finished(self._places, shard, key) or embed_shard(self._encoder, self._places, shard, key, progress)

    @property
    def _told(self) -> str:
        """The embedder, in words."""
        name, device = self.description["model"]["model"], self.description["device"]
        return f"'{name}' ({self.description['model']['fingerprint']}), {self.description['dtype']} on {device}"


class ThisProcess:
    """A team of one: shards in their order, on all cores or on one GPU."""

    def __init__(self, job: Job, arguments: EmbedderArguments) -> None:
        self._member = Member(job, arguments)

    def describe(self) -> dict[str, Any]:
        """Everything except the texts that the vectors depend on."""
        return self._member.description

    def embed(self, shards: Sequence[Shard], key: str, listener: Listener) -> None:
        """Embed shards. An error ends the run; shards that are done stay."""
        for shard in shards:
            listener.done(shard, self._member.embed(shard, key, listener.progress))

    def close(self) -> None:
        """Nothing was started."""
