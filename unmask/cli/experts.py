"""`unmask expert`: lessons of one domain in, a LoRA expert out. `unmask mix`: experts and lessons in, a mixture out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from unmask.cli.options import Device, Dtype, Model, Revision, TrustRemoteCode
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.experts.lessons import Lesson

Steps = Annotated[int, typer.Option(min=1, help="Optimiser steps.")]
Batch = Annotated[int, typer.Option(min=1, help="Lessons of one step.")]
Accumulate = Annotated[int, typer.Option(min=1, help="Passes that a step is split into; lessens memory.")]
Rate = Annotated[float, typer.Option(help="Peak learning rate.")]
MaxLength = Annotated[int, typer.Option(min=2, help="Most tokens of a lesson.")]
Average = Annotated[Literal["example", "token"], typer.Option(help="What the loss is a mean of.")]
Seed = Annotated[int, typer.Option(help="Of initial weights and the order of lessons.")]


def seeds(
    source: Annotated[
        Path, typer.Argument(help="Lessons, or rows of MMLU, BIG-Bench Hard, GSM8K or MBPP (told apart by columns).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of lessons (jsonl).")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Lessons to draw.")] = 100,
    held_out: Annotated[Path | None, typer.Option(help="File for other lessons, to test on.")] = None,
    held_out_number: Annotated[int, typer.Option(min=1, help="How many of these.")] = 24,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
) -> None:
    """Draw lessons (instruction, input, output) from a set of tasks, and others that no training sees."""
    from unmask.experts.seeds import read_seeds, split, write_lessons

    learned, tested = split(read_seeds(source), number, held_out_number if held_out else 0, seed)
    for file, lessons in ((output, learned), (held_out, tested)):
        if file is not None:
            write_lessons(lessons, file)
            print(f"unmask: {len(lessons)} lessons in {file}", file=sys.stderr)


def specialise(
    domain: Annotated[str, typer.Argument(help="knowledge, reasoning, math, coding, or a TOML file.")],
    model: Model,
    seeds: Annotated[Path, typer.Option(help="Lessons to begin from (see `unmask seeds`).")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for lessons.jsonl and report.json; the same command goes on.")
    ],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Instructions to keep.")] = 100,
    batch: Annotated[int, typer.Option(min=1, help="Texts that are written at once.")] = 16,
    avoid: Annotated[
        list[Path] | None, typer.Option(help="Lessons or tasks to be tested on, which none may be near to; repeat.")
    ] = None,
    instruction_tokens: Annotated[int, typer.Option(min=8, help="Most tokens of an instruction.")] = 128,
    response_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a response.")] = 256,
    seed: Annotated[int, typer.Option(help="Of what is written.")] = 0,
    revision: Revision = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Let a base model write its own lessons for a domain: instructions by brainstorming, then its answers, filtered and counted."""
    from unmask.experts.domain import load_domain
    from unmask.experts.generation import Writer
    from unmask.experts.seeds import read_seeds
    from unmask.experts.speakers import load_speaker
    from unmask.experts.specialise import Plan
    from unmask.experts.specialise import specialise as run
    from unmask.loading import Source

    found, chosen = read_seeds(seeds), load_domain(domain)
    forbidden = [f"{one.instruction} {one.input}".strip() for file in avoid or [] for one in read_seeds(file)]
    source = Source(model, revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    plan = Plan(number, batch, instruction_tokens, response_tokens, seed=seed)

    def said(what: str, done: int, wanted: int) -> None:
        print(f"  {what}: {done} of {wanted}", file=sys.stderr, flush=True)

    done = run(Writer(*load_speaker(source)), model, chosen, found, output.expanduser(), plan, forbidden, said)
    print(f"{done.kept} lessons in {output}: {done.written} instructions were written, {done.instructions} of them kept.")
    for why, count in sorted(done.dropped.items(), key=lambda one: -one[1]):
        print(f"  dropped: {why}: {count}")
    print(
        f"  mean ROUGE-L of an instruction to the nearest other or seed: {done.nearest:.2f}; words of a response: {done.words:.0f}"
    )


def expert(
    lessons: Annotated[Path, typer.Argument(help="Rows of instruction, output and perhaps input (jsonl, csv or parquet).")],
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="New PEFT folder; the same command goes on if it was stopped.")
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
    revision: Revision = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Train one LoRA expert on the responses of one domain: a plain PEFT folder that a mixture takes, and anything else that reads PEFT."""
    from unmask.experts.expert import train_expert
    from unmask.experts.learning import Learning
    from unmask.experts.lessons import read_lessons
    from unmask.loading import Source
    from unmask.training.lora import LoraOptions

    learning = Learning(steps, lr, batch, accumulate, min(4, steps - 1), max_length, average, seed)
    source = Source(model, revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    with _progress() as callbacks:
        done = train_expert(
            source,
            read_lessons(lessons),
            output.expanduser(),
            lora=LoraOptions(r=r, alpha=alpha),
            learning=learning,
            callbacks=callbacks,
        )
    print(
        f"unmask: expert in {done.folder}; loss {done.losses[0]:.3f} at first, {done.losses[-1]:.3f} at last", file=sys.stderr
    )


def mix(
    experts: Annotated[list[Path], typer.Argument(help="PEFT folders of experts of one base model, in order.")],
    lessons: Annotated[list[str], typer.Option(help="NAME=FILE of a domain to learn the routing on; repeat.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the mixture.")],
    router: Annotated[
        Literal["block", "layer", "final"],
        typer.Option(help="One router for all blocks, one each, or one decision by the last state of a pass without experts."),
    ] = "block",
    top_k: Annotated[int, typer.Option(min=1, help="Experts that act on a token.")] = 1,
    train_top_k: Annotated[int | None, typer.Option(min=1, help="The same while the router learns; all if not given.")] = None,
    steps: Steps = 48,
    batch: Batch = 8,
    accumulate: Accumulate = 1,
    lr: Rate = 1e-2,
    max_length: MaxLength = 512,
    average: Average = "example",
    seed: Seed = 0,
    base: Annotated[str | None, typer.Option(help="Base model, if the experts do not name it.")] = None,
    revision: Revision = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Put experts into their base model and train the router that gives tokens to them (MiXSE). The result is a model like any other."""
    from unmask.experts.learning import Learning
    from unmask.experts.mixing import mix as run
    from unmask.loading import Source
    from unmask.mixture.gating import Routing

    learning = Learning(steps, lr, batch, accumulate, min(2, steps - 1), max_length, average, seed)
    source = Source(base or "", revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    with _progress() as callbacks:
        done = run(
            experts, domains_of(lessons), output.expanduser(), Routing(router, top_k), source,
            learning=learning, train_top_k=train_top_k, callbacks=callbacks,
        )  # fmt: skip
    print(
        f"unmask: mixture in {done.folder}; loss {done.losses[0]:.3f} at first, {done.losses[-1]:.3f} at last", file=sys.stderr
    )


def merge(
    experts: Annotated[list[Path], typer.Argument(help="PEFT folders of experts of one base model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the merged model.")],
    method: Annotated[
        Literal["linear", "ties", "dare"], typer.Option(help="How the task vectors (delta W) of the experts are added up.")
    ] = "linear",
    weight: Annotated[
        list[float] | None, typer.Option(help="Of each expert, in order; repeat. 1 / n for linear, else 1, if not given.")
    ] = None,
    density: Annotated[float, typer.Option(help="Share of each task vector that ties and dare keep.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of what dare keeps.")] = 0,
    base: Annotated[str | None, typer.Option(help="Base model, if the experts do not name it.")] = None,
    revision: Revision = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Merge experts into the weights of their base model: one plain language model, the same for every token."""
    from unmask.loading import Source, load_language_model
    from unmask.mixture.experts import read_expert, require_alike
    from unmask.mixture.merging import merge_experts

    output = output.expanduser()
    if output.exists():
        raise UnmaskError(f"'{output}' exists: give a new folder.")
    found = [read_expert(folder) for folder in experts]
    require_alike(found)
    source = Source(base or found[0].base, revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    model, tokenizer = load_language_model(source)
    merge_experts(model, found, method, weights=weight, density=density, seed=seed)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    print(f"unmask: {len(found)} experts merged ({method}) into {output}", file=sys.stderr)


def domains_of(given: list[str]) -> dict[str, list[Lesson]]:
    """Lessons by domain, of NAME=FILE. Raises UnmaskError."""
    from unmask.experts.lessons import read_lessons

    found = {}
    for one in given:
        name, mark, path = one.partition("=")
        if not mark or not name:
            raise UnmaskError(f"--lessons takes NAME=FILE, not '{one}'.")
        if name in found:
            raise UnmaskError(f"--lessons names the domain '{name}' twice.")
        found[name] = read_lessons(Path(path))
    return found


def _progress() -> Any:
    from contextlib import contextmanager

    @contextmanager
    def showing() -> Any:
        from transformers.utils.logging import disable_progress_bar

        from unmask.training.progress import LiveProgress

        disable_progress_bar()
        bar = LiveProgress()
        try:
            yield [bar]
        finally:
            bar.close()

    return showing()
