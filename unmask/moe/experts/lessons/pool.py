"""Writer pool: several writers at once, on the GPUs or machines of a Ray cluster. They write what a single writer would write.

A batch depends only on its prompt and its seed. So it does not matter which writer writes it, or when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unmask.errors import UnmaskError, require_package
from unmask.io.cluster import failures_told, join
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.lessons.generation import GenerationJob, Text, Writer

_WRITER = "A writer in another process"


class WriterPool:
    """Writers of one model, each in a process of its own.

    writers: their number. address: of a Ray cluster; "local" starts one on this machine. gpus: of each writer. Raises UnmaskError
    without Ray.
    """

    engine = Writer.engine

    def __init__(self, source: Source, writers: int, address: str = "local", gpus: float = 0) -> None:
        require_package("ray")
        with failures_told(_WRITER):
            ray = join(address)
        self._ray, self.width = ray, writers
        _require_gpus(ray, writers, gpus)
        actor: Any = ray.remote(num_gpus=gpus, max_restarts=2, max_task_retries=2)(_Member)
        self._members = [actor.remote(source) for _ in range(writers)]
        with failures_told(_WRITER):  # fail now, and not at the first text
            ray.get([member.ready.remote() for member in self._members])

    def write_all(self, jobs: Sequence[GenerationJob]) -> list[list[Text]]:
        """The texts that follow the prompts of each job, in the order of the jobs. Raises UnmaskError with the cause if a writer fails."""
        with failures_told(_WRITER):
            waiting = [self._members[place % self.width].write.remote(job) for place, job in enumerate(jobs)]
            return list(self._ray.get(waiting))

    def close(self) -> None:
        """Stop the writers."""
        for member in self._members:
            self._ray.kill(member)


class _Member:
    """One writer, loaded where it runs."""

    def __init__(self, source: Source) -> None:
        self.writer = Writer(*load_language_model(source))

    def ready(self) -> bool:
        return True

    def write(self, job: GenerationJob) -> list[Text]:
        return self.writer.write_all([job])[0]


def _require_gpus(ray: Any, writers: int, gpus: float) -> None:
    """Raise UnmaskError if the cluster has too few GPUs for the writers. Ray would wait for them without end."""
    wanted, free = writers * gpus, float(ray.available_resources().get("GPU", 0))
    if wanted > free:
        raise UnmaskError(
            f"{writers} writers need {wanted:g} GPUs, and the Ray cluster has {free:g} free of {ray.cluster_resources().get('GPU', 0):g}: "
            "ask for fewer --workers, or use --device cpu."
        )
