"""`unmask evaluate-lm`: likelihood of held-out text and accuracy on public tests, with paired intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import ADVANCED, AsJson, Lessons, Limit, ModelOptions, Models, Reads, Seed, parse_named, refuse_options
from unmask.io.terminal import tell_json

_FOR_TESTS = ("limit", "learned", "run_code", "allow_unsandboxed_code", "seed")


def evaluate_lm(
    context: typer.Context,
    model: Models,
    lessons: Lessons = [],  # noqa: B006 (typer copies it)
    texts: Annotated[
        list[str] | None,
        Reads(),
        typer.Option(metavar="NAME=FILE", help="Held-out texts of a domain (column `text`, or pairs). Repeat for several."),
    ] = None,
    ability: Annotated[
        list[str] | None,
        Reads(),
        typer.Option(
            help="Public test: mmlu, bbh, gsm8k, humaneval, mbpp, hellaswag, piqa, truthfulqa, math, triviaqa or nq. NAME takes it from "
            "the hub, NAME=FILE from a file (all but the last three). Repeat for several."
        ),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            help="Also use mixtures with another routing: top-2, all, renormalised, top-2 renormalised, random, uniform, or an expert's "
            "name. Repeat for several."
        ),
    ] = None,
    limit: Limit = None,
    learned: Annotated[
        list[Path] | None,
        typer.Option(help="File of lessons that a model was trained on; public tests skip them. Repeat for several."),
    ] = None,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Run code that the models write, in a sandbox (bubblewrap).")
    ] = False,
    allow_unsandboxed_code: Annotated[
        bool,
        typer.Option(
            "--allow-unsandboxed-code",
            help="Run code that the models write without a sandbox if there is none. It can do whatever you can: read, change and send "
            "away your files, and keep running after the command has ended.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    seed: Seed = 0,
    *,
    options: Annotated[
        ModelOptions, "max_length", "dtype", "device", "device_map", "quantize", "attn_implementation", "trust_remote_code"
    ],
    as_json: AsJson = False,
) -> None:
    """Evaluate language models: likelihood of held-out text (also informative for small models), and accuracy on public tests."""
    from unmask.moe.experts.lm_evaluation import LMSettings, evaluate_language_models, print_language_models

    if not ability:
        refuse_options(context, _FOR_TESTS, "applies to public tests only: give --ability, or leave it out.")
    if not lessons and not texts:
        refuse_options(
            context, ["max_length"], "applies to lessons and texts only: give --lessons or --texts, or leave it out."
        )
    files = parse_named("ability", [name if "=" in name else f"{name}=hub" for name in ability or []], "NAME or NAME=FILE")
    settings = LMSettings(
        sources=tuple(options.source(name) for name in model),
        lessons={name: Path(file) for name, file in parse_named("lessons", lessons).items()},
        texts={name: Path(file) for name, file in parse_named("texts", texts or []).items()},
        abilities={name: Path(file) if f"{name}={file}" in (ability or []) else None for name, file in files.items()},
        choices=tuple(choice or ()),
        limit=limit,
        learned=tuple(learned or ()),
        run_code=run_code,
        allow_unsandboxed_code=allow_unsandboxed_code,
        max_length=options.max_length or 512,
        seed=seed,
    )
    sections = evaluate_language_models(settings)
    if as_json:
        tell_json({section.name: section.json for section in sections})
    else:
        print_language_models(sections)
