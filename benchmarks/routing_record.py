"""What a routing record of many tokens costs: memory, disk and time of writing it, reading it and measuring it.

python -m benchmarks.routing_record [--tokens 1000000] [--points 60] [--experts 16] [--smoke]

The choices are made up, so no model runs: texts of 100 tokens of four domains, which experts know a little of.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import _inputs
from unmask.io.files import atomic_folder
from unmask.io.seals import seal
from unmask.moe.routing.measures import measure_routing
from unmask.moe.routing.record import (
    RECORD,
    Choices,
    Label,
    Point,
    RecordSettings,
    Texts,
    part_folder,
    read_record,
    write_part,
)
from unmask.moe.routing.recording import part_tokens_of
from unmask.moe.routing.text_bootstrap import Draws

LENGTH, DIM = 100, 576


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a record part by part, and measure it. Print the peak memory of the process after each step."""
    parser = _inputs.parser(__doc__, model=False)
    for name, default in (("tokens", 1_000_000), ("points", 60), ("experts", 16), ("chosen", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    if given.smoke:
        given.tokens, given.points, given.experts = 2000, 2, 4

    with tempfile.TemporaryDirectory() as place:
        folder, settings = Path(place), _settings(given.tokens, given.points, given.experts, given.chosen)
        settings.write(folder / RECORD)
        began = time.perf_counter()
        for part in range(settings.parts):
            with atomic_folder(part_folder(folder, part)) as scratch:
                write_part(scratch, settings, *_part(settings, part))
                seal(scratch)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        values = settings.tokens * len(settings.points)
        print(f"{settings.tokens} tokens, {len(settings.points)} points, {given.experts} experts, {settings.parts} parts")
        print(f"disk {size / 2**20:.0f} MB, {size / values:.1f} bytes for each token and point")
        _tell("making up and writing", began)
        began = time.perf_counter()
        record = read_record(folder)
        tokens = sum(len(batch.ids) for batch in record.batches([0]))
        _tell(f"reading one point of {tokens} tokens", began)
        began = time.perf_counter()
        measure_routing(record, Draws(20, 5, 5) if given.smoke else Draws())
        _tell("measuring", began)


def _tell(what: str, began: float) -> None:
    import torch

    from unmask.encoding.forward_pass import peak_memory

    seconds = time.perf_counter() - began
    print(f"{what}: {seconds:.1f} s, peak memory {peak_memory(torch.device('cpu')) / 2**20:.0f} MB", flush=True)


def _settings(tokens: int, points: int, experts: int, chosen: int) -> RecordSettings:
    own = tuple(Point(name=f"layers.{place}.gate", layer=place + 1, experts=experts, chosen=chosen) for place in range(points))
    texts, most = tokens // LENGTH, part_tokens_of(own) // LENGTH
    return RecordSettings(
        model="made up", weights="none", attention="causal", dtype="float32", max_length=LENGTH, batch_tokens=2048, data="none",
        sources=("made up",), texts=texts, truncated=0, tokens=texts * LENGTH, tokens_of_texts=texts * LENGTH, sample=None, seed=0,
        labels=(Label(name="domain", of="text", values=("a", "b", "c", "d")),), experts=None, points=own, dim=DIM,
        part_tokens=most * LENGTH, parts=-(-texts // most), provenance={},
    )  # fmt: skip


def _part(settings: RecordSettings, part: int) -> tuple[int, Texts, list[np.ndarray], np.ndarray, Choices]:
    random, most = np.random.default_rng(part), settings.part_tokens // LENGTH
    numbers = np.arange(part * most, min((part + 1) * most, settings.texts), dtype=np.int32)
    texts = np.repeat(numbers, LENGTH)
    lists: tuple[list[np.ndarray], ...] = ([], [], [])
    for point in settings.points:
        scores = random.normal(size=(len(texts), point.experts)).astype(np.float32)
        scores[np.arange(len(texts)), texts % 4 % point.experts] += 0.5
        shares = np.exp(scores)
        shares /= shares.sum(axis=1, keepdims=True)
        best = np.argsort(-shares, axis=1)[:, : point.chosen]
        parts = shares, best.astype(np.int16), np.take_along_axis(shares, best, axis=1)
        for kept, values in zip(lists, parts, strict=True):
            kept.append(values if values.dtype == np.int16 else values.astype(np.float16))
    ids = random.zipf(1.3, size=len(texts)).clip(max=49_000).astype(np.int32)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), len(numbers))
    labels = {"domain": (numbers % 4).astype(np.int16)}
    hidden = random.normal(size=(len(numbers), settings.dim)).astype(np.float32)
    found = Texts(["x" * 400] * len(numbers), np.full(len(numbers), LENGTH, np.int32), labels)
    spans = [np.stack([np.arange(LENGTH), np.arange(LENGTH) + 1], axis=1)] * len(numbers)
    return int(numbers[0]), found, spans, hidden, Choices(texts, positions, ids, {}, *lists)


if __name__ == "__main__":
    main()
