"""Fleet: several writers at once, on the GPUs or machines of a Ray cluster. What they write is what one of them would write.

A batch depends on its prompt and its seed alone, so it does not matter who writes it, nor when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unmask.errors import UnmaskError
from unmask.experts.generation import Job, Text, Writer
from unmask.experts.speakers import load_speaker
from unmask.loading import Source


class Fleet:
    """Writers of one model, each in a process of its own.

    writers: how many; address: of a Ray cluster, or None for this machine; gpus: that each is given. Raises UnmaskError without Ray.
    """

    engine = Writer.engine

    def __init__(self, source: Source, writers: int, address: str | None = None, gpus: float = 0) -> None:
        try:
            import ray
        except ImportError as error:
            raise UnmaskError("Several writers need Ray: pip install 'unmask[ray]'.") from error
        if not ray.is_initialized():
            ray.init(address=address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        self._ray, self.width = ray, writers
        actor: Any = ray.remote(num_gpus=gpus, max_restarts=2, max_task_retries=2)(_Member)
        self._members = [actor.remote(source) for _ in range(writers)]

    def write_all(self, jobs: Sequence[Job]) -> list[list[Text]]:
        """What follows each job's prompts, in the order of the jobs."""
        waiting = [self._members[place % self.width].write.remote(job) for place, job in enumerate(jobs)]
        return list(self._ray.get(waiting))

    def close(self) -> None:
        """Let the writers go."""
        for member in self._members:
            self._ray.kill(member)


class _Member:
    """One writer, loaded where it runs."""

    def __init__(self, source: Source) -> None:
        self.writer = Writer(*load_speaker(source))

    def write(self, job: Job) -> list[Text]:
        return self.writer.write_all([job])[0]
