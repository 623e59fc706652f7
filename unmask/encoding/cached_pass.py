"""Cached pass: a forward pass over the texts of a task, whose vectors are read from a vector cache; missing ones are computed first.

Vectors go to disk in chunks, which are filled by tokens in the order of the texts. A run that was stopped after a chunk therefore continues
with the same chunks, and with identical results.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from unmask.designs.design import Design
from unmask.encoding.encoder import Encoder, Tally
from unmask.encoding.features import Fit, Raw, mean_of, vectors
from unmask.encoding.forward_pass import ForwardPass, Vectors
from unmask.encoding.shared_prefix import PromptBatch, text_before_placeholder
from unmask.encoding.tokenization import TokenizedText
from unmask.encoding.vector_cache import CacheTable, LostRows, VectorCache, text_key
from unmask.errors import UnmaskError
from unmask.io.terminal import progress_bar

_CHUNK_TOKENS = 2**17
"""Most tokens of a chunk, and so the most work that is lost if the process is killed: two minutes of a small model on two cores."""
_ATTEMPTS = 5  # at reading the vectors, and at recomputing those that were damaged on disk
_PROCESS = Path("/proc/self")


@dataclass
class ComputeCost:
    """Texts, tokens, seconds and peak memory in bytes (`peak_memory`) of the computation.

    A prompt that shares the reading of texts is charged what it would cost alone: its own tokens, at the measured speed. Only the peak
    memory covers all prompts together.
    """

    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    peak_memory: int = 0

    def add(self, texts: Sequence[TokenizedText], seconds: float, peak_memory: int) -> None:
        """Add the cost of a chunk."""
        self.texts += len(texts)
        self.tokens += sum(len(text.ids) for text in texts)
        self.seconds += seconds
        self.peak_memory = max(self.peak_memory, peak_memory)


@dataclass
class CachedPass:
    """The forward pass of some designs over the texts of one task. A text is computed when it is first requested, and cached."""

    encoder: Encoder
    designs: Mapping[Design, Fit]
    cache: VectorCache
    name: str
    """Everything that vectors depend on besides design and text: weights, precision, limit, reference texts."""
    label: str
    """Names the work on a progress bar."""
    linked: Sequence[CachedPass] = ()
    """Passes over the same texts whose prompts share a prefix with this one: each text is read once for all of them."""
    tally: Tally = field(default_factory=Tally)
    """Counts the distinct texts of the task, computed now or before."""
    cost: ComputeCost = field(default_factory=ComputeCost)
    """The cost of this computation, without vectors that were in the cache."""
    _counted: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Prepare the forward pass."""
        self.forward: ForwardPass = self.encoder.forward_pass(self.designs)

    @property
    def prompt(self) -> str:
        """The name of the prompt."""
        return self.forward.tokenizer.name

    def table(self, design: Design) -> CacheTable:
        """The cached vectors of a design."""
        return self.cache.table(f"{self.name}\0{design.name}")

    @property
    def sizes(self) -> CacheTable:
        """The cached sizes of texts: number of tokens, and whether the text was truncated."""
        return self.cache.table(f"{self.name}\0{self.prompt}")

    def get(self, design: Design, texts: Sequence[str], instruction: str | None) -> Vectors:
        """Vectors of one design, shape (text, dim)."""
        if not self.forward.tokenizer.takes_instruction:
            instruction = None
        keys = [text_key(text, instruction) for text in texts]
        distinct = dict(zip(keys, texts, strict=True))
        for _ in range(_ATTEMPTS):
            with suppress(LostRows):
                return self._read(design, keys, distinct, instruction)
        raise UnmaskError(
            f"'{self.cache.folder}': files change after they were written. Check the disk, or use another folder."
        )

    def _read(self, design: Design, keys: Sequence[bytes], distinct: Mapping[bytes, str], instruction: str | None) -> Vectors:
        missing = self._missing(distinct)
        if missing and self.linked:
            with suppress(UnmaskError, torch.OutOfMemoryError):  # a prompt that fails must not fail the others
                self._compute(missing, instruction)
            if missing := self._missing(distinct):
                self.linked = ()
        if missing:
            self._compute(missing, instruction)
        if new := [key for key in distinct if key not in self._counted]:
            sizes = self.sizes.get(new)
            self.tally.texts += len(new)
            self.tally.tokens += int(sizes[:, 0].sum())
            self.tally.truncated += int(sizes[:, 1].sum())
            self._counted.update(new)
        return self.table(design).get(keys)

    def _missing(self, distinct: Mapping[bytes, str]) -> dict[bytes, str]:
        tables = [self.sizes, *(self.table(design) for design in self.designs)]
        return {key: text for key, text in distinct.items() if any(key not in table for table in tables)}

    def _compute(self, missing: Mapping[bytes, str], instruction: str | None) -> None:
        # these vectors are stored last: if the process is killed within a chunk, it is recomputed in the same batches
        passes, keys, texts = [*self.linked, self], list(missing), list(missing.values())
        batches = [
            PromptBatch(cached.forward, list(cached.forward.tokenizer.tokenize(texts, instruction))) for cached in passes
        ]
        device = self.encoder.backbone.device
        reset_peak_memory(device)
        with progress_bar(self.label, len(passes) * len(keys)) as advance:
            sizes = zip(*([len(text.ids) for text in batch.texts] for batch in batches), strict=True)
            for start, end in chunks([sum(lengths) for lengths in sizes]):
                chunk = [replace(batch, texts=batch.texts[start:end]) for batch in batches]
                started = time.perf_counter()
                result = self.encoder.encode_prompts(chunk, advance)
                seconds_per_token = (time.perf_counter() - started) / result.tokens
                peak = peak_memory(device)
                for cached, batch, by_design, tokens in zip(passes, chunk, result.vectors, result.tokens_alone, strict=True):
                    cached.cost.add(batch.texts, seconds_per_token * tokens, peak)
                    size_rows = np.array([(len(text.ids), text.truncated) for text in batch.texts], np.int64)
                    cached.sizes.add(keys[start:end], size_rows)
                    for design, rows in by_design.items():
                        cached.table(design).add(keys[start:end], rows)


