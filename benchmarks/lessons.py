"""How much slower is a training step if every lesson is padded to the longest of its batch?

    python -m benchmarks.lessons [--model smollm2] [--batches 3] [--repeats 1] [--smoke]

A step is a forward and a backward pass of an expert (LoRA, bf16) on 8 lessons of one domain of `unmask reproduce self-moe`. Both ways take
turns on the same batches, and the ratio is that of their best times, so a busy machine slows both. `padding` is the share of padding in
such a batch, and `difference` that of the two losses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks import _inputs
from benchmarks.encode import best_times
from unmask.models.loading import Source, load_base_language_model
from unmask.moe.experts import lesson_training
from unmask.moe.experts.expert import LORA, add_expert
from unmask.moe.experts.lesson_training import Learning, LessonCollator, response_loss
from unmask.moe.experts.lessons.lessons import LessonTokens, read_seeds, split, tokenize_lessons
from unmask.starter import lessons_file
from unmask.studies.self_moe.plan import load_plan
from unmask.training.attention_kernel import attention_kernel

_BATCH = 8


def step(model: Any, batches: Sequence[Sequence[LessonTokens]], pad: bool) -> float:
    """The sum of the losses of some batches, after their backward passes. pad: each batch to its longest lesson."""
    padding = patch.object(lesson_training, "_similar", lambda inputs: [inputs]) if pad else nullcontext()
    objective, total = response_loss(Learning(1, 1e-4, _BATCH), lambda: torch.autocast("cpu", torch.bfloat16)), 0.0
    with padding:
        for lessons in batches:
            inputs = LessonCollator(0)(lessons)
            del inputs["rows"]
            with attention_kernel(model, inputs):
                loss = objective(model, inputs, None)
                loss.backward()
            total += float(loss.detach())
            model.zero_grad()
    return total


def measure(model: Any, name: str, lessons: Sequence[LessonTokens], count: int, repeats: int) -> None:
    """Print a line: the share of padding, the ratio of times, and the difference of losses."""
    batches = [random.Random(place).sample(list(lessons), _BATCH) for place in range(count)]
    whole = sum(_BATCH * max(len(lesson.ids) for lesson in batch) for batch in batches)
    real = sum(len(lesson.ids) for batch in batches for lesson in batch)
    losses: dict[str, float] = {}
    ways = {
        "similar": lambda: losses.update(similar=step(model, batches, pad=False)),
        "padded": lambda: losses.update(padded=step(model, batches, pad=True)),
    }
    times = best_times(ways, repeats)
    difference = abs(losses["padded"] / losses["similar"] - 1)
    print(
        f"{name:12}{count:9}{1 - real / whole:10.1%}{times['padded'] / times['similar']:11.2f} x{difference:12.1e}", flush=True
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once, and measure lessons of each domain."""
    parser = _inputs.parser(__doc__)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args(arguments)
    plan = load_plan("smoke" if given.smoke else "small")
    data = Path() if given.smoke else _inputs.data(*plan.seeds.values())
    model, tokenizer = load_base_language_model(Source(_inputs.model_of(given), dtype="bfloat16"))
    add_expert(model, LORA)
    model.train()
    print(f"{'':12}{'batches':>9}{'padding':>10}{'padded':>13}{'difference':>12}")
    for name, file in plan.seeds.items():
        learned, _ = split(read_seeds(lessons_file(file, data)), plan.number, plan.held_out, plan.seed)
        tokens = tokenize_lessons(tokenizer, learned, plan.max_length)
        measure(model, name, tokens, 1 if given.smoke else given.batches, given.repeats)


if __name__ == "__main__":
    main()
