"""Generation: many continuations of prompts that share a prefix, whose key-value cache is computed once and repeated for every row.

Rows of different lengths have masked padding between prefix and row. A sliding window would count that padding, so under one, rows of
different lengths are padded on the left and computed in full. The same is done for a mixture with a final router.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from unmask.errors import UnmaskError
from unmask.models.attention import attention_function, replaced_attention
from unmask.models.decoder import pad_id_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: greedily at temperature 0, else from the most likely tokens that make up `top_p`."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Text:
    """A written text, and whether it ended by itself: with a stop string or the end-of-sequence token."""

    text: str
    ended: bool


@dataclass(frozen=True)
class GenerationJob:
    """A batch to be written. The fields are the arguments of `Writer.write`."""

    prefix: str
    rows: tuple[str, ...]
    sampling: Sampling
    stop: str
    seed: int


_STRETCH = 16  # new tokens after which finished rows are removed


class Writers(Protocol):
    """What continues texts, `width` batches at a time."""

    width: int

    def write_all(self, jobs: Sequence[GenerationJob]) -> list[list[Text]]:
        """The texts that follow the prompts of each job, in the order of the jobs."""
        ...


class Writer:
    """A language model that continues texts."""

    width = 1

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        if tokenizer.eos_token_id is None:
            raise UnmaskError(
                "The tokenizer of this model has no end-of-sequence token, so a text would never end. Use another model."
            )

    def write_all(self, jobs: Sequence[GenerationJob]) -> list[list[Text]]:
        """The texts that follow the prompts of each job, in the order of the jobs."""
        return [self.write(job.prefix, job.rows, job.sampling, job.stop, job.seed) for job in jobs]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def write(self, prefix: str, rows: Sequence[str], sampling: Sampling, stop: str, seed: int) -> list[Text]:
        """The text that follows prefix + row, for each row, up to `stop`. Equal seeds give equal texts.

        Raises UnmaskError for a prompt that leaves no positions for the new tokens.
        """
        start = self.tokenizer(prefix)["input_ids"]
        ends = [self.tokenizer(row, add_special_tokens=False)["input_ids"] for row in rows]
        config = self.model.config.get_text_config(decoder=True)
        kinds = getattr(config, "layer_types", None)
        has_window = any("sliding" in kind for kind in kinds) if kinds else bool(getattr(config, "sliding_window", None))
        longest, shortest = max(map(len, ends)), min(map(len, ends))
        shared = bool(start) and can_repeat(self.model) and (longest == shortest or not has_window)

        def pad(start: Sequence[int], end: Sequence[int]) -> list[int]:
            """Padding lies between a shared prefix and the row, else before both."""
            gap = [0] * (longest - len(end))
            return [*start, *gap, *end] if shared else [*gap, *start, *end]

        ids = torch.tensor([pad(start, end) for end in ends], device=self.model.device)
        mask = torch.tensor([pad([1] * len(start), [1] * len(end)) for end in ends], device=self.model.device)
        positions = getattr(config, "max_position_embeddings", None)
        if positions and ids.shape[1] + sampling.max_new_tokens > positions:
            raise UnmaskError(
                f"A prompt of {ids.shape[1]} tokens leaves no room for {sampling.max_new_tokens} new ones in {positions} positions: "
                "use shorter seeds."
            )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            cache = repeat_prefix(self.model, start, len(rows)) if shared else None
            with packed_attention(self.model):
                return self._continue(ids, mask, cache, sampling, stop)

    def _continue(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, sampling: Sampling, stop: str) -> list[Text]:
        """The texts that follow the rows. cache: keys and values of the prefix, if they are computed already.

        Finished rows are removed after each stretch of tokens. Otherwise every row would cost as much as the longest.
        """
        prompt_length, last = ids.shape[1], ids.shape[1] + sampling.max_new_tokens
        can_shrink = can_repeat(self.model)  # a cache that can repeat its rows can also drop them
        stretch = _STRETCH if can_shrink else sampling.max_new_tokens
        texts, active = [Text("", False)] * len(ids), list(range(len(ids)))
        nucleus = [NucleusSampling(sampling.temperature, sampling.top_p)] if sampling.temperature else []
        while True:
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                max_new_tokens=min(stretch, last - ids.shape[1]),
                stop_strings=[stop],
                tokenizer=self.tokenizer,
                eos_token_id=self._ends,
                pad_token_id=pad_id_of(self.tokenizer, self.model) or self.tokenizer.eos_token_id,
                use_cache=True,
                return_dict_in_generate=True,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                logits_processor=LogitsProcessorList(nucleus),
            )
            new = output.sequences[:, prompt_length:]
            ended = torch.isin(new, torch.tensor(self._ends, device=new.device)).any(dim=1).tolist()
            decoded = self.tokenizer.batch_decode(new, skip_special_tokens=True)
            for row, text, end in zip(active, decoded, ended, strict=True):
                texts[row] = Text(text.split(stop)[0], end or stop in text)
            unfinished = [index for index, row in enumerate(active) if not texts[row].ended]
            if not unfinished or not can_shrink or output.sequences.shape[1] == last:
                break
            if len(unfinished) < len(active):
                keep_rows(output.past_key_values, unfinished, ids.device)
            active = [active[index] for index in unfinished]
            ids, cache = output.sequences[unfinished], output.past_key_values
            mask = torch.nn.functional.pad(mask[unfinished], (0, ids.shape[1] - mask.shape[1]), value=1)
        return texts

    @property
    def _ends(self) -> list[int]:
        """The tokens that end a text: a chat model may have several."""
        config = getattr(self.model, "generation_config", None)
        configured = getattr(config, "eos_token_id", None) or []
        return sorted({self.tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])})


_SORTED = 2048
"""The number of likeliest tokens that are sorted first.

