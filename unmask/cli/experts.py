"""From tasks to lessons (`unmask seeds`), from a few lessons to many (`specialise`), from lessons to an expert (`expert`)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.lesson_options import (
    LAST_SEED,
    MOST_TEXTS,
    MOST_TOKENS,
    Accumulate,
    Average,
    Batch,
    Drawn,
    MaxLength,
    Rate,
    Seed,
    Steps,
    showing,
)
from unmask.cli.options import LoadOptions, Model
from unmask.io.terminal import say

if TYPE_CHECKING:
    from unmask.experts.lessons.generation import Writers
    from unmask.models.loading import Source


def seeds(
    source: Annotated[
        Path, typer.Argument(help="Lessons, or rows of MMLU, BIG-Bench Hard, GSM8K or MBPP (told apart by columns).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File of lessons (jsonl).")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Lessons to draw.")] = 100,
    held_out: Annotated[Path | None, typer.Option(metavar="FILE", help="File for other lessons, to test on.")] = None,
    held_out_number: Annotated[int, typer.Option(min=1, help="How many of these.")] = 24,
    seed: Drawn = 0,
) -> None:
    """Draw lessons (instruction, input, output) from a set of tasks, and others that no training sees."""
    from unmask.experts.lessons.seed_lessons import read_seeds, split, write_lessons
    from unmask.io.files import only_writer_of

    learned, tested = split(read_seeds(source), number, held_out_number if held_out else 0, seed)
    # the other lessons first: where the output lies, both do
    files = [(file, lessons) for file, lessons in ((held_out, tested), (output, learned)) if file is not None]
    with ExitStack() as held:
        for file, _ in files:
            held.enter_context(only_writer_of(file))
        for file, lessons in files:
            write_lessons(lessons, file)
            say(f"{len(lessons)} lessons in {file}")


def specialise(
    domain: Annotated[str, typer.Argument(help="knowledge, reasoning, math, coding, or a TOML file.")],
    model: Model,
    seeds: Annotated[Path, typer.Option(help="Lessons to begin from (see `unmask seeds`).")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for lessons.jsonl and report.json; the same command goes on."
        ),
    ],
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=MOST_TEXTS, help="Instructions to keep.")] = 100,
    batch: Annotated[int, typer.Option(min=1, max=MOST_TEXTS, help="Texts that are written at once.")] = 16,
    avoid: Annotated[
        list[Path] | None, typer.Option(help="Lessons or tasks to be tested on, which none may be near to; repeat.")
    ] = None,
    instruction_tokens: Annotated[int, typer.Option(min=8, max=MOST_TOKENS, help="Most tokens of an instruction.")] = 128,
    response_tokens: Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="Most tokens of a response.")] = 256,
    writers: Annotated[
        int, typer.Option(min=1, max=10_000, help="Copies of the model that write at once, by Ray; the lessons are the same.")
    ] = 1,
    ray_address: Annotated[str | None, typer.Option(help="Of a Ray cluster; this machine if not given.")] = None,
    engine: Annotated[
        str, typer.Option(help="transformers, or vllm: faster, but not to the same bits when resumed.")
    ] = "transformers",
    seed: Annotated[int, typer.Option(min=0, max=LAST_SEED, help="Of what is written.")] = 0,
    *,
    options: LoadOptions,
) -> None:
    """Let a base model write its own lessons for a domain: instructions by brainstorming, then its answers, filtered and counted."""
    from unmask.experts.lessons.domain import load_domain
    from unmask.experts.lessons.seed_lessons import read_seeds
    from unmask.experts.lessons.specialise import FILES, SpecialisePlan, check_run, record_of
    from unmask.experts.lessons.specialise import specialise as run
    from unmask.io.files import check_output
    from unmask.models.identity import identity_of

    output = output.expanduser()
    for name in FILES:
        check_output(output / name, [seeds, *(avoid or [])])
    plan = SpecialisePlan(number, batch, instruction_tokens, response_tokens, seed=seed)
    seed_lessons, chosen = read_seeds(seeds), load_domain(domain)
    forbidden = [f"{lesson.instruction} {lesson.input}".strip() for file in avoid or [] for lesson in read_seeds(file)]
    source = options.source(model)
    weights = identity_of(source).revision
    check_run(output, record_of(model, engine, chosen, seed_lessons, plan, forbidden, weights))
    done = run(_writer(source, engine, writers, ray_address), model, chosen, seed_lessons, output, plan, forbidden, weights)
    print(f"{done.kept} lessons in {output}: {done.written} instructions were written, {done.instructions} of them kept.")
    for why, count in sorted(done.dropped.items(), key=lambda reason: -reason[1]):
        print(f"  dropped: {why}: {count}")
    print(
        f"  mean ROUGE-L of an instruction to the nearest other or seed: {done.nearest:.2f}; words of a response: {done.words:.0f}"
    )


def _writer(source: Source, engine: str, writers: int, ray_address: str | None) -> Writers:
    from unmask.errors import UnmaskError, unknown

    many = writers > 1 or ray_address is not None
    if engine == "vllm":
        from unmask.experts.lessons.vllm_engine import Engine

        if many:
            raise UnmaskError("vLLM writes many texts at once by itself: leave --writers and --ray-address out.")
        return Engine(source)
    if engine != "transformers":
        raise unknown("engine", engine, ["transformers", "vllm"])
    if many:
        from unmask.experts.lessons.pool import WriterPool

        return WriterPool(source, writers, ray_address, gpus=1 if source.device.startswith("cuda") else 0)
    from unmask.experts.lessons.generation import Writer
    from unmask.mixture.any_model import load_any_language_model

    return Writer(*load_any_language_model(source))


def expert(
    lessons: Annotated[Path, typer.Argument(help="Rows of instruction, output and perhaps input (jsonl, csv or parquet).")],
    model: Model,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="New PEFT folder; the same command goes on if it was stopped."),
    ],
    r: Annotated[int, typer.Option(min=1, help="Rank of the LoRA.")] = 8,
    alpha: Annotated[float, typer.Option(help="Its scale is alpha / r.")] = 16,
    steps: Steps = 96,
    batch: Batch = 8,
    accumulate: Accumulate = 1,
    lr: Rate = 3e-4,
    max_length: MaxLength = 512,
    average: Average = "example",
    seed: Seed = 0,
    *,
    options: LoadOptions,
) -> None:
    """Train one LoRA expert on the responses of one domain: a plain PEFT folder that a mixture takes, and anything else that reads PEFT."""
    from unmask.errors import in_one_sentence
    from unmask.experts.expert import train_expert
    from unmask.experts.lesson_training import Learning
    from unmask.experts.lessons.lessons import read_lessons
    from unmask.training.lora import LoraOptions

    with in_one_sentence():
        lora = LoraOptions(r=r, alpha=alpha)
    learning = Learning(steps, lr, batch, accumulate, min(4, steps - 1), max_length, average, seed)
    with showing() as callbacks:
        done = train_expert(
            options.source(model),
            read_lessons(lessons),
            output.expanduser(),
            lora=lora,
            learning=learning,
            callbacks=callbacks,
        )
    say(f"expert in {done.folder}; loss {done.losses[0]:.3f} at first, {done.losses[-1]:.3f} at last")