def link_shared_passes(passes: Sequence[CachedPass]) -> None:
    """Link passes over the same texts whose prompts share a prefix, one for each prompt."""
    prefixes = [text_before_placeholder(cached.designs, cached.forward.tokenizer) for cached in passes]
    for cached, prefix in zip(passes, prefixes, strict=True):
        matches = [match for match, key in zip(passes, prefixes, strict=True) if prefix is not None and key == prefix]
        by_prompt = {match.prompt: match for match in reversed(matches)}
        by_prompt.pop(cached.prompt, None)
        cached.linked = list(by_prompt.values())


@dataclass
class AveragedPasses:
    """The vectors of designs that average the same prompts, from the pass of each prompt."""

    passes: Mapping[str, CachedPass]
    """By prompt, with the features of every design under it (`Design.features_under`)."""
    fits: Mapping[Design, Fit]

    def get(self, design: Design, texts: Sequence[str], instruction: str | None) -> Vectors:
        """Vectors of one design, float32 of shape (text, dim). An instruction goes to the prompts that take one."""

        def read(prompt: str) -> Raw:
            hidden, routing = (
                [
                    torch.from_numpy(self.passes[prompt].get(feature, texts, instruction))
                    for feature in design.features_under(prompt)
                    if feature.features == features
                ]
                for features in ("hidden", "routing")
            )
            return Raw(torch.cat(hidden, dim=1) if hidden else None, routing[0] if routing else None)

        averaged: Vectors = vectors(design, mean_of([read(prompt) for prompt in design.prompts]), self.fits[design]).numpy()
        return averaged

    @property
    def tally(self) -> Tally:
        """The texts of the task, their tokens in all prompts, and the texts that the longest prompt truncates."""
        tallies = {prompt: cached.tally for prompt, cached in self.passes.items()}
        return Tally(
            texts=max(tally.texts for tally in tallies.values()),
            truncated=max(tally.truncated for tally in tallies.values()),
            tokens=sum(tally.tokens for tally in tallies.values()),
            by_prompt={prompt: tally.tokens for prompt, tally in tallies.items()},
        )


def chunks(lengths: Sequence[int], limit: int = _CHUNK_TOKENS) -> Iterator[tuple[int, int]]:
    """Bounds of chunks of texts, each of at most `limit` tokens or one longer text. A bound depends only on the texts before it."""
    start = total = 0
    for index, length in enumerate(lengths):
        if index > start and total + length > limit:
            yield start, index
            start, total = index, 0
        total += length
    if start < len(lengths):
        yield start, len(lengths)


def reset_peak_memory(device: torch.device) -> None:
    """Start `peak_memory` from the memory in use now, on a CUDA device and on Linux. Elsewhere the peak cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")  # proc(5): 5 resets the peak and nothing else


def peak_memory(device: torch.device) -> int:
    """The peak memory since `reset_peak_memory`, in bytes: of tensors on a CUDA device, else of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):
        # not ru_maxrss, which on Linux includes the peak of the process before it executed this program
        if peak := re.search(r"^VmHWM:\s*(\d+) kB", (_PROCESS / "status").read_text(), re.MULTILINE):
            return int(peak[1]) * 1024
    import resource
    import sys

    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_kib if sys.platform == "darwin" else peak_kib * 1024
