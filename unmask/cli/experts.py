"""From tasks to lessons (`unmask seeds`), from a few lessons to many (`specialise`), from lessons to an expert (`expert`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import (
    ADVANCED,
    MAX_TEXTS,
    MAX_TOKENS,
    LearningOptions,
    LoadOptions,
    LoraSettings,
    Model,
    Number,
    OutputFile,
    OutputFolder,
    Reads,
    Seed,
    Writes,
)
from unmask.io.terminal import counted, say, tell_result


def seeds(
    source: Annotated[
        Path,
        typer.Argument(
            help="File of lessons, or of rows of MMLU, BIG-Bench Hard, GSM8K or MBPP (recognised by their columns)."
        ),
    ],
    output: OutputFile,
    number: Number = 100,
    held_out: Annotated[
        Path | None, Writes(folder=False), typer.Option(metavar="FILE", help="File for other lessons, to test on.")
    ] = None,
    held_out_number: Annotated[int, typer.Option(min=1, help="Lessons to hold out.")] = 24,
    seed: Seed = 0,
) -> None:
    """Sample lessons (instruction, input, output) from a file of tasks, and other lessons to test on.

    Lessons that are close to a held-out one (ROUGE-L above 0.7) are left out.
    """
    from unmask.moe.experts.lessons.lessons import sample_seeds

    files = sample_seeds(source, output, number, held_out, held_out_number, seed=seed)
    for file, count in files.items():
        say(f"{counted(count, 'lesson')} in {file}")
    tell_result({"files": {str(file): count for file, count in files.items()}})


def specialise(
    domain: Annotated[str, Reads(suffix=".toml"), typer.Argument(help="knowledge, reasoning, math, coding, or a TOML file.")],
    model: Model,
    seeds: Annotated[Path, typer.Option(help="File of at least five lessons to start from (see `unmask seeds`).")],
    output: OutputFolder,
    number: Number = 100,
    batch: Annotated[int, typer.Option(min=1, max=MAX_TEXTS, help="Texts to write at once.")] = 16,
    avoid: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of lessons or tasks that you will test on. Instructions close to them are dropped. Repeat for several."
        ),
    ] = None,
    response_tokens: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="Maximum tokens of a response.")] = 256,
    engine: Annotated[
        str,
        typer.Option(
            help="transformers or vllm. vllm is faster, but a run that is stopped and continued may give other lessons.",
            rich_help_panel=ADVANCED,
        ),
    ] = "transformers",
    seed: Seed = 0,
    *,
    options: LoadOptions,
) -> None:
    """Let a base model write lessons for a domain: it invents instructions, then answers them. Bad ones are filtered out."""
    from unmask.moe.experts.lessons.specialise import SpecialisePlan, specialise_files

    plan = SpecialisePlan(number, batch, response_tokens=response_tokens, seed=seed)
    result = specialise_files(
        options.source(model),
        domain,
        seeds,
        output,
        plan,
        avoid=avoid or (),
        engine=engine,
    )
    tell_result({"output": str(output), **result.as_json()})
    print(f"{counted(result.kept, 'lesson')} in {output}, from {result.instructions} of {result.written} instructions.")
    for reason, count in sorted(result.dropped.items(), key=lambda item: -item[1]):
        print(f"  dropped: {reason}: {count}")
    print(f"  mean ROUGE-L to the nearest instruction: {result.nearest:.2f}; words per response: {result.words:.0f}")
    result.require_lessons(output)


def expert(
    lessons: Annotated[
        Path, typer.Argument(help="File with columns instruction, output and, if needed, input (jsonl, csv or parquet).")
    ],
    model: Model,
    output: OutputFolder,
    *,
    lora: LoraSettings,
    learning: LearningOptions,
    options: LoadOptions,
) -> None:
    """Train a LoRA expert on the lessons of one domain. The result is a plain PEFT folder, for `unmask mix` and any PEFT tool."""
    from unmask.cli.train import training_progress
    from unmask.moe.experts.expert import LEARNING, train_expert
    from unmask.moe.experts.lessons.lessons import read_lessons

    with training_progress() as callbacks:
        result = train_expert(
            options.source(model),
            read_lessons(lessons),
            output,
            lora=lora.lora(),
            learning=LEARNING.with_options(learning),
            callbacks=callbacks,
        )
    tell_result({"output": str(result.folder), "losses": list(result.losses)})
    say(f"expert in {result.folder}; loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}")
