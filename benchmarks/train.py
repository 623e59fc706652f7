"""Speed and memory of contrastive training on triples of SNLI.

    python -m benchmarks.train [--model smollm2] [--steps 6] [--length 128] [--batch 32] [--smoke]

The training loop is compared with a bare forward and backward loop on the same chunks; with each text padded to the longest of its column
in the batch, one column after the other; and with each text padded to the maximum length, as in llm2vec's scripts. Then comes the peak
memory of `unmask train`, for a step of 48 triples with default settings, and for steps of 32 and 1 024 triples by GradCache.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks._common import data, head, row, rows, run_alone, start
from unmask.designs.design import Design
from unmask.encoding.backbone import TokenBatch
from unmask.encoding.batching import collate
from unmask.training.data import DataSource, read_pairs
from unmask.training.loop import Loop, trainer_arguments
from unmask.training.recipe import Recipe
from unmask.training.stages import STAGES
from unmask.training.trainee import Trainee

TRIPLES = "snli/triples_dev.jsonl"


def main(words: Sequence[str] | None = None) -> None:
    """Print how long each way takes, as a multiple of the training loop, and the peaks."""
    args = start(__file__, __doc__, words, steps=(6, 1), length=(128, 64), batch=(32, 4))
    with tempfile.TemporaryDirectory() as scratch:
        folder = bundled_triples(Path(scratch)) if args.smoke else data(TRIPLES)
        stage = {
            "data": ["triples"],
            "steps": args.steps + 1,
            "save_every": 1000,
            "batch": args.batch,
            "lr": 2e-4,
            "max_length": args.length,
        }
        recipe = Recipe.model_validate(
            {"name": "benchmark", "model": args.model, "designs": ["prompteol"], "stages": ["contrastive"],
             "data": {"triples": {"path": TRIPLES}}, "contrastive": {**stage, "cache_tokens": 1 << 20}}
        )  # fmt: skip
        trainee = Trainee.load(recipe, Design.parse("prompteol"), 0)
        trainee.start_stage("contrastive", 0)
        sets = [read_pairs("triples", DataSource(path=TRIPLES), folder, 0)]
        assert recipe.contrastive is not None
        prepared = STAGES["contrastive"].prepare(recipe.contrastive, trainee, sets, 0)
        steps = [prepared.rows[k : k + args.batch] for k in range(0, len(prepared.rows), args.batch)]
        ways = {
            "a bare loop on the same chunks": [chunks_of(prepared, batch) for batch in steps],
            "padded to the longest text of a column": [columns_of(prepared, batch, 0) for batch in steps],
            "padded to the maximum length": [columns_of(prepared, batch, args.length) for batch in steps],
        }
        times = dict.fromkeys(["loop", *ways], float("inf"))
        for _ in range(2):  # in turns
            times["loop"] = min(times["loop"], run_loop(recipe, prepared))
            for name, batches in ways.items():
                times[name] = min(times[name], run_bare(trainee, batches))
        head("way", "time, as a multiple of the training loop's")
        for name in ways:
            row(name, f"{times[name] / times['loop']:.2f}")
    if not args.smoke:
        head("peak memory of one step", "GB")
        for name, batch, cache_tokens in (("48, default settings", 48, 0), ("32", 32, 2048), ("1 024", 1024, 2048)):
            row(f"{name} triples", f"{peak_memory(args.model, batch, cache_tokens):.1f}")


def peak_memory(model: str, batch: int, cache_tokens: int) -> float:
    """The peak of `unmask train` with one step, in GB."""
    settings = [
        f'model="{model}"',
        "evaluation={}",
        "contrastive.steps=1",
        f"contrastive.batch={batch}",
        "contrastive.max_length=64",
    ]
    settings += ['contrastive.data=["nli"]']
    settings += [f"contrastive.cache_tokens={cache_tokens}"] * bool(cache_tokens)
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", "prompteol", "--scale", "small", "--data", str(data(TRIPLES)), "-o", f"{folder}/embedder"]
        memory, _ = run_alone("unmask", *command, *(word for setting in settings for word in ("--set", setting)))
    return memory / 1000


def bundled_triples(folder: Path) -> Path:
    texts = [pair["sentence1"] for pair in rows("stsb/test.jsonl", smoke=True)]
    triples = [{"anchor": text, "positive": texts[k - 1], "negative": texts[k - 7]} for k, text in enumerate(texts)]
    (folder / TRIPLES).parent.mkdir()
    (folder / TRIPLES).write_text("".join(json.dumps(triple) + "\n" for triple in triples), encoding="utf-8")
    return folder


def chunks_of(prepared: Any, batch: Sequence[Any]) -> list[TokenBatch]:
    """What the loop computes for a batch."""
    chunks = prepared.collate(batch)["chunks"]
    return [TokenBatch(chunk["input_ids"], chunk["attention_mask"].bool(), chunk["pooling_mask"]) for chunk in chunks]


def columns_of(prepared: Any, batch: Sequence[Any], width: int) -> list[TokenBatch]:
    """A batch for each column. width: of every text in tokens; 0: of the longest."""
    tokenizer = prepared.collate.tokenizer
    columns = [
        collate(list(tokenizer.tokenize(texts)), tokenizer.pad_id)
        for texts in zip(*(each.example.texts for each in batch), strict=True)
    ]
    if not width:
        return columns
    pad = torch.nn.functional.pad
    return [
        TokenBatch(*(pad(part, (0, width - part.shape[1])) for part in (c.ids, c.attention_mask, c.pooling_mask)))
        for c in columns
    ]


def run_loop(recipe: Recipe, prepared: Any) -> float:
    """Seconds of the training loop without its first step, which is the warm-up."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        options = trainer_arguments(recipe.contrastive, Path(folder), 0, True, evaluates=False)  # type: ignore[arg-type]
        loop = Loop(prepared.module, options, prepared.rows, prepared.collate, prepared.objective, None, [Clock()])
        loop.remove_callback(PrinterCallback)
        loop.train()
    return times[-1] - times[0]


def run_bare(trainee: Trainee, steps: Sequence[Sequence[TokenBatch]]) -> float:
    """Seconds of forward pass, backward pass and optimiser step, without the first step."""
    weights = [weight for weight in trainee.backbone.model.parameters() if weight.requires_grad]
    optimizer, times = torch.optim.AdamW(weights, lr=1e-9), list[float]()
    trainee.backbone.model.train()
    for chunks in steps:
        for chunk in chunks:
            with trainee.backbone.computing():
                states = trainee.backbone.model(
                    input_ids=chunk.ids, attention_mask=chunk.attention_mask.long(), use_cache=False
                ).last_hidden_state
            states[:, -1].float().pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
    return times[-1] - times[0]


if __name__ == "__main__":
    main()
