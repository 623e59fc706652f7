"""Writers other than a single model in this process: several on the GPUs or machines of a Ray cluster, or vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError, require_package
from unmask.io.cluster import failures_told, join
from unmask.models.bundled import resolve
from unmask.models.loading import Source, load_language_model, precision_of
from unmask.models.source import is_mixture, require_own_code
from unmask.moe.experts.lessons.generation import GenerationJob, Text, Writer

_WRITER = "A writer in another process"


class WriterPool:
    """Writers of one model, each in its own process. A batch depends only on its prompt and seed, so it does not matter who writes it.

    writers: their number. address: of a Ray cluster; "local" starts one on this machine. gpus: of each writer. Raises UnmaskError
    without Ray.
    """

    engine = Writer.engine

    def __init__(self, source: Source, writers: int, address: str = "local", gpus: float = 0) -> None:
        require_package("ray")
        with failures_told(_WRITER):
            ray = join(address)
        self._ray, self.width = ray, writers
        required, free = writers * gpus, float(ray.available_resources().get("GPU", 0))
        if required > free:  # Ray would wait for them forever
            raise UnmaskError(
                f"{writers} writers need {required:g} GPUs, and the Ray cluster has {free:g} free of "
                f"{ray.cluster_resources().get('GPU', 0):g}: ask for fewer --workers, or use --device cpu."
            )
        actor: Any = ray.remote(num_gpus=gpus, max_restarts=2, max_task_retries=2)(_Member)
        self._members = [actor.remote(source) for _ in range(writers)]
        with failures_told(_WRITER):  # fail now, and not at the first text
            ray.get([member.ready.remote() for member in self._members])

    def write_all(self, jobs: Sequence[GenerationJob]) -> list[list[Text]]:
        """The texts that follow the prompts of each job, in the order of the jobs. Raises UnmaskError with the cause if a writer fails."""
        with failures_told(_WRITER):
            waiting = [self._members[index % self.width].write.remote(job) for index, job in enumerate(jobs)]
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


class Engine:
    """A base model in vLLM that continues texts. Raises UnmaskError without vLLM, and for an expert or a mixture.

    It writes the same texts as transformers up to rounding: the last bits of a text may depend on the rest of the batch. So an interrupted
    run resumes with lessons of the same quality, but not with exactly the same ones.

    source: a base model. max_model_len: most tokens of a prompt with its continuation; None takes the positions of the model.
    """

    width, engine = 16, "vllm"

    def __init__(self, source: Source, max_model_len: int | None = None) -> None:
        folder = Path(resolve(source.model))
        if is_mixture(folder) or (folder / "adapter_config.json").is_file():
            raise UnmaskError(
                f"'{source.model}' is an expert or a mixture, and the vLLM writer takes base models only. Use the default writer."
            )
        require_own_code(str(folder), source)
        try:
            from vllm import LLM
        except ImportError as error:
            raise UnmaskError("This writer needs vLLM: pip install vllm.") from error
        dtype = precision_of(source)
        self._model = LLM(
            model=str(folder) if folder.is_dir() else source.model,
            revision=source.revision,
            dtype=dtype,
            trust_remote_code=source.trust_remote_code,
            max_model_len=max_model_len,
            enable_prefix_caching=True,
            disable_log_stats=True,
        )
        self.tokenizer: Any = self._model.get_tokenizer()

    def write_all(self, jobs: Sequence[GenerationJob]) -> list[list[Text]]:
        """The texts that follow the prompts of each job, in the order of the jobs. Raises UnmaskError for a prompt that is too long."""
        from vllm import SamplingParams

        prompts: list[Any] = []
        parameters: list[Any] = []
        for job in jobs:
            start = self.tokenizer(job.prefix)["input_ids"]
            for index, row in enumerate(job.rows):
                prompts.append({"prompt_token_ids": [*start, *self.tokenizer(row, add_special_tokens=False)["input_ids"]]})
                sampling = SamplingParams(
                    max_tokens=job.sampling.max_new_tokens,
                    temperature=job.sampling.temperature,
                    top_p=job.sampling.top_p,
                    stop=[job.stop],
                )
                sampling.seed = job.seed * 4096 + index  # a seed for each row: rows with equal prompts must differ
                parameters.append(sampling)
        positions = self._model.model_config.max_model_len
        longest = max(len(prompt["prompt_token_ids"]) for prompt in prompts)
        new_tokens = max(job.sampling.max_new_tokens for job in jobs)
        if longest + new_tokens > positions:
            raise UnmaskError(
                f"A prompt of {longest} tokens leaves no room for {new_tokens} new ones in {positions} positions: use shorter seeds."
            )
        first = (output.outputs[0] for output in self._model.generate(prompts, parameters, use_tqdm=False))
        texts = (Text(output.text, output.finish_reason == "stop") for output in first)
        return [[next(texts) for _ in job.rows] for job in jobs]
