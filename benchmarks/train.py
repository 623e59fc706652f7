"""Speed and memory of training, as ratios from one run.

    python -m benchmarks.train speed [STEPS LENGTH [BATCH]]   (by default 6 128 32; or memory, or --smoke for a little of both)

speed: the training loop on triples of SNLI (UNMASK_DATA), compared with (a) a bare forward and backward loop on the same chunks, (b) each
text padded to the longest of its column in the batch, one column after the other, (c) each text padded to the maximum length, as in
llm2vec's scripts. STEPS are those that are timed, LENGTH is the maximum length in tokens. memory: the peak of a batch of 1 024 with
GradCache, compared with a batch of 32, and the peak of a step of 48 triples with default settings, each in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import _inputs
from unmask.encoding.backbone import TokenBatch
from unmask.training.data import DataSource, read_pairs
from unmask.training.recipe import Recipe
from unmask.training.stages import STAGES
from unmask.training.stages.contrastive import ContrastiveOptions
from unmask.training.stages.stage import Prepared
from unmask.training.trainee import Trainee

TRIPLES = "snli/triples_dev.jsonl"


@dataclass(frozen=True)
class Given:
    """The model, and the folder with the triples."""

    model: str
    data: Path


def ready(
    given: Given, batch: int, steps: int, max_length: int, **options: Any
) -> tuple[Trainee, ContrastiveOptions, Prepared]:
    """A contrastive stage on SNLI triples, as `unmask train` runs it."""
    stage = {"data": ["triples"], "steps": steps, "batch": batch, "lr": 2e-4, "max_length": max_length, **options}
    recipe = Recipe.model_validate(
        {
            "name": "benchmark",
            "about": "",
            "model": given.model,
            "designs": ["prompteol"],
            "stages": ["contrastive"],
            "data": {"triples": {"path": TRIPLES}},
            "contrastive": stage,
        }
    )
    from unmask.designs.design import Design

    trainee = Trainee.load(recipe, Design.parse("prompteol"), 0)
    trainee.begin("contrastive", 0)
    sets = [read_pairs("triples", DataSource(path=TRIPLES), given.data, 0)]
    assert recipe.contrastive is not None
    return trainee, recipe.contrastive, STAGES["contrastive"].prepare(recipe.contrastive, trainee, sets, 0)


def run_loop(stage: ContrastiveOptions, prepared: Prepared) -> float:
    """Seconds of the loop without its first step, which is the warm-up."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    from unmask.training.loop import Loop, arguments

    class Clock(TrainerCallback):  # type: ignore[misc]
        begun = ended = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            now = time.perf_counter()
            self.begun, self.ended = self.begun or now, now

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        said = arguments(stage, Path(folder), 0, True, evaluates=False, saves=False)
        loop = Loop(prepared.module, said, prepared.rows, prepared.collate, prepared.objective, None, [clock])
        loop.remove_callback(PrinterCallback)
        loop.train()
    return clock.ended - clock.begun


def bare(trainee: Trainee, batches: Sequence[Sequence[TokenBatch]]) -> float:
    """Seconds of forward pass, backward pass and optimiser step on these batches, without the first batch."""
    weights = [weight for weight in trainee.backbone.model.parameters() if weight.requires_grad]
    optimizer, begun = torch.optim.AdamW(weights, lr=1e-9), 0.0
    trainee.backbone.model.train()
    for place, chunks in enumerate(batches):
        if place == 1:
            begun = time.perf_counter()
        for chunk in chunks:
            with trainee.backbone.computing():
                states = trainee.backbone.model(
                    input_ids=chunk.ids, attention_mask=chunk.real.long(), use_cache=False
                ).last_hidden_state
            states[:, -1].float().pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - begun


