"""Forward passes: the vectors of all designs that share one attention and prompt, each text computed once for all of them.

What is computed goes to disk a chunk at a time. A chunk is filled by tokens in the order in which texts were asked for, so that a run that
was stopped after one goes on with the same chunks, and to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from unmask.designs.design import Design
from unmask.encoding.backbone import Backbone
from unmask.encoding.encode import Tally, Vectors, encode_tokenized
from unmask.encoding.features import Fit
from unmask.encoding.tokenization import PromptTokenizer, TokenizedText
from unmask.encoding.vector_store import LostRows, StoredRows, VectorStore, key_of
from unmask.errors import UnmaskError

_CHUNK = 2**17
"""Tokens of a chunk: what a kill may cost, two minutes of a small model on two cores."""

_ATTEMPTS = 5  # to read what lies on the disk, and to compute again what was damaged there

ShowProgress = Callable[[int], AbstractContextManager["Callable[[int], None] | None"]]
"""A progress bar for so many texts."""


@dataclass
class ComputeCost:
    """What computing cost: seconds, for so many texts and tokens; peak memory in bytes, of the process or of the device."""

    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    peak_memory: int = 0


@dataclass
class ForwardPass:
    """A model in one attention, a prompt, and the designs that read it.

    name: what vectors depend on beside design and text (weights, precision, limit, reference texts); budget: tokens of a batch.
    """

    backbone: Backbone
    prompts: PromptTokenizer
    fits: Mapping[Design, Fit]
    cache: VectorStore
    name: str
    budget: int

    def stored(self, design: Design) -> StoredRows:
        """Where a design's vectors are kept."""
        return self.cache.stored(f"{self.name}\0{design.name}")

    @property
    def sizes(self) -> StoredRows:
        """Tokens of each text, and whether it was cut."""
        return self.cache.stored(f"{self.name}\0{self.prompts.prompt.name}")


@dataclass
class SharedVectors:
    """Vectors of some designs of a pass for the texts of one task, computed when a text is first asked for.

    tally: of the task's distinct texts, wherever their vectors came from; spent: of what was computed here.
    """

    source: ForwardPass
    designs: Sequence[Design]
    show_progress: ShowProgress
    tally: Tally = field(default_factory=Tally)
    spent: ComputeCost = field(default_factory=ComputeCost)
    _seen: set[bytes] = field(default_factory=set)

    def get(self, design: Design, texts: Sequence[str], instruction: str | None) -> Vectors:
        """Vectors of one design, shape (text, dim)."""
        if not self.source.prompts.prompt.takes_instruction:
            instruction = None
        keys = [key_of(text, instruction) for text in texts]
        distinct = dict(zip(keys, texts, strict=True))
        for _ in range(_ATTEMPTS):
            with suppress(LostRows):
                return self._read(design, keys, distinct, instruction)
        raise UnmaskError(f"'{self.source.cache.folder}': the disk does not give back what was written to it.")

    def _read(self, design: Design, keys: Sequence[bytes], distinct: Mapping[bytes, str], instruction: str | None) -> Vectors:
        """Vectors from the disk, where missing ones are put first. Raises LostRows if a block was damaged since."""
        shelves = [self.source.sizes, *(self.source.stored(one) for one in self.designs)]
        missing = {key: text for key, text in distinct.items() if any(key not in shelf for shelf in shelves)}
        if missing:
            self._compute(missing, instruction)
        self._count([key for key in distinct if key not in self._seen])
        return self.source.stored(design).get(keys)

    def _compute(self, missing: Mapping[bytes, str], instruction: str | None) -> None:
        source, keys = self.source, list(missing)
        tokenized = list(source.prompts.tokenize(list(missing.values()), instruction))
        fits = {design: source.fits[design] for design in self.designs}
        with self.show_progress(len(keys)) as advance:
            for start, end in chunks([len(text.ids) for text in tokenized]):
                part, began = tokenized[start:end], time.perf_counter()
                found = encode_tokenized(
                    source.backbone, source.prompts, fits, part, batch_tokens=source.budget, progress=advance
                )
                self._spend(part, time.perf_counter() - began)
                source.sizes.add(keys[start:end], np.array([(len(text.ids), text.truncated) for text in part], np.int64))
                for design, vectors in found.items():
                    source.stored(design).add(keys[start:end], vectors)

    def _spend(self, part: Sequence[TokenizedText], seconds: float) -> None:
        self.spent.texts += len(part)
        self.spent.tokens += sum(len(text.ids) for text in part)
        self.spent.seconds += seconds
        self.spent.peak_memory = peak_memory(self.source.backbone.device)

    def _count(self, new: Sequence[bytes]) -> None:
        if new:
            sizes = self.source.sizes.get(new)
            self.tally.texts += len(new)
            self.tally.tokens += int(sizes[:, 0].sum())
            self.tally.truncated += int(sizes[:, 1].sum())
            self._seen.update(new)


def chunks(lengths: Sequence[int], most: int = _CHUNK) -> Iterator[tuple[int, int]]:
    """Bounds of runs of texts of at most so many tokens, or of one text that is longer. Where one ends depends on what is in it alone."""
    start = total = 0
    for place, length in enumerate(lengths):
        if place > start and total + length > most:
            yield start, place
            start, total = place, 0
        total += length
    if start < len(lengths):
        yield start, len(lengths)


def peak_memory(device: torch.device) -> int:
    """Most bytes that were held so far: by tensors on a CUDA device, else by the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource
    import sys

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
