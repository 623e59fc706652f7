"""vLLM as the writer of lessons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.models.bundled import resolve
from unmask.models.loading import Source, precision_of
from unmask.models.source import is_mixture, require_own_code
from unmask.moe.experts.lessons.generation import GenerationJob, Text


class Engine:
    """A base model in vLLM that continues texts. Raises UnmaskError without vLLM, and for an expert or a mixture.

    In reduced precision, a text may depend on the rest of the batch. So an interrupted run resumes with lessons of the same quality, but
    not with exactly the same ones.

    source: a base model. max_model_len: most tokens of a prompt with its continuation; None takes the positions of the model.
    """

    width = 16

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
