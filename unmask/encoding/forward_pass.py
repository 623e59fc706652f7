"""Forward passes: the vectors of all designs that share one attention and prompt, each text computed once for all of them.

Vectors go to disk a chunk at a time. Chunks are filled by tokens, in the order of the texts. So a run that was stopped after a chunk
continues with the same chunks, and with identical results.
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
from unmask.encoding.backbone import Backbone
from unmask.encoding.encode import Tally, Vectors
from unmask.encoding.features import Fit
from unmask.encoding.questions import Question, encode_questions, opening_of
from unmask.encoding.tokenization import PromptTokenizer, TokenizedText
from unmask.encoding.vector_store import LostRows, StoredRows, VectorStore, key_of
from unmask.errors import UnmaskError
from unmask.io.terminal import progress_bar

_CHUNK = 2**17
"""Tokens of a chunk: the most work that a kill can lose, two minutes of a small model on two cores."""

_ATTEMPTS = 5  # to read the vectors, and to compute again those that were damaged on the disk
_PROCESS = Path("/proc/self")


@dataclass
class ComputeCost:
    """The cost of computing: texts, tokens, seconds, and the peak memory meanwhile in bytes (see `peak_memory`).

    A prompt that shares the reading of texts with others costs what it would cost alone: its own tokens, at the speed that was measured.
    Only the peak is that of all of them together.
    """

    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    peak_memory: int = 0


@dataclass
class ForwardPass:
    """A model under one attention, a prompt, and the designs that share both.

    name: all that vectors depend on beside design and text (weights, precision, limit, reference texts). budget: tokens of a batch.
    """

    backbone: Backbone
    prompts: PromptTokenizer
    fits: Mapping[Design, Fit]
    cache: VectorStore
    name: str
    budget: int

    def stored(self, design: Design) -> StoredRows:
        """The stored vectors of a design."""
        return self.cache.stored(f"{self.name}\0{design.name}")

    @property
    def sizes(self) -> StoredRows:
        """The stored sizes of texts: number of tokens, and whether the text was cut."""
        return self.cache.stored(f"{self.name}\0{self.prompts.name}")


@dataclass
class SharedVectors:
    """Vectors of designs that share a forward pass, for the texts of one task. A text is computed when it is first needed.

    what: names the work on a progress bar. companions: vectors of prompts that begin alike, for the same texts; each text is read once for
    all of them. tally: counts the distinct texts of the task, computed here or before. spent: the cost of what was computed here.
    """

    source: ForwardPass
    designs: Sequence[Design]
    what: str
    tally: Tally = field(default_factory=Tally)
    spent: ComputeCost = field(default_factory=ComputeCost)
    companions: Sequence[SharedVectors] = ()
    _seen: set[bytes] = field(default_factory=set)

    def get(self, design: Design, texts: Sequence[str], instruction: str | None) -> Vectors:
        """Vectors of one design, shape (text, dim)."""
        if not self.source.prompts.takes_instruction:
            instruction = None
        keys = [key_of(text, instruction) for text in texts]
        distinct = dict(zip(keys, texts, strict=True))
        for _ in range(_ATTEMPTS):
            with suppress(LostRows):
                return self._read(design, keys, distinct, instruction)
        raise UnmaskError(
            f"'{self.source.cache.folder}': files change after they were written. Check the disk, or use another folder."
        )

    def _read(self, design: Design, keys: Sequence[bytes], distinct: Mapping[bytes, str], instruction: str | None) -> Vectors:
        """Vectors from the disk; missing ones are computed and stored first. Raises LostRows if a block was damaged since."""
        missing = self._missing(distinct)
        if missing and self.companions:
            with suppress(UnmaskError, torch.OutOfMemoryError):  # a prompt that fails takes no others with it
                self._compute(missing, instruction)
            if missing := self._missing(distinct):
                self.companions = ()
        if missing:
            self._compute(missing, instruction)
        self._count([key for key in distinct if key not in self._seen])
        return self.source.stored(design).get(keys)

    def _missing(self, distinct: Mapping[bytes, str]) -> dict[bytes, str]:
        """The texts of which something is not stored."""
        stores = [self.source.sizes, *(self.source.stored(design) for design in self.designs)]
        return {key: text for key, text in distinct.items() if any(key not in store for store in stores)}

    def _compute(self, missing: Mapping[bytes, str], instruction: str | None) -> None:
        # these vectors are stored last: what a kill left of a chunk is then computed again in the same batches
        together, keys = [*self.companions, self], list(missing)
        questions = [shared._question(list(missing.values()), instruction) for shared in together]
        device = self.source.backbone.device
        reset_peak_memory(device)
        with progress_bar(self.what, len(together) * len(keys)) as advance:
            sizes = zip(*([len(text.ids) for text in question.texts] for question in questions), strict=True)
            for start, end in chunks([sum(lengths) for lengths in sizes]):
                chunk, began = (
                    [replace(question, texts=question.texts[start:end]) for question in questions],
                    time.perf_counter(),
                )
                answers = encode_questions(self.source.backbone, chunk, batch_tokens=self.source.budget, progress=advance)
                pace = (time.perf_counter() - began) / answers.computed
                peak = peak_memory(device)
                for shared, question, vectors, alone in zip(together, chunk, answers.vectors, answers.alone, strict=True):
                    shared._spend(question.texts, pace * alone, peak)
                    shared._store(keys[start:end], question.texts, vectors)

    def _question(self, texts: Sequence[str], instruction: str | None) -> Question:
        fits = {design: self.source.fits[design] for design in self.designs}
        return Question(self.source.prompts, fits, list(self.source.prompts.tokenize(texts, instruction)))

    def _store(self, keys: Sequence[bytes], texts: Sequence[TokenizedText], by_design: Mapping[Design, Vectors]) -> None:
        self.source.sizes.add(keys, np.array([(len(text.ids), text.truncated) for text in texts], np.int64))
        for design, vectors in by_design.items():
            self.source.stored(design).add(keys, vectors)

    def _spend(self, chunk: Sequence[TokenizedText], seconds: float, peak: int) -> None:
        self.spent.texts += len(chunk)
        self.spent.tokens += sum(len(text.ids) for text in chunk)
        self.spent.seconds += seconds
        self.spent.peak_memory = max(self.spent.peak_memory, peak)

    def _count(self, new: Sequence[bytes]) -> None:
        if new:
            sizes = self.source.sizes.get(new)
            self.tally.texts += len(new)
            self.tally.tokens += int(sizes[:, 0].sum())
            self.tally.truncated += int(sizes[:, 1].sum())
            self._seen.update(new)


def introduce(vectors: Sequence[SharedVectors]) -> None:
    """Make vectors for the same texts companions if their prompts begin alike, one for each prompt."""
    openings = [opening_of(shared.designs, shared.source.prompts) for shared in vectors]
    for shared, opening in zip(vectors, openings, strict=True):
        alike = [other for other, theirs in zip(vectors, openings, strict=True) if opening is not None and theirs == opening]
        by_prompt = {other.source.prompts.name: other for other in reversed(alike)}
        by_prompt.pop(shared.source.prompts.name, None)
        shared.companions = list(by_prompt.values())


def chunks(lengths: Sequence[int], most: int = _CHUNK) -> Iterator[tuple[int, int]]:
    """Bounds of chunks of texts: each has at most `most` tokens, or is one longer text. A bound depends only on the texts before it."""
    start = total = 0
    for place, length in enumerate(lengths):
        if place > start and total + length > most:
            yield start, place
            start, total = place, 0
        total += length
    if start < len(lengths):
        yield start, len(lengths)


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` start from what is held now, on a CUDA device and on Linux. Elsewhere a peak cannot be forgotten."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")  # proc(5): 5 resets the peak, and touches nothing else


def peak_memory(device: torch.device) -> int:
    """The peak memory since `reset_peak_memory`, in bytes: of tensors on a CUDA device, else of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):
        # not ru_maxrss, which on Linux also counts what the process was before it became this program
        if peak := re.search(r"^VmHWM:\s*(\d+) kB", (_PROCESS / "status").read_text(), re.MULTILINE):
            return int(peak[1]) * 1024
    import resource
    import sys

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