They usually hold the whole nucleus. Sorting the whole vocabulary can take longer than a pass of the model.
"""


class NucleusSampling(LogitsProcessor):  # type: ignore[misc]
    """Nucleus sampling (Holtzman et al., arXiv 1904.09751). Draws one token and sets all other logits to -inf, so `generate` is greedy.

    A token is in the nucleus if the more likely tokens add up to less than `top_p`. `generate` itself would sort the whole vocabulary,
    which can take longer than a pass of the model, and draw a random number for each of its words.
    """

    def __init__(self, temperature: float, top_p: float) -> None:
        self.temperature, self.top_p = temperature, top_p

    def __call__(self, input_ids: Int[Tensor, "text token"], scores: Float[Tensor, "text word"]) -> Float[Tensor, "text word"]:
        """The logits: 0 for the sampled token, -inf for all others. input_ids: not used."""
        likely = (scores / self.temperature).softmax(dim=-1)
        random = torch.rand(len(scores), 1, device=scores.device)
        top = likely.topk(min(_SORTED, likely.shape[1]))
        sampled = top.indices.gather(1, self._rank(top.values, random))
        beyond = top.values.sum(dim=-1) < self.top_p
        if beyond.any():
            every = likely[beyond].sort(descending=True)
            sampled[beyond] = every.indices.gather(1, self._rank(every.values, random[beyond]))
        return torch.full_like(scores, -torch.inf).scatter(1, sampled, 0.0)

    def _rank(self, ordered: Float[Tensor, "text word"], random: Float[Tensor, "text 1"]) -> Int[Tensor, "text 1"]:
        """The rank of the sampled token among descending probabilities, from a random number between 0 and 1."""
        up_to = ordered.cumsum(dim=-1)
        size = (up_to - ordered < self.top_p).sum(dim=-1, keepdim=True)
        return torch.searchsorted(up_to, random * up_to.gather(1, size - 1), right=True).minimum(size - 1)


def packed_attention(model: Any) -> AbstractContextManager[None]:
    """Give attention a mask that hides nothing whenever a single new token is computed, on a CPU under sdpa.

    With a mask, transformers reads keys and values once for all heads that share them. Without one, it leaves that to a kernel of PyTorch
    that is slow on a CPU.
    """
    inner = attention_function(model)
    if inner is None or model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return nullcontext()

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        if attention_mask is None and query.shape[2] == 1 and key.shape[1] < query.shape[1]:
            attention_mask = torch.ones(1, 1, 1, key.shape[2], dtype=torch.bool)
        return inner(module, query, key, value, attention_mask, *args, **kwargs)

    return replaced_attention(model, "unmask_packed", attend)


def can_repeat(model: Any) -> bool:
    """Whether the cache of a prefix can be repeated for every text.

    A state of linear attention cannot be repeated, nor can the second cache of a mixture with a final router.
    """
    from transformers import DynamicCache

    mixture = getattr(model.base_model, "mixture", None)
    if mixture is not None and mixture.routing.router == "final":
        return False
    return all(hasattr(layer, "batch_repeat_interleave") for layer in DynamicCache(config=model.config).layers)


def keep_rows(cache: Any, rows: Sequence[int], device: torch.device) -> None:
    """Keep only these rows of a cache, and of the sums that a mixture attaches to it (`RunningMean`)."""
    index = torch.tensor(rows, device=device)
    cache.batch_select_indices(index)
    if sums := getattr(cache, "logit_sums", {}):
        cache.logit_sums = {name: (total[index], count[index]) for name, (total, count) in sums.items()}


def repeat_prefix(model: Any, ids: Sequence[int], texts: int) -> Any:
    """The key-value cache of a prefix (its token ids) repeated for this number of texts."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    inputs = torch.tensor([list(ids)], device=model.device)
    model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(texts)
    return cache
