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
from unmask.errors import UnmaskError
from unmask.io.terminal import counted, say, tell_result

if TYPE_CHECKING:
    from unmask.models.loading import Source
    from unmask.moe.experts.lessons.generation import Writers


def seeds(
    source: Annotated[
        Path,
        typer.Argument(
            help="File of lessons, or of rows of MMLU, BIG-Bench Hard, GSM8K or MBPP (recognised by their columns)."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File of lessons (jsonl).")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Lessons to sample.")] = 100,
    held_out: Annotated[Path | None, typer.Option(metavar="FILE", help="File for other lessons, to test on.")] = None,
    held_out_number: Annotated[int, typer.Option(min=1, help="Lessons to hold out.")] = 24,
    seed: Drawn = 0,
) -> None:
    """Sample lessons (instruction, input, output) from a file of tasks, and other lessons to test on.

    Lessons that are close to a held-out one (ROUGE-L above 0.7) are left out.
    """
    from unmask.io.files import only_writer_of
    from unmask.moe.experts.lessons.lessons import read_seeds, split_apart, write_lessons

    of_file = {source.stem: read_seeds(source)}
    [(learned, tested)] = split_apart(of_file, number, held_out_number if held_out else 0, seed).values()
    # the other lessons first: where the output lies, both do
    files = [(file, lessons) for file, lessons in ((held_out, tested), (output, learned)) if file is not None]
    with ExitStack() as held:
        for file, _ in files:
            held.enter_context(only_writer_of(file))
        for file, lessons in files:
            write_lessons(lessons, file)
            say(f"{counted(len(lessons), 'lesson')} in {file}")
    tell_result({"files": {str(file): len(lessons) for file, lessons in files}})


def specialise(
    domain: Annotated[str, typer.Argument(help="knowledge, reasoning, math, coding, or a TOML file.")],
    model: Model,
    seeds: Annotated[Path, typer.Option(help="File of at least five lessons to start from (see `unmask seeds`).")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for lessons.jsonl and report.json. Run the same command again to continue.",
        ),
    ],
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=MOST_TEXTS, help="Instructions to keep.")] = 100,
    batch: Annotated[int, typer.Option(min=1, max=MOST_TEXTS, help="How many texts to write at once.")] = 16,
    avoid: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of lessons or tasks that you will test on. Instructions close to them are dropped. Repeat for several."
        ),
    ] = None,
    instruction_tokens: Annotated[int, typer.Option(min=8, max=MOST_TOKENS, help="Longest instruction in tokens.")] = 128,
    response_tokens: Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="Longest response in tokens.")] = 256,
    writers: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, help="Copies of the model that write in parallel, with Ray. The lessons stay the same."
        ),
    ] = 1,
    ray_address: Annotated[str | None, typer.Option(help="Address of a Ray cluster. Default: this machine.")] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="transformers or vllm. vllm is faster, but a run that was stopped and continued may give other lessons."
        ),
    ] = "transformers",
    seed: Annotated[int, typer.Option(min=0, max=LAST_SEED, help="Seed of the lessons.")] = 0,
    *,
    options: LoadOptions,
) -> None:
    """Let a base model write lessons for a domain: it invents instructions, then answers them. Bad ones are filtered out."""
    from unmask.io.files import check_output
    from unmask.models.identity import identity_of
    from unmask.moe.experts.lessons.domain import load_domain
    from unmask.moe.experts.lessons.lessons import read_seeds
    from unmask.moe.experts.lessons.specialise import FILES, SpecialisePlan, check_run, record_of
    from unmask.moe.experts.lessons.specialise import specialise as run

    for name in FILES:
        check_output(output / name, [seeds, *(avoid or [])])
    plan = SpecialisePlan(number, batch, instruction_tokens, response_tokens, seed=seed)
    seed_lessons, chosen = read_seeds(seeds), load_domain(domain)
    forbidden = [lesson.question for file in avoid or [] for lesson in read_seeds(file)]
    source = options.source(model)
    weights = identity_of(source).revision
    check_run(output, record_of(model, engine, chosen, seed_lessons, plan, forbidden, weights))
    done = run(_writer(source, engine, writers, ray_address), model, chosen, seed_lessons, output, plan, forbidden, weights)
    tell_result({"output": str(output), **done.as_json()})
    print(
        f"{counted(done.kept, 'lesson')} in {output}. Instructions: {done.written} were written, {done.instructions} of them kept."
    )
    for why, count in sorted(done.dropped.items(), key=lambda reason: -reason[1]):
        print(f"  dropped: {why}: {count}")
    print(
        f"  mean ROUGE-L of an instruction to the nearest other or seed: {done.nearest:.2f}; words of a response: {done.words:.0f}"
    )
    if not done.kept:
        raise UnmaskError(
            f"No lesson was kept, so there is nothing to learn in {output}. See above why texts were dropped. Try another model, or in a "
            "new folder other --seeds, or longer texts (--instruction-tokens, --response-tokens)."
        )


def _writer(source: Source, engine: str, writers: int, ray_address: str | None) -> Writers:
    from unmask.errors import unknown

    many = writers > 1 or ray_address is not None
    if engine == "vllm":
        from unmask.moe.experts.lessons.engines import Engine

        if many:
            raise UnmaskError("vLLM writes many texts at once by itself: leave --writers and --ray-address out.")
        return Engine(source)
    if engine != "transformers":
        raise unknown("engine", engine, ["transformers", "vllm"])
    if many:
        from unmask.moe.experts.lessons.engines import WriterPool

        return WriterPool(source, writers, ray_address or "local", gpus=1 if source.device.startswith("cuda") else 0)
    from unmask.models.loading import load_language_model
    from unmask.moe.experts.lessons.generation import Writer

    return Writer(*load_language_model(source))


def expert(
    lessons: Annotated[
        Path, typer.Argument(help="File with columns instruction, output and, if needed, input (jsonl, csv or parquet).")
    ],
    model: Model,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="New PEFT folder. Run the same command again to continue."),
    ],
    r: Annotated[int, typer.Option(min=1, help="Rank of the LoRA.")] = 8,
    alpha: Annotated[float, typer.Option(help="The LoRA is scaled by alpha / r.")] = 16,
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
    """Train a LoRA expert on the lessons of one domain. The result is a plain PEFT folder, for `unmask mix` and any PEFT tool."""
    from unmask.errors import in_one_sentence
    from unmask.moe.experts.expert import train_expert
    from unmask.moe.experts.lesson_training import Learning
    from unmask.moe.experts.lessons.lessons import read_lessons
    from unmask.training.lora import LoraOptions

    with in_one_sentence():
        lora = LoraOptions(r=r, alpha=alpha)
    learning = Learning(steps, lr, batch, accumulate, min(4, steps - 1), max_length, average, seed)
    with showing() as callbacks:
        done = train_expert(
            options.source(model),
            read_lessons(lessons),
            output,
            lora=lora,
            learning=learning,
            callbacks=callbacks,
        )
    tell_result({"output": str(done.folder), "losses": list(done.losses)})
    say(f"expert in {done.folder}; loss {done.losses[0]:.3f} at first, {done.losses[-1]:.3f} at last")
