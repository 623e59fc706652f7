"""Memory, speed and drift of a model by the precision of its weights.

Each row is a process of its own. Peak: the most memory while loading, beyond what the process held before; pages of the file that the
system may drop at any time do not count. Cosine: with float32, of the same texts. Disk: every second layer is read from disk in each
forward pass.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks._common import head, row, rows, start
from unmask.encoding.encoder import Tally

DESIGN = "causal/eol/last/zscore"
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "8bit": {"quantize": "8bit"},
    "4bit": {"quantize": "4bit"},
    "float32, disk": {"dtype": "float32", "device_map": "disk"},
}


def _held() -> float:
    """MB of memory that the process holds, without pages of files."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1000


@contextmanager
def _peak() -> Iterator[list[float]]:
    """The most MB that the process holds within a `with` block, beyond what it held before; sampled every 5 ms."""
    before, peak, done = _held(), [0.0], threading.Event()

    def sample() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], _held() - before)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield peak
    finally:
        done.set()
        sampler.join()


def _every_second_layer_on_disk(model: str) -> dict[str, str]:
    import torch
    from transformers import AutoConfig, AutoModel

    from unmask.models.bundled import resolve
    from unmask.models.decoder import find_layers

    with torch.device("meta"):
        empty = AutoModel.from_config(AutoConfig.from_pretrained(resolve(model)))
    layers = find_layers(empty)
    path = next(name for name, module in empty.named_modules() if module is layers)
    table = {name: "cpu" for name, _ in empty.named_children() if name != path}
    return table | {f"{path}.{index}": "disk" if index % 2 else "cpu" for index in range(len(layers))}


def measure(model: str, setting: str, texts: Sequence[str]) -> dict[str, Any]:
    """Load a model and encode texts, in a fresh process."""
    import peft  # noqa: F401 (imports are not memory of the model)
    import torch

    from unmask import Embedder
    from unmask.models.placement import weight_bytes

    options = dict(SETTINGS[setting])
    if "device_map" in options:
        options["device_map"] = _every_second_layer_on_disk(model)
    Embedder.from_pretrained("pico", DESIGN, **({"quantize": options["quantize"]} if "quantize" in options else {}))
    begin = time.perf_counter()
    with _peak() as peak:
        embedder = Embedder.from_pretrained(model, DESIGN, **options)
    seconds = time.perf_counter() - begin
    embedder.encode(texts[:2])  # fits
    tally, begin = Tally(), time.perf_counter()
    vectors = embedder.encode(texts, tally=tally, normalize=True)
    return {
        "vectors": vectors,
        "bytes": weight_bytes(embedder.backbone.model),
        "peak": peak[0],
        "load": seconds,
        "speed": tally.tokens / (time.perf_counter() - begin),
        "threads": torch.get_num_threads(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    args = start(__file__, __doc__, arguments, pairs=(300, 4), settings=(", ".join(SETTINGS), "float32, 8bit, 4bit"))
    pairs = rows("stsb/test.jsonl", args.smoke)[: args.pairs]
    texts = [pair[column] for column in ("sentence1", "sentence2") for pair in pairs]
    gold = [pair["score"] for pair in pairs]
    head("weights", "MB", "peak while loading, MB", "seconds to load", "tokens/s", "cosine, mean", "least", "STSB")
    exact = None
    for setting in (name for name in SETTINGS if name in args.settings):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            result = pool.submit(measure, args.model, setting, texts).result()
        vectors = result["vectors"]
        exact = vectors if exact is None else exact
        cosines = (vectors * exact).sum(axis=1)
        first, second = np.split(vectors, 2)
        score = spearmanr((first * second).sum(axis=1), gold).statistic
        row(
            setting,
            f"{result['bytes'] / 1e6:.0f}",
            f"{result['peak']:.0f}",
            f"{result['load']:.1f}",
            f"{result['speed']:.0f}",
            f"{cosines.mean():.4f}",
            f"{cosines.min():.4f}",
            f"{100 * score:.1f}",
        )


if __name__ == "__main__":
    main()
