"""`unmask evaluate-lm`: how well models foresee held-out text, and what they get right on public tests, with paired intervals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.lesson_options import Drawn, domains_of, texts_of
from unmask.cli.options import AsJson, ModelOptions, refuse_given
from unmask.errors import UnmaskError
from unmask.io.terminal import say

if TYPE_CHECKING:
    from unmask.models.loading import Source
    from unmask.moe.experts.abilities.harness import Items
    from unmask.moe.experts.lessons.lessons import Lesson
    from unmask.statistics.domain_differences import ModelScores

Ability = Annotated[
    list[str] | None,
    typer.Option(
        help="Public test: mmlu, bbh, gsm8k, humaneval, mbpp, hellaswag, piqa, truthfulqa, math, triviaqa or nq. NAME takes it from "
        "the hub, NAME=FILE from a file. Repeat for several."
    ),
]
Choice = Annotated[
    list[str] | None,
    typer.Option(
        help="Also use mixtures in another way: top-2, all, renormalised, top-2 renormalised, random, uniform, or an expert's name. "
        "Repeat for several."
    ),
]
AllowUnsandboxedCode = Annotated[
    bool,
    typer.Option(
        "--allow-unsandboxed-code",
        help="Run code that the models write even if there is no sandbox. It can then do whatever you can: read, change and send away "
        "your files, and keep running after the command has ended.",
    ),
]
LIKELIHOOD, TEXT_LIKELIHOOD = "likelihood", "text_likelihood"
"""Sections of the JSON in which texts may be cut or left out."""
_OF_ABILITIES = ("limit", "learned", "run_code", "allow_unsandboxed_code", "batch", "seed")


def evaluate_lm(
    context: typer.Context,
    model: Annotated[
        list[str],
        typer.Option("--model", "-m", help="Language model, expert or mixture. Repeat to compare others with the first."),
    ],
    lessons: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="Held-out lessons of a domain. Repeat for several.")
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Held-out texts of a domain (column `text`, or pairs). Repeat for several."),
    ] = None,
    ability: Ability = None,
    choice: Choice = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most items of each public test: a random sample of a file; from the hub, the first of each part."
        ),
    ] = None,
    learned: Annotated[
        list[Path] | None,
        typer.Option(help="File of lessons that a model has learned. Public tests leave them out. Repeat for several."),
    ] = None,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Run code that the models write, in a sandbox (bubblewrap).")
    ] = False,
    allow_unsandboxed_code: AllowUnsandboxedCode = False,
    batch: Annotated[int, typer.Option(min=1, help="Items of public tests in one batch.")] = 8,
    max_length: Annotated[int, typer.Option(min=2, help="Longest lesson or text in tokens.")] = 512,
    seed: Drawn = 0,
    *,
    options: Annotated[ModelOptions, "dtype", "device", "attn_implementation", "trust_remote_code"],
    as_json: AsJson = False,
) -> None:
    """Evaluate language models: likelihood of held-out text (works for small models, too), and accuracy on public tests."""
    from unmask.models.loading import load_language_model
    from unmask.moe.experts.likelihood import likelihoods, text_likelihood

    if len(set(model)) < len(model):
        raise UnmaskError("A model was given twice.")
    if not lessons and not texts and not ability:
        raise UnmaskError("Name what is to be evaluated: --lessons NAME=FILE, --texts NAME=FILE, or --ability NAME.")
    if not ability:
        refuse_given(context, _OF_ABILITIES, "is for public tests: give --ability, or leave it out.")
    if not lessons and not texts:
        refuse_given(context, ("max_length",), "is for lessons and texts: give --lessons or --texts, or leave it out.")
    _require_models(model, choice or [])
    domains, (read, left_out) = domains_of(lessons or []), texts_of(texts or [])
    _require_same_tokens([options.source(name) for name in model], domains, read)
    asked = _abilities(ability or [], limit, seed, learned or [])
    code = {"run_code": run_code or allow_unsandboxed_code, "unsandboxed": allow_unsandboxed_code}
    _announce(asked, code)
    foreseen: dict[str, dict[str, Any]] = {}
    told: dict[str, dict[str, Any]] = {}
    right: dict[str, dict[str, Any]] = {}
    tokens: dict[str, list[list[int]]] = {}
    uncounted: dict[str, dict[str, Any]] = {}
    for name in model:
        speaker, tokenizer = load_language_model(options.source(name))
        if not uncounted:  # all models read the same tokens
            tokens, uncounted = _tokens_that_count(tokenizer, domains, read, left_out, max_length)
        for row, using in _ways(name, speaker, choice or []):
            with using():
                if domains:
                    foreseen[row] = likelihoods(speaker, tokenizer, domains, max_length=max_length)
                if read:
                    told[row] = {
                        domain: text_likelihood(speaker, tokenizer, some, max_length=max_length)
                        for domain, some in tokens.items()
                    }
                if asked:
                    right[row] = _accuracies(speaker, tokenizer, asked, limit, code, batch)
            say(f"{row}: done")
    _tell(foreseen, told, right, uncounted, as_json)


def _tokens_that_count(
    tokenizer: Any,
    domains: Mapping[str, Sequence[Lesson]],
    read: Mapping[str, Sequence[str]],
    left_out: Mapping[str, Mapping[str, int]],
    longest: int,
) -> tuple[dict[str, list[list[int]]], dict[str, dict[str, Any]]]:
    """Token ids of the texts of each domain; and how many lessons and texts are cut or left out, by the section of the result.

    left_out: texts that reading left out. Texts of fewer than two tokens are left out, too. Says the numbers.
    """
    from unmask.moe.experts.likelihood import cut_lessons

    tokens = {domain: _tokens(tokenizer, domain, texts, longest) for domain, texts in read.items()}
    reasons = {
        domain: {**left_out[domain], "shorter than two tokens": len(texts) - len(tokens[domain])}
        for domain, texts in read.items()
    }
    cut = {
        LIKELIHOOD: {domain: cut_lessons(tokenizer, lessons, longest) for domain, lessons in domains.items()},
        TEXT_LIKELIHOOD: {domain: sum(len(ids) > longest for ids in texts) for domain, texts in tokens.items()},
    }
    for domain, numbers in reasons.items():
        if without := sum(numbers.values()):
            why = ", ".join(f"{number} {reason}" for reason, number in numbers.items() if number)
            say(f"{domain}: {without} of {len(tokens[domain]) + without} texts are left out ({why})")
    for what, section, given in (("lessons", LIKELIHOOD, domains), ("texts", TEXT_LIKELIHOOD, tokens)):
        for domain, number in cut[section].items():
            if number:
                say(f"{domain}: {number} of {len(given[domain])} {what} are cut to {longest} tokens (--max-length)")
    return tokens, {LIKELIHOOD: {"cut": cut[LIKELIHOOD]}, TEXT_LIKELIHOOD: {"cut": cut[TEXT_LIKELIHOOD], "left_out": reasons}}


def _tokens(tokenizer: Any, domain: str, texts: Sequence[str], longest: int) -> list[list[int]]:
    from unmask.training.collate import chunk_tokens

    try:  # one token beyond the limit shows that a text is longer
        return chunk_tokens(tokenizer, texts, longest + 1, blocks=False)
    except UnmaskError as error:
        raise UnmaskError(f"{domain}: {error}") from error


def _abilities(given: list[str], limit: int | None, seed: int, learned: list[Path]) -> dict[str, Items]:
    """Items by the name of their test."""
    from unmask.moe.experts.abilities.harness import draw_tests
    from unmask.moe.experts.lessons.lessons import read_lessons

    files: dict[str, Path | None] = {}
    for name, mark, path in (option.partition("=") for option in given):
        if name in files:
            raise UnmaskError(f"--ability names '{name}' twice.")
        files[name] = Path(path) if mark else None
    return draw_tests(files, limit, seed, [lesson for file in learned for lesson in read_lessons(file)])


def _announce(asked: Mapping[str, Any], code: Mapping[str, bool]) -> None:
    """Say how code that models write is run, or refuse it, before a model is loaded."""
    if not asked:
        return
    from unmask.moe.experts.abilities.harness import require_code_to_run

    if how := require_code_to_run(asked, **code):
        say(how)


def _require_models(models: list[str], choices: list[str]) -> None:
    """Raise UnmaskError for a model that is not there, and a choice that no model has, before a model is loaded."""
    from unmask.models.bundled import resolve
    from unmask.moe.mixture.mixture_folder import SETTINGS, read_mixture_settings
    from unmask.moe.mixture.model import check_override

    folders = [Path(resolve(name)) for name in models]
    mixtures = [folder for folder in folders if (folder / SETTINGS).is_file()]
    if choices and not mixtures:
        raise UnmaskError("--choice is another way to use a mixture, and no model here is one.")
    for folder in mixtures:
        for choice in choices:
            check_override(choice, read_mixture_settings(folder).experts)


def _require_same_tokens(sources: list[Source], domains: dict[str, list[Lesson]], read: dict[str, list[str]]) -> None:
    """Raise UnmaskError for models whose nats per token cannot be compared, before one of them is measured."""
    from unmask.moe.experts.likelihood import require_same_tokens

    texts = [text for of_domain in read.values() for text in of_domain]
    texts += [lesson.prompt + lesson.output for of_domain in domains.values() for lesson in of_domain]
    if len(sources) > 1 and texts:
        require_same_tokens(sources, texts)


def _ways(name: str, speaker: Any, choices: list[str]) -> list[tuple[str, Callable[[], Any]]]:
    """A model as it is, and a mixture in its other ways as well."""
    from contextlib import nullcontext
    from functools import partial

    from unmask.moe.mixture.model import override_routing

    mixture = getattr(speaker.base_model, "mixture", None)
    other = [(f"{name}, {choice}", partial(override_routing, mixture, choice)) for choice in choices] if mixture else []
    return [(name, nullcontext), *other]


def _accuracies(
    speaker: Any, tokenizer: Any, asked: Mapping[str, Any], limit: int | None, code: Mapping[str, bool], batch: int
) -> dict[str, Any]:
    from unmask.moe.experts.abilities.harness import accuracies

    shares = accuracies(speaker, tokenizer, asked, limit=limit, batch=batch, **code)
    return {name: 100 * values for name, values in shares.items()}


def _tell(
    foreseen: dict[str, Any],
    told: dict[str, Any],
    right: dict[str, Any],
    uncounted: dict[str, dict[str, Any]],
    as_json: bool,
) -> None:
    from unmask.statistics.domain_differences import as_json as content
    from unmask.statistics.domain_differences import compare_by_domain

    sections: dict[str, Any] = {}
    for values, name, title, unit, digits in (
        (foreseen, LIKELIHOOD, "Nats a response token, lower is better", "nats a response token", 3),
        (told, TEXT_LIKELIHOOD, "Nats a token of text, lower is better", "nats a token of text", 3),
        (right, "accuracy", "Right answers, percent, higher is better", "percent of items", 1),
    ):
        if not values:
            continue
        first = next(iter(values))
        rows = compare_by_domain(values, first)
        numbers = {domain: len(some) for domain, some in values[first].items()}
        sections[name] = content(rows, first, numbers, unit) | uncounted.get(name, {})
        if not as_json:
            _print(rows, title, digits, numbers)
    if as_json:
        print(json.dumps(sections, indent=2))


_SIDE_BY_SIDE = 5
"""So many domains stand beside each other in 80 columns. Of more, each has a line of its own."""


def _print(rows: Sequence[ModelScores], title: str, digits: int, numbers: Mapping[str, int]) -> None:
    from unmask.io import terminal

    names = _short(row.model for row in rows)
    first = next(iter(names.values()))
    domains = [terminal.two_lines(terminal.visible(domain), str(numbers[domain])) for domain in rows[0].domains]
    models = {
        names[row.model]: [
            *(f"{number:.{digits}f}" for number in (*row.domains.values(), row.average)),
            _interval(row, digits) if row is not rows[0] else "",
        ]
        for row in rows
    }
    table = terminal.table(title)
    if len(domains) <= _SIDE_BY_SIDE:
        table.add_column("model", overflow="fold")
        for heading in (*domains, "average", f"minus {first}"):
            table.add_column(heading, justify="right")
        for name, values in models.items():
            table.add_row(name, *values)
    else:
        table.add_column("")
        for name in models:
            table.add_column(name, justify="right", overflow="fold")
        lines = [f"{terminal.visible(domain)} ({numbers[domain]})" for domain in rows[0].domains]
        for heading, *values in zip((*lines, "average", f"minus {first}"), *models.values(), strict=True):
            table.add_row(heading, *values)
    console = terminal.console()
    console.print(table)
    console.print("Differences of averages with 95 % intervals, by a paired bootstrap over items.", style="dim")


def _interval(row: ModelScores, digits: int) -> str:
    value, low, high = (f"{number:+.{digits}f}" for number in row.difference)
    return f"{value} [{low}, {high}]"


def _short(names: Iterable[str]) -> dict[str, str]:
    """Each name, and as much of its end as tells it apart from the others. `unmask train` writes its result to FOLDER/model."""
    parts = {name: Path(re.sub(r"(/model)?/?(?=, |$)", "", name)).parts or (name,) for name in names}
    longest = max(len(of_name) for of_name in parts.values())
    for number in range(1, longest + 1):
        short = {name: "/".join(of_name[-number:]) for name, of_name in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {name: name for name in parts}