def padded(prepared: Prepared, stage: ContrastiveOptions, width: int | None) -> list[list[TokenBatch]]:
    """The same steps in the order of the data, one batch for each column, padded to its longest text or to a width."""
    from unmask.encoding.batching import collate

    tokenizer: Any = prepared.collate.tokenizer  # type: ignore[attr-defined]
    steps = []
    for start in range(0, len(prepared.rows), stage.batch):
        rows = prepared.rows[start : start + stage.batch]
        columns = []
        for texts in zip(*(row.example.texts for row in rows), strict=True):
            batch = collate(list(tokenizer.tokenize(texts)), tokenizer.pad_id)
            if width:
                more = (0, width - batch.ids.shape[1])
                batch = TokenBatch(*(torch.nn.functional.pad(part, more) for part in (batch.ids, batch.real, batch.embed)))
            columns.append(batch)
        steps.append(columns)
    return steps


def chunked(prepared: Prepared, stage: ContrastiveOptions) -> list[list[TokenBatch]]:
    """The same chunks that the loop computes."""
    found = []
    for start in range(0, len(prepared.rows), stage.batch):
        chunks = prepared.collate(prepared.rows[start : start + stage.batch])["chunks"]
        found.append([TokenBatch(one["input_ids"], one["attention_mask"].bool(), one["embed_mask"]) for one in chunks])
    return found


def speed(given: Given, steps: int, max_length: int, batch: int = 32) -> dict[str, float]:
    """Seconds a step for each way, and their ratios to the loop."""
    trainee, stage, prepared = ready(given, batch, steps + 1, max_length, cache_tokens=1 << 20)
    ways: dict[str, Callable[[], float]] = {
        "loop": lambda: run_loop(stage, prepared),
        "bare": lambda: bare(trainee, chunked(prepared, stage)),
        "longest": lambda: bare(trainee, padded(prepared, stage, None)),
        "fixed": lambda: bare(trainee, padded(prepared, stage, max_length)),
    }
    seconds: dict[str, float] = {}
    for _ in range(2):  # the ways take turns and the better of two times counts: another process may be busy for a while
        for name, way in ways.items():
            seconds[name] = min(seconds.get(name, float("inf")), way() / steps)
    return seconds | {f"{name} / loop": seconds[name] / seconds["loop"] for name in ways if name != "loop"}


def peak(given: Given, batch: int, cache_tokens: int | None) -> float:
    """Peak resident memory of one step, in GB. Call it in a new process."""
    options = {} if cache_tokens is None else {"cache_tokens": cache_tokens}
    _, stage, prepared = ready(given, batch, 1, 64, **options)
    run_loop(stage, prepared)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def apart(model: str, *numbers: int) -> float:
    """`peak`, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.train", "peak", *map(str, numbers), "--model", model]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(printed.stdout.splitlines()[-1]))


def memory(model: str) -> dict[str, float]:
    """Peaks in GB of a small batch, of a large batch and of a step with default settings, and large / small."""
    small, large, default = apart(model, 32, 2048), apart(model, 1024, 2048), apart(model, 48)
    return {
        "batch 32 (GB)": small,
        "batch 1024 (GB)": large,
        "1024 / 32": large / small,
        "48 triples, defaults (GB)": default,
    }


def smoke(model: str) -> dict[str, float]:
    """Two steps on a few bundled sentences, and the peak of this process."""
    texts = [row["sentence1"] for row in _inputs.rows("stsb/test.jsonl", smoke=True)]
    rows = [{"anchor": text, "positive": texts[place - 1], "negative": texts[place - 7]} for place, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / TRIPLES
        file.parent.mkdir()
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        given = Given(model, Path(folder))
        return {**speed(given, 1, 64, batch=4), "peak (GB)": peak(given, 4, 64)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the requested measurements as JSON."""
    parser = _inputs.parser(__doc__)
    parser.add_argument("what", choices=["speed", "memory", "peak"], nargs="?", default="speed")
    parser.add_argument("numbers", nargs="*", type=int, help="of speed: steps, maximum length and batch; by default 6 128 32")
    asked = parser.parse_args(arguments)
    given = Given(_inputs.model_of(asked), Path() if asked.smoke else _inputs.data(TRIPLES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if asked.what == "peak":
            batch, *cache = asked.numbers
            print(peak(given, batch, cache[0] if cache else None))
            return
        if asked.smoke:
            found = smoke(given.model)
        elif asked.what == "memory":
            found = memory(given.model)
        else:
            found = speed(given, *(asked.numbers or [6, 128]))
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2))


if __name__ == "__main__":
    main()
